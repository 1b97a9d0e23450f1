"""The oracle beside the results of policies: one bound for each attainment that was reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from selector.errors import UsageError
from selector.files.fleet import LoadedFleet
from selector.simulator.oracle.bound import OracleBound, oracle
from selector.simulator.report import PolicyResult, TargetChoice
from selector.simulator.run import SimulatedRequest
from selector.simulator.trial import true_acceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A result, and what no policy can beat at the attainment that it reached."""

    policy: str
    tbt_target_ms: TargetChoice
    tbt_attainment: float | None
    j_per_accepted_token: float | None
    """The bound; `None` when the policy refused requests that could be served, which the bound says nothing about."""
    above_frac: float | None
    """By how much of the bound the policy lies above it."""


def compare_with_oracle(
    loaded: LoadedFleet,
    requests: Sequence[SimulatedRequest],
    results: Sequence[PolicyResult],
    *,
    seed: int,
    done: Callable[[], None] = lambda: None,
) -> list[Compared]:
    """`results` of policies on `requests`, in order; `done` is called after each."""
    context = loaded.policy_context(seed)
    for spec in context.backends:
        if spec.settings or spec.depths:
            problem = f"cannot bound {spec.name}: {spec.arm} has live settings, or a depth that its engine chooses"
            raise UsageError("--oracle", problem, "leave it out, or let the backend run an arm without")
    bounds: dict[float | None, OracleBound] = {}
    compared = []
    for result in results:
        attainment = result.tbt_attainment
        if attainment not in bounds:
            bounds[attainment] = oracle(
                context.backends, true_acceptance(loaded), requests, seed=seed, attainment=attainment
            )
        bound = bounds[attainment]
        least = bound.j_per_accepted_token if result.requests == bound.requests else None
        above = None
        if least is not None and result.j_per_accepted_token is not None and least > 0.0:
            above = result.j_per_accepted_token / least - 1.0
        compared.append(
            Compared(
                policy=result.policy,
                tbt_target_ms=result.tbt_target_ms,
                tbt_attainment=attainment,
                j_per_accepted_token=least,
                above_frac=above,
            )
        )
        done()
    return compared
