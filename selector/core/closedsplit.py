"""How the clients of one demand are split between the arms that may serve them: at the least joules per token.

To fill one arm to its limit and leave the rest to the next is seldom best where both work anyway: both read their
weights, and on the emptier one more requests cost little. Nor does it make sense to wake the next arm only when the
first is full. With pool i holding n_i requests on k_i backends, evenly, at the rate X_i and the power P_i above idle,
in which what misses its target counts at its price, and with W the idle power of the fleet, the split of N clients with
the least

    J = (W + Σ P_i) / Σ X_i         Σ n_i = N,  n_i within the targets

is that with the least Σ (P_i − J X_i), by which a split is bettered at its own J until it stays (Dinkelbach, On
nonlinear fractional programming, Management Science 13, 1967). The search is local: requests are moved from one pool to
another, many at a time and then fewer, for as long as that helps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple

from selector.core.assignment import Held
from selector.core.plan import VIOLATION_J_PER_TOKEN

_ROUNDS = 4
"""Times that J is worked out anew: it hardly moves after the second."""
_CLEARLY_W = 1e-6


class Part(NamedTuple):
    """What one pool gets."""

    requests: float
    backends: int
    """Those that share them."""


def split(pools: Sequence[Held], population: float, idle_w: float) -> list[Part]:
    """The part of each pool; where there are fewer places than clients, each is full.

    `pools` are in the order in which they are filled at first; `idle_w` is the idle power of the whole fleet.
    """
    there, left = [], population
    for pool in pools:
        there.append(min(pool.backends * pool.curve.full.batch, left))
        left -= there[-1]
    parts = [Part(requests, _fewest(pool, requests)) for pool, requests in zip(pools, there, strict=True)]
    for _ in range(_ROUNDS):
        price = _joules_per_token(pools, parts, idle_w)
        there = _moved(pools, there, price)
        before, parts = parts, [_best(*each, price)[1] for each in zip(pools, there, strict=True)]
        if parts == before:
            break
    return parts


def rate(pool: Held, part: Part) -> float:
    """Tokens per second of a pool with its part."""
    return part.backends * pool.curve.rate_at(part.requests / part.backends)


def _moved(pools: Sequence[Held], requests: Sequence[float], price: float) -> list[float]:
    """Requests by pool after moves that lower the sum of P − J X, J being the `price`."""
    there = list(requests)
    costs = [_best(*each, price)[0] for each in zip(pools, there, strict=True)]
    size = sum(there)
    while size > 0.5:
        for source, target in permutations(range(len(pools)), 2):
            room = pools[target].backends * pools[target].curve.full.batch - there[target]
            moved = min(size, there[source], room)
            if moved <= 0.0:
                continue
            left = _best(pools[source], there[source] - moved, price)[0]
            grown = _best(pools[target], there[target] + moved, price)[0]
            if left + grown < costs[source] + costs[target] - _CLEARLY_W:
                there[source] -= moved
                there[target] += moved
                costs[source], costs[target] = left, grown
        size *= 0.5
    return there


def _best(pool: Held, requests: float, price: float) -> tuple[float, Part]:
    """(P − J X, part) at the number of backends where it is least, J being the `price`."""
    if requests <= 0.0:
        return 0.0, Part(0.0, 1)
    best = math.inf, Part(requests, 1)
    for backends in range(_fewest(pool, requests), pool.backends + 1):
        each = pool.curve.rate_at(requests / backends)
        cost = backends * (_watts(pool, each) - price * each)
        if cost < best[0]:
            best = cost, Part(requests, backends)
    return best


def _joules_per_token(pools: Sequence[Held], parts: Sequence[Part], idle_w: float) -> float:
    tokens_per_s, power_w = 0.0, idle_w
    for pool, part in zip(pools, parts, strict=True):
        served = rate(pool, part)
        tokens_per_s += served
        power_w += part.backends * _watts(pool, served / part.backends)
    return power_w / tokens_per_s


def _watts(pool: Held, tokens_per_s: float) -> float:
    """Power above idle of a backend, and the price of what misses its target."""
    return pool.curve.at(tokens_per_s)[1] + VIOLATION_J_PER_TOKEN * pool.curve.full.missed_frac * tokens_per_s


def _fewest(pool: Held, requests: float) -> int:
    """Backends that hold so many within the targets."""
    return max(1, math.ceil(requests / pool.curve.full.batch - 1e-9))
