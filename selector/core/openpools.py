"""Pools to which requests come at random: how many are there, and what it costs that some are turned away.

Clients come whatever happens, and the requests of an arm fill its backends one after the other. With r(n) the rate at
which n requests are served so and R what is asked for, n of them are there with probability

    π(n) ∝ Π_{j ≤ n} R / r(j),   n ≤ B

whatever the distribution of their lengths (Kelly, Reversibility and Stochastic Networks, 1979, section 3.3), and the
share β = π(B) finds no place and goes to the next arm. Rates hardly rise any more where backends are nearly full, so n
varies more than arrivals do: a pool that holds what is asked for in the mean turns away some of it time and again.

What is turned away comes in bunches. Near B the rate is about r(B), so the times between two such requests are those of
a queue M/M/1 between two arrivals that find B there, one passage down and up again at a time. With everything in
requests in the time that one takes where it goes (A = R s, H = r(B) s at s seconds a token) and φ the Laplace transform
of such a time at 1,

    g = (A + H + 1 − √((A + H + 1)² − 4 A H)) / 2 H,   φ = A / (A + H + 1 − H g)

Of those turned away M = β A are there in the mean, if nothing turns them away again, and their variance is z M with
z = 1 / (1 − φ) − M (infinitely many servers: Takács, Introduction to the Theory of Queues, 1962, chapter 3). With a
negative binomial distribution of that mean and variance, any are there for the share

    f = 1 − z^(−M / (z − 1))

of the time. An arm that rests else is woken for so long, for all its weights and a few requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from selector.core.poolload import Demand, Mix, PoolCurve

_NOTHING_FRAC = 1e-4
"""A smaller share of what is asked for does not count."""


class Asked(NamedTuple):
    """What one demand asks for."""

    demand: Demand
    tokens_per_s: float
    arms: tuple[str, ...]
    """By preference, at least one."""


class MeanRun(NamedTuple):
    """All pools together, in the mean."""

    requests: float
    """In the system."""
    power_w: float
    """Above idle."""
    tokens_per_s: float
    """Less than asked for where some requests find no place at all."""
    woken: tuple[str, ...]
    """Arms that serve only what others turn away."""


class Places:
    """The equal backends of one arm, filled one after the other by requests for so many tokens per second."""

    __slots__ = ("_asked", "_most", "away_frac", "power_w", "requests")

    def __init__(self, curve: PoolCurve, backends: int, tokens_per_s: float) -> None:
        """The rate is above 0."""
        table = _table(curve, backends)
        logs = table.there * math.log(tokens_per_s) - table.log_rates
        chances = np.exp(logs - logs.max())
        chances /= chances.sum()
        self._asked, self._most = tokens_per_s, table.most_tokens_per_s
        self.requests = float(chances @ table.there)
        """There in the mean."""
        self.power_w = float(chances @ table.powers_w)
        """Above idle."""
        self.away_frac = float(chances[-1])
        """β above."""

    @property
    def away(self) -> float:
        """Tokens per second of the requests that are turned away."""
        return self._asked * self.away_frac

    def busy_frac(self, part: float, s_per_token: float) -> float:
        """f above, for a part of what is turned away, where a token takes that long."""
        asked, most = self._asked * s_per_token, self._most * s_per_token
        there = self.away_frac * asked
        rates = asked + most + 1.0
        again = (rates - math.sqrt(rates * rates - 4.0 * asked * most)) / (2.0 * most)
        variance = (rates - most * again) / (1.0 + most - most * again) - there
        variance, there = 1.0 + part * (variance - 1.0), part * there
        if variance <= 1.0 + 1e-6:
            return 1.0 - math.exp(-there)
        return 1.0 - math.exp(-there * math.log(variance) / (variance - 1.0))


class _Table(NamedTuple):
    """What so many backends do with 0 requests, with 1, and so on until they are full."""

    there: NDArray[np.float64]
    powers_w: NDArray[np.float64]
    log_rates: NDArray[np.float64]
    """Sum of the logarithms of the rates at 1 to n requests."""
    most_tokens_per_s: float


@lru_cache(maxsize=256)
def _table(curve: PoolCurve, backends: int) -> _Table:
    # The same curves are asked about for every assignment of texts to arms.
    batches, rates, powers_w = curve.lines
    there = np.arange(max(1, round(backends * batches[-1])) + 1.0)
    whole = np.floor(there / batches[-1] + 1e-9)
    part = there - whole * batches[-1]
    served = whole * rates[-1] + np.interp(part, batches, rates)
    return _Table(
        there,
        whole * powers_w[-1] + np.interp(part, batches, powers_w),
        np.concatenate(([0.0], np.cumsum(np.log(served[1:])))),
        float(served[-1]),
    )


class _Filled(NamedTuple):
    """The pool of one arm with what is asked of it first: backends that are full, and what they turn away on others."""

    requests: float
    power_w: float
    away_frac: float
    last: Places
    """Those that turn requests away from the pool."""

    @classmethod
    def of(cls, curve: PoolCurve, backends: int, tokens_per_s: float) -> _Filled:
        """Requests stay where they are: the backends beyond the full ones are awake while these have a place again."""
        full = min(backends, max(1, int(tokens_per_s / curve.most_tokens_per_s)))
        first = Places(curve, full, tokens_per_s)
        if full == backends or first.away_frac <= _NOTHING_FRAC:
            return cls(first.requests, first.power_w, first.away_frac, first)
        second = Places(curve, backends - full, first.away)
        taken = first.away - second.away
        requests, power_w = _with_guests(curve, backends - full, 0.0, [_Guests(first, taken)])
        return cls(first.requests + requests, first.power_w + power_w, first.away_frac * second.away_frac, second)


class _Guests(NamedTuple):
    """What comes to a pool from another that turned it away."""

    host: Places
    tokens_per_s: float


def mean_open_run(
    asked: Sequence[Asked], backends: Mapping[str, int], curve_of: Callable[[str, Mix], PoolCurve]
) -> MeanRun:
    """All that is asked for, each demand on its first arm and what that turns away on the next ones.

    `backends` are those of each arm. Demands are given their places on further arms in order.
    """
    first: dict[str, list[tuple[Demand, float]]] = {}
    for each in asked:
        if each.tokens_per_s > 0.0:
            first.setdefault(each.arms[0], []).append((each.demand, each.tokens_per_s))
    pools = {arm: _Filled.of(curve_of(arm, mix), backends[arm], _total(mix)) for arm, mix in first.items()}
    mixes = {arm: [(d, rate * (1.0 - pools[arm].away_frac)) for d, rate in mix] for arm, mix in first.items()}
    own = {arm: _total(mix) for arm, mix in mixes.items()}
    guests: dict[str, list[_Guests]] = {}
    for each in asked:
        if each.tokens_per_s <= 0.0:
            continue
        host = pools[each.arms[0]].last
        rest = each.tokens_per_s * pools[each.arms[0]].away_frac
        for arm in each.arms[1:]:
            if rest <= _NOTHING_FRAC * each.tokens_per_s:
                break
            there = mixes.get(arm, [])
            mix = [*there, (each.demand, rest)]
            joined = Places(curve_of(arm, mix), backends[arm], _total(mix))
            taken = rest - joined.away
            if taken > 0.0:
                mixes[arm] = [*there, (each.demand, taken)]
                guests.setdefault(arm, []).append(_Guests(host, taken))
                rest -= taken
            host = joined
    requests = sum(each.requests for each in pools.values())
    power_w = sum(each.power_w for each in pools.values())
    for arm, who in guests.items():
        more = _with_guests(curve_of(arm, mixes[arm]), backends[arm], own.get(arm, 0.0), who)
        requests += more[0]
        power_w += more[1]
    woken = tuple([arm for arm in guests if arm not in first])
    return MeanRun(requests, power_w, sum(_total(mix) for mix in mixes.values()), woken)


def _with_guests(curve: PoolCurve, backends: int, own: float, guests: Sequence[_Guests]) -> tuple[float, float]:
    """(requests, power) that guests add to a pool."""
    more = sum(each.tokens_per_s for each in guests)
    batch, _ = filled(curve, own + more)
    none_frac = 1.0
    for host, rate in guests:
        none_frac *= 1.0 - host.busy_frac(min(1.0, rate / host.away), batch / (own + more))
    room = backends * curve.most_tokens_per_s - own
    frac = max(1.0 - none_frac, min(1.0, more / room if room > 0.0 else 1.0))
    alone, together = filled(curve, own), filled(curve, own + more / frac)
    return frac * (together[0] - alone[0]), frac * (together[1] - alone[1])


def filled(curve: PoolCurve, tokens_per_s: float) -> tuple[float, float]:
    """(requests, power above idle) of full backends and one more, whose requests come and go."""
    whole, rest = divmod(tokens_per_s, curve.most_tokens_per_s)
    batch, watts = curve.partial(rest) if rest > 1e-9 else (0.0, 0.0)
    return whole * curve.lines[0][-1] + batch, whole * curve.lines[2][-1] + watts


def _total(mix: Mix) -> float:
    return sum(rate for _, rate in mix)
