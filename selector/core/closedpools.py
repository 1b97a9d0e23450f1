"""Pools that share a fixed number of requests: how their parts of them come and go, and what that is worth.

Where clients wait for answers and each text has its arm, every end brings a request of a random text, so the parts of
the pools are right in the mean only: of 16 requests over two equal pools, 8 and 8 are there at most one time in five.
Rates and powers are not linear in the batch, so their means are not those at the mean batches. With pool i holding n_i
requests at the rate r_i(n_i) and getting the share λ_i of them, whatever the distribution of their lengths,

    π(n) ∝ Π_i Π_{j ≤ n_i} λ_i / r_i(j),   Σ n_i = N

(Kelly, Reversibility and Stochastic Networks, 1979, chapter 3). Backends within a pool share its requests evenly;
what is there beyond full ones is served elsewhere, at about their price, as in `PoolCurve`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from selector.core.poolload import PoolCurve


class ClosedPool(NamedTuple):
    """The equal backends of one arm and the rate that they would serve if nothing came and went."""

    curve: PoolCurve
    backends: int
    tokens_per_s: float
    """Above 0. Only shares count; near the true rates nothing is lost to rounding."""


class MeanRun(NamedTuple):
    """All pools together."""

    tokens_per_s: float
    power_w: float
    """Above idle."""


def mean_run(pools: Sequence[ClosedPool], population: int) -> MeanRun:
    """The means over all ways to share `population` requests, at least 1, among the pools, at least one of them."""
    tables = [_table(pool.curve, pool.backends, population) for pool in pools]
    weights = []
    for pool, table in zip(pools, tables, strict=True):
        logs = table.there * math.log(pool.tokens_per_s) - table.log_rates
        weights.append(np.exp(logs - logs.max()))
    tokens_per_s = power_w = 0.0
    for index, (weight, table) in enumerate(zip(weights, tables, strict=True)):
        chances = weight * _together([*weights[:index], *weights[index + 1 :]], population)[::-1]
        chances /= chances.sum()
        tokens_per_s += float(chances @ table.rates)
        power_w += float(chances @ table.powers_w)
    return MeanRun(tokens_per_s, power_w)


class _Table(NamedTuple):
    """What a pool of so many backends does with 0 to N requests."""

    there: NDArray[np.float64]
    rates: NDArray[np.float64]
    powers_w: NDArray[np.float64]
    log_rates: NDArray[np.float64]
    """Sum of the logarithms of the rates at 1 to n requests."""


@lru_cache(maxsize=256)
def _table(curve: PoolCurve, backends: int, population: int) -> _Table:
    # The same curves are asked about for every assignment of texts to arms.
    there = np.arange(population + 1, dtype=np.float64)
    batches, batch_rates, batch_powers_w = curve.lines
    batch = there / backends
    beyond = np.maximum(1.0, batch / batches[-1])
    rates = backends * beyond * np.interp(batch, batches, batch_rates)
    powers_w = backends * beyond * np.interp(batch, batches, batch_powers_w)
    return _Table(there, rates, powers_w, np.concatenate(([0.0], np.cumsum(np.log(rates[1:])))))


def _together(weights: Sequence[NDArray[np.float64]], population: int) -> NDArray[np.float64]:
    """The weights of 0 to `population` requests in some pools together; without a pool, nobody can be there."""
    if not weights:
        return np.concatenate(([1.0], np.zeros(population)))
    return reduce(lambda one, other: np.convolve(one, other)[: population + 1], weights)
