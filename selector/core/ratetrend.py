"""The present rate of arrivals, where it rises or falls too: a line fitted to what came, older arrivals fading.

With s the age of an arrival, w the window and A the time since the first, the fading sums M_k = Σ s^k e^(−s/w) of
arrivals at the rate λ(s) = a − b s have the means

    E M_0 = a I_0 − b I_1        E M_1 = a I_1 − b I_2        I_k = ∫ s^k e^(−s/w) ds from 0 to A

which two equations give the rate now, a, and its slope b (weighted least squares of a line; I_k keeps the start of a
window unbiased). A mean over the window alone would be w b behind: half of the load, while a day begins. A slope that
chance explains is not followed: it counts as `chance` says, half at 4 standard deviations. Its variance at a steady
rate is

    var b = D λ (I_1² J_0 − 2 I_0 I_1 J_1 + I_0² J_2) / (I_0 I_2 − I_1²)²        J_k = ∫ s^k e^(−2 s/w) ds

with D the dispersion of the arrivals (`dispersion`). The code measures time in windows: its w is 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from selector.core.chance import believed_frac

_SLOPE_DEVIATIONS = 4.0
"""A slope of so many standard deviations counts half."""
_MOST_TIMES = 3.0
"""The rate now is at most so many times the mean one: what rose from nothing in a straight line comes to about 2."""
_SHORTEST_S = 1.0
"""The first arrival stands at the start of its window; a shorter one would make it a high rate, and any few that come
at once a steep slope."""
_FORGOTTEN = 800.0
"""After so many windows e^(−s/w) is 0 as a number."""


class Trend(NamedTuple):
    """A rate that changes evenly."""

    per_s: float
    """Now."""
    per_s_per_s: float
    """Its slope, less what chance explains."""

    def before(self, seconds: float) -> float:
        """The rate so long ago, or to come where that is below 0; never below 0 itself."""
        return max(0.0, self.per_s - self.per_s_per_s * seconds)


class RateTrend:
    """See the module."""

    __slots__ = ("_since_s", "_sum", "_sum_of_ages", "_then_s", "_window_s")

    def __init__(self, since_s: float, *, window_s: float) -> None:
        self._since_s = self._then_s = since_s
        self._window_s = window_s
        self._sum = self._sum_of_ages = 0.0

    def arrived(self, now_s: float) -> None:
        """A request came; times do not go back."""
        self._fade(now_s)
        self._sum += 1.0

    def age_s(self, now_s: float) -> float:
        """Time since the first arrival that counts."""
        return now_s - self._since_s

    def restart(self, now_s: float, *, age_s: float, per_s: float) -> None:
        """From here on as if arrivals had begun `age_s` ago, and come at a steady rate since then."""
        self._since_s, self._then_s = now_s - age_s, now_s
        i0, i1, _ = _integrals(age_s / self._window_s)
        self._sum = per_s * self._window_s * i0
        self._sum_of_ages = per_s * self._window_s * i1

    def trend(self, now_s: float, dispersion: float) -> Trend:
        """The rate and its slope now, for arrivals of that dispersion (> 0)."""
        self._fade(now_s)
        age_s, window_s = self.age_s(now_s), self._window_s
        age = max(age_s, _SHORTEST_S) / window_s
        i0, i1, i2 = _integrals(age)
        mean = self._sum / i0
        if age_s < _SHORTEST_S:
            return Trend(mean / window_s, 0.0)
        of_0, of_1, of_2 = _integrals(2.0 * age)
        j0, j1, j2 = of_0 / 2.0, of_1 / 4.0, of_2 / 8.0
        rise = i1 * self._sum - i0 * self._sum_of_ages
        variance = dispersion * mean * (i1 * i1 * j0 - 2.0 * i0 * i1 * j1 + i0 * i0 * j2)
        # Where that is too small for a number (a window of ages, next to no arrivals left), no slope can be told.
        if variance <= 0.0:
            return Trend(mean / window_s, 0.0)
        believed = believed_frac(rise * rise / variance, half_at=_SLOPE_DEVIATIONS)
        slope = rise / (i0 * i2 - i1 * i1) * believed
        # The mean stands for the age i1 / i0; a line that went below 0 before ends there.
        now = mean + slope * i1 / i0
        return Trend(min(max(now, 0.0), _MOST_TIMES * mean) / window_s, slope / window_s / window_s)

    def _fade(self, now_s: float) -> None:
        """Ages everything to `now_s`."""
        passed = min((now_s - self._then_s) / self._window_s, _FORGOTTEN)
        keep = math.exp(-passed)
        self._sum_of_ages = (self._sum_of_ages + passed * self._sum) * keep
        self._sum *= keep
        self._then_s = now_s


def _integrals(age: float) -> tuple[float, float, float]:
    """∫ s^k e^(−s) ds from 0 to `age`, for k = 0, 1, 2.

    Up to 0.1 as sums of positive terms: the closed form would subtract what is nearly equal, and a slope is a
    difference of products of the results.
    """
    left = math.exp(-age)
    if age > 0.1:
        age = min(age, _FORGOTTEN)
        return -math.expm1(-age), 1.0 - left * (1.0 + age), 2.0 - left * (2.0 + age * (2.0 + age))
    term = third = age * age * age * left / 3.0
    for divisor in range(4, 12):
        term *= age / divisor
        third += term
    second = (third + age * age * left) / 2.0
    return second + age * left, second, third
