"""How much arrivals bunch: the variance over the mean of their counts in equal bins of time, learnt as they come.

Of two bins that follow each other, with n and n' arrivals in them,

    q = (n − n')² / (n + n')

is 1 on average when arrivals are independent (given their sum, each falls in either bin with probability a half), and
the variance over the mean of the counts when they come in bunches shorter than a bin. A rate that rises or falls over
many bins adds little to it. The mean of q over recent bins is the estimate, never below the 1 of independent arrivals:
clients that wait for each other's answers come more evenly, but a rate is not known better for that.
"""

from __future__ import annotations

import math

_BINS = 20.0
"""Memory, in pairs of bins."""
_PRIOR_BINS = 4.0
"""Independent until so many pairs say otherwise."""


class CountDispersion:
    """See the module."""

    __slots__ = ("_before", "_bin", "_bin_s", "_count", "_mean", "_pairs", "_since_s")

    def __init__(self, since_s: float, *, bin_s: float) -> None:
        """Bins of `bin_s` seconds (> 0) from `since_s` on."""
        self._since_s, self._bin_s = since_s, bin_s
        self._bin = self._count = 0
        self._before: int | None = None
        self._mean, self._pairs = 1.0, _PRIOR_BINS

    @property
    def value(self) -> float:
        """Variance over mean of the counts, at least 1."""
        return max(1.0, self._mean)

    def arrived(self, now_s: float) -> None:
        """A request came; times do not go back."""
        current = math.floor((now_s - self._since_s) / self._bin_s)
        if current > self._bin:
            self._ended(self._count)
            if current > self._bin + 1:
                self._ended(0)  # and further empty bins tell nothing
            self._bin, self._count = current, 0
        self._count += 1

    def _ended(self, count: int) -> None:
        if self._before is not None:
            change = count - self._before
            q = change * change / (count + self._before)
            self._pairs = min(self._pairs + 1.0, _BINS)
            self._mean += (q - self._mean) / self._pairs
        self._before = count
