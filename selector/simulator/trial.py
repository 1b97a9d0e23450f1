"""From a fleet file and a trace to a result: what the command line, the demo and the benchmarks run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from selector.core.acceptance import AcceptancePrior
from selector.errors import FleetError, UsageError
from selector.files.fleet import LoadedFleet
from selector.files.policy import load_policy_file
from selector.files.trace import Trace, scaled
from selector.simulator.arrivals import Load
from selector.simulator.engine import SimulatedRequest, Simulation
from selector.simulator.report import PolicyResult, summarise
from selector.simulator.run import WHOLE_RUN, Window


def prepare(
    trace: Trace, loaded: LoadedFleet, *, tbt_target_ms: float | None, rate_scale: float = 1.0, limit: int | None = None
) -> list[SimulatedRequest]:
    """The requests of a trace whose text types are known, with class and target. Raises `FleetError` for a class."""
    slo = loaded.fleet.slo
    prepared = []
    for request in scaled(trace.requests[:limit], rate_scale):
        slo_class = request.slo_class or slo.default_class
        if tbt_target_ms is not None:
            target: float | None = tbt_target_ms
        else:
            try:
                target = slo.tbt_target_ms(slo_class)
            except KeyError:
                raise FleetError(
                    f"{loaded.where}: slo.classes",
                    f"has no class {slo_class!r}, which the trace names",
                    "add the class, or give --tbt-target-ms",
                ) from None
        if request.text_type is None:
            raise UsageError("trace", "has requests without a text type", "give --text-mix")
        prepared.append(
            SimulatedRequest(trace=request, text_type=request.text_type, slo_class=slo_class, tbt_target_ms=target)
        )
    return prepared


def simulate_policy(
    loaded: LoadedFleet,
    load: Load | Sequence[SimulatedRequest],
    name: str,
    *,
    seed: int = 0,
    window: Window = WHOLE_RUN,
    until_s: float = inf,
) -> PolicyResult:
    """One policy, by name or path, on a load of prepared requests (see `Simulation.run`). Raises `PolicyError`."""
    policy_file = load_policy_file(name)
    context = loaded.policy_context(seed)
    simulation = Simulation(
        context,
        policy_file.make(_params(loaded, name), context),
        true_acceptance(loaded),
        seed=seed,
        poll_interval_s=loaded.fleet.router.poll_interval_s,
    )
    started = time.perf_counter()
    finished = simulation.run(load, window=window, until_s=until_s)
    wall_s = time.perf_counter() - started
    return summarise(finished, policy=name, policy_sha256=policy_file.sha256, wall_s=wall_s)


def check_policies(loaded: LoadedFleet, names: Sequence[str]) -> None:
    """Makes every policy once, so that a mistake in the last name shows before the first has run.

    Raises `PolicyError`.
    """
    for name in names:
        load_policy_file(name).make(_params(loaded, name), loaded.policy_context(0))


def _params(loaded: LoadedFleet, name: str) -> Mapping[str, Any]:
    """The fleet file's parameters belong to the policy that it names."""
    return loaded.fleet.policy.params if name == loaded.fleet.policy.name else {}


def true_acceptance(loaded: LoadedFleet) -> dict[tuple[str, str], AcceptancePrior]:
    """What the simulated servers accept, per (backend, text type): the profile's acceptance taken as the truth."""
    return {
        (backend.name, text_type): AcceptancePrior(mean=known.mean, request_spread=known.request_spread)
        for backend in loaded.fleet.backends
        for text_type, known in loaded.profiles[backend.profile].arm(backend.arm).acceptance.items()
    }
