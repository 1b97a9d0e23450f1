"""How slow a request gets at a quantile: its own accept length, and prefill of others that stops it.

While a request decodes for w seconds, prefill work arrives and is done first. The time it takes in all is the delay
busy period of an M/G/1 queue started by the work w: mean w / (1 − ρ), variance V w / (1 − ρ)³ with ρ the share of time
that prefill takes and V the variance of the prefill work that arrives per second (Kleinrock, Queueing Systems I, 1975,
section 5.8). Relative to the mean:

    v = V / (w (1 − ρ)),   V = D ρ        D: variance over mean of the prefill work per second, in seconds

D is measured over the whole fleet (`PrefillWork`), since real arrivals come in bursts. A backend that gets a part of
the requests, picked without regard to each other, sees the same D (thinning keeps variance over mean; exact for Poisson
arrivals of any prompt lengths). With u² the variance of 1 / accept length between requests, relative to its mean, and
both independent, the time between tokens at the normal deviate z is

    T / (a (1 − ρ)) · (1 + z √(u² + v))

Bursts do more than add variance: whoever comes in a burst has the rest of it prefilled before its own next token. A
request finds D − D₀ seconds more work in its second than a random arrival would (D₀ = Σs² / Σs over the prompts'
prefill seconds s, what a Poisson process has for D), half of it behind itself, of which the backend gets the share ρ /
ρ of the fleet. With the excess x = (D − D₀) / ρ of the fleet, an answer of n tokens is later by between 0 and ρ x / n a
token.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

SHORT_ANSWER_FRAC = 1 / 3
"""The answer for which targets are checked, over the mean: it is short ones that a stall pushes over their target. In
the Azure 2023 traces it is about the first quartile (conversation 81 of 201 tokens, code 9 of 28)."""

_MOST_PREFILL_FRAC = 0.95
_PRIOR_SECONDS = 20.0
"""Arrivals are taken as random with the weight of so many seconds: one burst at the start is not yet a habit."""
_UNIFORM_DEVIATION = 12.0**-0.5
"""Standard deviation of what lies evenly between 0 and 1."""


def slow_factor(deviate: float, slowness: float, dispersion_s: float, prefill_frac: float, work_s: float) -> float:
    """1 + z √(u² + v) for a request that decodes for `work_s` seconds on a backend with prefill share `prefill_frac`.

    `slowness` is z u: how much longer than the mean its accept length alone makes it at the quantile.
    """
    if dispersion_s <= 0.0 or prefill_frac <= 0.0 or work_s <= 0.0:
        return 1.0 + slowness
    frac = prefill_frac if prefill_frac < _MOST_PREFILL_FRAC else _MOST_PREFILL_FRAC
    variance = dispersion_s * frac / (work_s * (1.0 - frac))
    return 1.0 + math.sqrt(slowness * slowness + deviate * deviate * variance)


def with_burst(mean_ms: float, factor: float, burst_ms: float, deviate: float) -> tuple[float, float]:
    """(mean, quantile) of a time of `mean_ms`, `factor` times that at the quantile, that a burst makes longer.

    The burst adds between 0 and `burst_ms`, evenly and independently.
    """
    if burst_ms <= 0.0:
        return mean_ms, mean_ms * factor
    mean = mean_ms + 0.5 * burst_ms
    spread, of_burst = mean_ms * (factor - 1.0), deviate * _UNIFORM_DEVIATION * burst_ms
    return mean, mean + math.sqrt(spread * spread + of_burst * of_burst)


def miss_probability(mean_ms: float, slow_ms: float, target_ms: float, deviate: float) -> float:
    """Probability that a time is over a target: normal around `mean_ms`, and `slow_ms` at the normal `deviate`."""
    if slow_ms <= mean_ms or deviate <= 0.0:
        return 0.0 if mean_ms <= target_ms else 1.0
    return 0.5 * math.erfc((target_ms - mean_ms) / (slow_ms - mean_ms) * deviate / math.sqrt(2.0))


@lru_cache(maxsize=64)
def normal_deviate(quantile: float) -> float:
    """z with Φ(z) = `quantile`, at least 0."""
    return max(0.0, NormalDist().inv_cdf(quantile))


class Bursts(NamedTuple):
    """D and x above, of the prefill work of the whole fleet."""

    dispersion_s: float = 0.0
    """Variance over mean of the work in one second."""
    excess_s: float = 0.0
    """By how much D exceeds that of random arrivals, over the share of time that prefill takes of one GPU."""


NO_BURSTS = Bursts()


class PrefillWork:
    """Dispersion of the prefill work sent to a whole fleet, from moments of its seconds that fade over `window_s`."""

    __slots__ = (
        "_bin", "_bin_squares", "_keep", "_mean", "_prompt_squares", "_seconds", "_square", "_weight", "_work_s",
        "bursts",
    )  # fmt: skip

    def __init__(self, *, window_s: float = 30.0) -> None:
        self._keep = math.exp(-1.0 / window_s)
        self._bin: int | None = None
        self._work_s = self._bin_squares = 0.0
        self._weight = self._mean = self._square = self._prompt_squares = 0.0
        self._seconds = 0
        """Since the first request, none faded."""
        self.bursts = NO_BURSTS
        """None before two seconds were seen. Few of them say little of a variance: until more were seen, part of it is
        taken for chance."""

    def sent(self, prefill_ms: float, now_s: float) -> None:
        """A request whose prompt takes `prefill_ms` was sent at `now_s`."""
        second = math.floor(now_s)
        if self._bin is None:
            self._bin = second
        elif second > self._bin:
            self._add(self._work_s, self._bin_squares)
            # The seconds without any work in between count too.
            quiet = self._keep ** (second - self._bin - 1)
            self._weight = self._weight * quiet + (1.0 - quiet) / (1.0 - self._keep)
            self._mean *= quiet
            self._square *= quiet
            self._prompt_squares *= quiet
            self._seconds += second - self._bin
            self._bin, self._work_s, self._bin_squares = second, 0.0, 0.0
            self._judge()
        prefill_s = prefill_ms / 1e3
        self._work_s += prefill_s
        self._bin_squares += prefill_s * prefill_s

    def _add(self, work_s: float, squares: float) -> None:
        self._weight = self._weight * self._keep + 1.0
        self._mean = self._mean * self._keep + work_s
        self._square = self._square * self._keep + work_s * work_s
        self._prompt_squares = self._prompt_squares * self._keep + squares

    def _judge(self) -> None:
        """Works out D and x: between two seconds they stand still, and every decision asks for them."""
        if self._weight < 1.5 or self._mean <= 0.0:
            self.bursts = NO_BURSTS
            return
        dispersion_s = max(0.0, self._square / self._mean - self._mean / self._weight)
        beyond_s = dispersion_s - self._prompt_squares / self._mean
        trust = self._seconds / (self._seconds + _PRIOR_SECONDS)
        self.bursts = Bursts(dispersion_s, trust * max(0.0, beyond_s) * self._weight / self._mean)
