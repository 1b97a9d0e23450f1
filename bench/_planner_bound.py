"""What no policy can beat in a cell of the table, by `selector.simulator.oracle` (proofs in docs/oracle.md).

    steady   any stationary split of that many clients over the same fleet
    ramp     the same while their number changes, on the best fleet of so many GPUs; the fleet may change with the load
    trace    any policy that knows the future, on the same fleet, at the attainment that was reached

Targets are left out of the first two: they can only cost more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from _planner_cells import ARMS, fleet_of

from selector.files.fleet import LoadedFleet
from selector.simulator.oracle import oracle, steady_j_per_accepted_token
from selector.simulator.report import PolicyResult
from selector.simulator.run import SimulatedRequest
from selector.simulator.trial import true_acceptance

_REQUESTS_SEEN = 4_000
"""The mean request of each text type is taken from so many."""


def steady_bound(fleet: LoadedFleet, requests: Sequence[SimulatedRequest], clients: int) -> float:
    """Joules per accepted token at least, of a steady load on the fleet."""
    return steady_j_per_accepted_token(
        fleet.policy_context().backends, true_acceptance(fleet), requests[:_REQUESTS_SEEN], in_system=clients
    )


def ramp_bound(gpus: int, requests: Sequence[SimulatedRequest], time_at: Mapping[int, float]) -> float:
    """Joules per accepted token at least, on any fleet of `gpus` GPUs with so many clients for so long each."""
    fleet = fleet_of(ARMS)
    return steady_j_per_accepted_token(
        fleet.policy_context().backends,
        true_acceptance(fleet),
        requests[:_REQUESTS_SEEN],
        in_system=time_at,
        any_arms_on_gpus=gpus,
    )


def trace_bound(
    fleet: LoadedFleet, requests: Sequence[SimulatedRequest], result: PolicyResult, seed: int
) -> float | None:
    """Joules per accepted token at least, at the attainment of `result`; `None` where it left requests unserved."""
    bound = oracle(
        fleet.policy_context().backends,
        true_acceptance(fleet),
        requests,
        seed=seed,
        attainment=result.tbt_attainment,
    )
    return bound.j_per_accepted_token if result.requests == bound.requests else None
