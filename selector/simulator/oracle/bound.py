"""A clairvoyant lower bound on the joules per accepted token that any policy can reach on a trace, fleet and seed.

It knows what no policy knows (arrivals, lengths, accept lengths) and is proved under the simulator's own model; the
proof is in docs/oracle.md. Three relaxations, each with prices, any of which give a valid bound:

    shared steps    the fixed part of a step is shared among the requests that can be there at all (`oraclesharing`)
    the end         idle power runs to the last end: D ≥ Σ ω(i) · earliest end of i for any weights that sum to 1
    attainment      ψ is paid for a request within its target, so that the share asked for is met at least cost

It bounds runs in which every request that some backend can serve is served to its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from selector.core.acceptance import AcceptancePrior
from selector.core.policy import BackendSpec
from selector.errors import DomainError
from selector.simulator.oracle.branch import MOST_REQUESTS, branched_j_per_token
from selector.simulator.oracle.search import Effort, Search
from selector.simulator.oracle.work import Work, work_of
from selector.simulator.run import SimulatedRequest
from selector.simulator.truth import Truth

THOROUGH = Effort()

_ROUNDING = 1e-6
"""Share of the bound given away to the rounding of sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleBound:
    """No policy does better."""

    j_per_accepted_token: float | None
    """`None` when no request can be served; infinite when no policy reaches the attainment."""
    energy_j: float
    """Of the whole run at least, idle included, at the most tokens that can be delivered."""
    requests: int
    """That are completed: all that some backend can serve."""
    accepted_tokens: int
    """At most."""
    attainment: float | None
    """The share of requests within their target that was asked for; `None` when any would do."""


def oracle(
    specs: Sequence[BackendSpec],
    acceptance: Mapping[tuple[str, str], AcceptancePrior] | Truth,
    requests: Sequence[SimulatedRequest],
    *,
    seed: int = 0,
    attainment: float | None = None,
    session_prefixes: bool = False,
    effort: Effort = THOROUGH,
) -> OracleBound:
    """Bounds every run of `Simulation` on the same backends, true acceptance, requests (in order of arrival) and seed.

    With `attainment` (0–1) it bounds the runs in which at least that share of the requests with a target met it, as
    `report.attainment` counts. Raises `DomainError` for a share outside 0–1, and for backends with live settings or
    depths that their engine chooses: it knows steps at one setting only, which bound nothing at others.
    """
    for spec in specs:
        if spec.settings or spec.depths:
            raise DomainError(f"{spec.name} runs {spec.arm}, of which no bound knows live settings or depths")
    if attainment is not None and not 0.0 <= attainment <= 1.0:
        raise DomainError(f"attainment is {attainment}; must be between 0 and 1")
    work = work_of(specs, acceptance, requests, seed=seed, session_prefixes=session_prefixes)
    if len(work.arrival_s) == 0:
        return OracleBound(
            j_per_accepted_token=None, energy_j=0.0, requests=0, accepted_tokens=0, attainment=attainment
        )
    search = Search(work, attainment)
    least = search.j_per_token(search.best(effort))
    if len(work.arrival_s) <= MOST_REQUESTS:
        apart = work_of(specs, acceptance, requests, seed=seed, session_prefixes=session_prefixes, apart=True)
        least = max(least, branched_j_per_token(apart, _alike(work, apart), attainment, root=least, cases=effort.cases))
    if least != inf:
        least = max(0.0, least - abs(least) * _ROUNDING)
    tokens = int(np.maximum.reduceat(work.tokens, search.starts).sum())
    return OracleBound(
        j_per_accepted_token=least,
        energy_j=least * tokens,
        requests=len(work.arrival_s),
        accepted_tokens=tokens,
        attainment=attainment,
    )


def _alike(work: Work, apart: Work) -> npt.NDArray[np.int64]:
    """The kind of each backend, or a number of its own when it shares a GPU."""
    kinds = {name: number for number, kind in enumerate(work.kinds) for name in kind.backends}
    return np.array(
        [kinds[kind.spec.name] if kind.turns == 1 else len(kinds) + number for number, kind in enumerate(apart.kinds)]
    )
