"""From a fleet file and a trace to a result: what the command line, the demo and the benchmarks run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from selector.core.acceptance import AcceptancePrior
from selector.core.policy import Policy
from selector.core.types import Decision
from selector.errors import FleetError, UsageError
from selector.files.fleet import LoadedFleet
from selector.files.policy import LoadedPolicy, load_policy_file
from selector.files.trace import Trace, scaled
from selector.simulator.arrivals import Load, OpenLoop
from selector.simulator.decisionlog import LoggedController, Write, start_line
from selector.simulator.engine import Simulation
from selector.simulator.report import PolicyResult, TargetChoice, summarise
from selector.simulator.run import WHOLE_RUN, Run, SimulatedRequest, Window
from selector.simulator.timeline import Timeline
from selector.simulator.witness import Witness

_DECISIONS_KEPT = 2_000
"""About so many of a watched trial's decisions are kept, spread over it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One policy on one trace: the numbers, and what they were made from."""

    result: PolicyResult
    run: Run
    timeline: Timeline | None = None
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    """The decisions that were kept, by request id."""


def prepare(
    trace: Trace, loaded: LoadedFleet, *, tbt_target_ms: TargetChoice, rate_scale: float = 1.0, limit: int | None = None
) -> list[SimulatedRequest]:
    """The requests of a trace whose text types are known, with class and target. Raises `FleetError` for a class."""
    slo = loaded.fleet.slo
    prepared = []
    for request in scaled(trace.requests[:limit], rate_scale):
        slo_class = request.slo_class or slo.default_class
        if tbt_target_ms is not None:
            target = None if tbt_target_ms == "none" else tbt_target_ms
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
    return run_trial(loaded, load, load_policy_file(name), seed=seed, window=window, until_s=until_s).result


def run_trial(
    loaded: LoadedFleet,
    load: Load | Sequence[SimulatedRequest],
    policy_file: LoadedPolicy,
    *,
    seed: int = 0,
    window: Window = WHOLE_RUN,
    until_s: float = inf,
    params: Mapping[str, Any] | None = None,
    tbt_target_ms: TargetChoice = None,
    watched: bool = False,
    log: Write | None = None,
) -> Trial:
    """One policy on a load of prepared requests (see `Simulation.run`). Raises `PolicyError`.

    `params` are the fleet file's unless given. `tbt_target_ms` is what `prepare` got, for the result to tell. A
    `watched` trial keeps its timeline and a sample of its decisions; `log` gets the lines of its decision log.
    """
    load = OpenLoop(load) if isinstance(load, Sequence) else load
    context = loaded.policy_context(seed)
    params = _params(loaded, policy_file.label) if params is None else params
    policy: Policy = policy_file.make(params, context)
    witness = Witness(policy, stride=max(1, len(load.requests) // _DECISIONS_KEPT)) if watched else None
    timeline = Timeline() if watched else None
    policy = witness or policy
    if log is not None:
        log(start_line(loaded, policy_file, params, seed))
    simulation = Simulation(
        context,
        policy,
        true_acceptance(loaded),
        seed=seed,
        poll_interval_s=loaded.fleet.router.poll_interval_s,
        recorder=timeline,
        controller=LoggedController(context, policy, log) if log is not None else None,
    )
    started = time.perf_counter()
    finished = simulation.run(load, window=window, until_s=until_s)
    wall_s = time.perf_counter() - started
    result = summarise(
        finished,
        policy=policy_file.label,
        policy_sha256=policy_file.sha256,
        wall_s=wall_s,
        tbt_target_ms=tbt_target_ms,
    )
    return Trial(result=result, run=finished, timeline=timeline, decisions=witness.kept if witness else {})


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
    """What the simulated servers accept, per (backend, text type): the profile's acceptance taken as the truth.

    At every live setting, under the name that the backend then has (`ArmSetting.named`).
    """
    return {
        (at_setting, text_type): AcceptancePrior(mean=known.mean, request_spread=known.request_spread)
        for backend in loaded.fleet.backends
        for at_setting, acceptance in loaded.profiles[backend.profile].acceptances(backend.arm, named=backend.name)
        for text_type, known in acceptance.items()
    }
