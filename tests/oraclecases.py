"""Random traces on random fleets, and every way to send them, for the tests of the oracle."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from selector.core.acceptance import AcceptancePrior
from selector.core.policy import BackendSpec
from selector.core.types import Decision, FleetView, Outcome, RequestView
from selector.files.trace import TraceRequest
from selector.simulator.engine import Run, SimulatedRequest, Simulation
from tests.fleets import ARMS, acceptance_model, backend_spec, policy_context

TEXT = ("code", "romansh")


class Assigned:
    """Sends the n-th request to the n-th backend named."""

    def __init__(self, backends: Sequence[str]) -> None:
        self._backends = iter(backends)

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        return Decision(backend=next(self._backends), reason="test")

    def observe(self, outcome: Outcome) -> None:
        pass


def accepts(specs: Sequence[BackendSpec]) -> dict[tuple[str, str], AcceptancePrior]:
    """What the simulated servers accept."""
    truth = acceptance_model({spec.arm for spec in specs})
    return {
        (spec.name, text): AcceptancePrior(
            mean=truth.accept_length(spec.arm, text), request_spread=truth.request_spread(spec.arm, text)
        )
        for spec in specs
        for text in TEXT
    }


def small_case(
    number: int, *, target_ms: float | None = None, shared: bool = False
) -> tuple[tuple[BackendSpec, ...], list[SimulatedRequest]]:
    """Up to 6 requests on up to 3 backends: a burst, a few seconds, or far apart."""
    rng = random.Random(number)
    backends = rng.randint(1, 3)
    specs = tuple(backend_spec(f"b{index}", rng.choice(ARMS)) for index in range(backends))
    if shared:
        specs = tuple(replace(spec, gpus=("g",)) for spec in specs)
    span_s = rng.choice([0.0, 0.3, 1.0, 3.0, 10.0])
    arrivals = sorted(rng.uniform(0.0, span_s) for _ in range(rng.randint(1, 6 if backends < 3 else 5)))
    requests = [
        SimulatedRequest(
            trace=TraceRequest(
                request_id=f"r{index}",
                arrival_s=at_s - arrivals[0],
                prompt_tokens=int(10 ** rng.uniform(0.5, 3.7)),
                output_tokens=int(10 ** rng.uniform(0.5, 2.7)),
            ),
            text_type=rng.choice(TEXT),
            slo_class="chat",
            tbt_target_ms=target_ms,
        )
        for index, at_s in enumerate(arrivals)
    ]
    return specs, requests


def every_assignment(specs: Sequence[BackendSpec], requests: Sequence[SimulatedRequest], seed: int) -> Iterator[Run]:
    """A run for every way to send the requests to the backends."""
    truth = accepts(specs)
    for backends in product([spec.name for spec in specs], repeat=len(requests)):
        yield Simulation(policy_context(specs), Assigned(backends), truth, seed=seed).run(requests)
