"""With few requests: cases by who goes to which backend, each with a bound of its own.

A case fixes the backend of some requests; the bound of all cases together is the least of them. The case with the
least bound is split further, at its request of most energy, until a budget of cases is spent. Alone on a server that
nobody else uses, backends are interchangeable, so of those only one is tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt

from selector.simulator.oracle.search import Effort, Search
from selector.simulator.oracle.work import Work

MOST_REQUESTS = 12
"""With more, cases tell too little for their number."""

_EFFORT = Effort(scan_rounds=6, rounds=50, rates=(1.0,))


@dataclass(order=True, slots=True)
class _Case:
    j_per_token: float
    number: int
    fixed: dict[int, int]
    """Kind by request."""


def branched_j_per_token(
    work: Work, alike: npt.NDArray[np.int64], attainment: float | None, *, root: float, cases: int
) -> float:
    """The least over about that many cases; `root` is a bound of all of them.

    `work` has every backend as a kind of its own, and `alike` gives kinds the same number when they are
    interchangeable.
    """
    first_step_j = np.array([kind.alpha_j[0] for kind in work.kinds])
    energy_j = np.minimum.reduceat(work.own_j + work.steps * first_step_j[work.kind], work.starts)
    order = np.argsort(-energy_j).tolist()
    open_cases = [_Case(root, 0, {})]
    made = 0
    while made < cases and len(open_cases[0].fixed) < len(order):
        case = heappop(open_cases)
        request = order[len(case.fixed)]
        for kind in _worth_trying(work, alike, case.fixed, request):
            fixed = {**case.fixed, request: kind}
            keep = np.array([fixed.get(int(r), int(k)) == k for r, k in zip(work.request, work.kind, strict=True)])
            search = Search(work.of_pairs(keep), attainment)
            found = search.j_per_token(search.best(_EFFORT))
            made += 1
            heappush(open_cases, _Case(max(found, case.j_per_token), made, fixed))
    heapify(open_cases)
    return open_cases[0].j_per_token


def _worth_trying(work: Work, alike: npt.NDArray[np.int64], fixed: dict[int, int], request: int) -> list[int]:
    taken = set(fixed.values())
    fresh: set[int] = set()
    found = []
    for kind in work.kind[work.request == request].tolist():
        if kind not in taken:
            if int(alike[kind]) in fresh:
                continue
            fresh.add(int(alike[kind]))
        found.append(kind)
    return found
