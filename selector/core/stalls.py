"""How prefill of other requests delays the tokens of a running one, beyond the mean share ρ of time that it takes.

While a request decodes for w seconds, prefill work arrives and is done first. The time it takes in all is the delay
busy period of an M/G/1 queue started by the work w: mean w / (1 − ρ), variance V w / (1 − ρ)³ with V the variance of
the prefill work that arrives per second (Kleinrock, Queueing Systems I, 1975, section 5.8). Relative to the mean:

    v = V / (w (1 − ρ)),   V = c² ρ²        c²: squared coefficient of variation of the prefill work in one second

so that the time between tokens at a normal deviate z is the mean times (1 + z √v). Real arrivals come in bursts: c² is
measured (`PrefillWork`), not taken from a Poisson process.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

SHORT_ANSWER_FRAC = 1 / 3
"""The answer for which targets are checked, over the mean: it is short ones that a stall pushes over their target. In
the Azure 2023 traces it is about the first quartile (conversation 81 of 201 tokens, code 9 of 28)."""

_MOST_PREFILL_FRAC = 0.95


def stall_factor(deviate: float, burstiness: float, prefill_frac: float, work_s: float) -> float:
    """1 + z √v for a request that decodes for `work_s` seconds on a backend with prefill share `prefill_frac`."""
    if burstiness <= 0.0 or prefill_frac <= 0.0 or work_s <= 0.0:
        return 1.0
    free = 1.0 - min(prefill_frac, _MOST_PREFILL_FRAC)
    return 1.0 + deviate * prefill_frac * math.sqrt(burstiness / (work_s * free))


@lru_cache(maxsize=64)
def normal_deviate(quantile: float) -> float:
    """z with Φ(z) = `quantile`, at least 0."""
    return max(0.0, NormalDist().inv_cdf(quantile))


class PrefillWork:
    """Burstiness of the prefill work sent to a whole fleet: moments of its seconds, fading over `window_s` seconds."""

    __slots__ = ("_bin", "_keep", "_mean", "_square", "_weight", "_work_s")

    def __init__(self, *, window_s: float = 30.0) -> None:
        self._keep = math.exp(-1.0 / window_s)
        self._bin: int | None = None
        self._work_s = 0.0
        self._weight = self._mean = self._square = 0.0

    def sent(self, prefill_ms: float, now_s: float) -> None:
        """A request whose prompt takes `prefill_ms` was sent at `now_s`."""
        second = math.floor(now_s)
        if self._bin is None:
            self._bin = second
        elif second > self._bin:
            self._add(self._work_s)
            # The seconds without any work in between count too.
            quiet = self._keep ** (second - self._bin - 1)
            self._weight = self._weight * quiet + (1.0 - quiet) / (1.0 - self._keep)
            self._mean *= quiet
            self._square *= quiet
            self._bin, self._work_s = second, 0.0
        self._work_s += prefill_ms / 1e3

    def _add(self, work_s: float) -> None:
        self._weight = self._weight * self._keep + 1.0
        self._mean = self._mean * self._keep + work_s
        self._square = self._square * self._keep + work_s * work_s

    @property
    def burstiness(self) -> float:
        """c²; 0 before two seconds were seen, and at most that of one busy second among the remembered ones.

        The bound matters after a silence: what came before it fades to nothing, and c² would grow without limit.
        """
        mean_squared = self._mean * self._mean
        if self._weight < 1.5 or mean_squared <= 0.0:
            return 0.0
        return min(max(0.0, self._square * self._weight / mean_squared - 1.0), self._weight)
