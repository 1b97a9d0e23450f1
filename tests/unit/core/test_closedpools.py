"""Means over how the parts of pools that share a fixed number of requests come and go."""

from __future__ import annotations

from itertools import product
from math import factorial, prod

import pytest

from selector.core.closedpools import ClosedPool, mean_run
from selector.core.poolload import Demand, OperatingPoint, PoolCurve, PoolLoad
from tests.fleets import acceptance_model, specs_of

pytestmark = pytest.mark.interpreted
QUANTILE = 0.9


def curve_of(arm: str) -> PoolCurve:
    demand = Demand("code", None, 1.0, 500.0, 250.0)
    load = PoolLoad(specs_of(arm)[0], [(demand, 1.0)], acceptance_model(), QUANTILE)
    return PoolCurve(load, load.full())


class Proportional(PoolLoad):
    """Every request is served at the same rate, however many are there, and more draw more than twice as much."""

    def __init__(self) -> None:
        self.largest_batch = 64

    def point(self, batch: float) -> OperatingPoint:
        return OperatingPoint(batch, 10.0 * batch, batch * batch)


def by_enumeration(pools: list[ClosedPool], population: int) -> tuple[float, float]:
    total = tokens = watts = 0.0
    for counts in product(range(population + 1), repeat=len(pools)):
        if sum(counts) != population:
            continue
        batches = [count / pool.backends for count, pool in zip(counts, pools, strict=True)]
        rates = [pool.curve.rate_at(batch) if batch else 0.0 for batch, pool in zip(batches, pools, strict=True)]
        weight = prod(
            prod(
                pool.tokens_per_s / (pool.backends * pool.curve.rate_at(here / pool.backends))
                for here in range(1, count + 1)
            )
            for count, pool in zip(counts, pools, strict=True)
        )
        total += weight
        tokens += weight * sum(pool.backends * rate for rate, pool in zip(rates, pools, strict=True))
        watts += weight * sum(pool.backends * pool.curve.at(rate)[1] for rate, pool in zip(rates, pools, strict=True))
    return tokens / total, watts / total


@pytest.mark.parametrize("population", [1, 2, 7])
def test_it_is_the_mean_over_every_way_to_share_the_requests(population: int) -> None:
    pools = [
        ClosedPool(curve_of("none"), 2, 300.0),
        ClosedPool(curve_of("dspark-8"), 1, 900.0),
        ClosedPool(curve_of("eagle3-k1"), 1, 200.0),
    ]
    run = mean_run(pools, population)
    assert (run.tokens_per_s, run.power_w) == pytest.approx(by_enumeration(pools, population))


def test_a_pool_alone_holds_all_requests_evenly() -> None:
    curve = curve_of("none")
    run = mean_run([ClosedPool(curve, 2, 100.0)], 12)
    assert run.tokens_per_s == pytest.approx(2.0 * curve.rate_at(6.0))


def test_requests_that_do_not_slow_each_other_are_shared_binomially() -> None:
    load = Proportional()
    curve = PoolCurve(load, load.point(64))
    population, share = 10, 0.3
    run = mean_run([ClosedPool(curve, 1, 300.0), ClosedPool(curve, 1, 700.0)], population)
    assert run.tokens_per_s == pytest.approx(10.0 * population)
    chances = [
        factorial(population) / factorial(k) / factorial(population - k) * share**k * (1.0 - share) ** (population - k)
        for k in range(population + 1)
    ]
    power_at = [curve.at(10.0 * k)[1] for k in range(population + 1)]
    expected = sum(chance * (power_at[k] + power_at[population - k]) for k, chance in enumerate(chances))
    assert run.power_w == pytest.approx(expected)
    assert run.power_w > power_at[3] + power_at[7], "more than what the mean parts draw"


def test_only_the_shares_of_the_rates_count() -> None:
    near = [ClosedPool(curve_of("none"), 1, 400.0), ClosedPool(curve_of("dspark-8"), 1, 800.0)]
    far = [pool._replace(tokens_per_s=1e3 * pool.tokens_per_s) for pool in near]
    assert mean_run(far, 40) == pytest.approx(mean_run(near, 40))
