"""The reward for meeting targets: a bound on the cheapest choice that attains the share, and nearly that."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
import pytest

from selector.simulator.oracle.attained import Attained
from selector.simulator.oracle.work import Work, work_of
from tests.fleets import specs_of
from tests.oraclecases import accepts, small_case

REQUESTS = 5


def some_work(elsewhere: int) -> Work:
    specs = specs_of("none", "dspark-8")
    _, requests = small_case(13, target_ms=10.0)
    work = work_of(specs, accepts(specs), requests[:REQUESTS], seed=0, session_prefixes=False)
    assert len(work.request) == 2 * REQUESTS
    return replace(work, judged_elsewhere=elsewhere)


def cheapest(cost: np.ndarray, extra: np.ndarray, share: float, elsewhere: int) -> float:
    """Over every way to choose a pair and whether to meet."""
    best = inf
    for choice in product(range(4), repeat=REQUESTS):
        pairs = [2 * request + pick % 2 for request, pick in enumerate(choice)]
        met = [pick >= 2 for pick in choice]
        if sum(met) >= share * (REQUESTS + elsewhere) - 1e-9:
            best = min(
                best, sum(cost[pair] + (extra[pair] if meets else 0.0) for pair, meets in zip(pairs, met, strict=True))
            )
    return best


@pytest.mark.parametrize("elsewhere", [0, 2])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 5 / 7, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_it_bounds_the_cheapest_choice(seed: int, share: float, elsewhere: int) -> None:
    rng = np.random.default_rng(seed)
    cost, extra = rng.uniform(50.0, 100.0, 2 * REQUESTS), rng.exponential(20.0, 2 * REQUESTS)
    extra[rng.random(2 * REQUESTS) < 0.2] = inf
    best = cheapest(cost, extra, share, elsewhere)
    value, _ = Attained(some_work(elsewhere), share).least_j(cost, extra)
    assert value <= best * (1 + 1e-9)
    # It relaxes the choice of one request at most.
    if best < inf:
        assert best - value <= float(np.max(extra[np.isfinite(extra)])) + 50.0
    else:
        assert value == inf


def test_asking_for_nothing_is_the_least_of_each() -> None:
    cost = np.arange(1.0, 2 * REQUESTS + 1)
    value, each = Attained(some_work(0), None).least_j(cost, np.zeros(2 * REQUESTS))
    assert value == sum(cost[::2])
    assert each is cost
