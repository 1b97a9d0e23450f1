"""95 % intervals of a mean from few independent values.

    Student's t     mean ± t(0.975, n − 1) · s / √n: exact for normal values, which few values cannot show to be normal
    bootstrap       2.5 % and 97.5 % quantiles of the means of 10,000 resamples (Efron & Tibshirani, An Introduction to
                    the Bootstrap, 1993, chapter 13): no shape assumed, but too narrow for few values

Under `FEW` values the interval spans both, so that neither weakness makes it too narrow; from there on it is Student's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict
from scipy.special import stdtrit

FEW = 20
_RESAMPLES = 10_000


class Interval(BaseModel):
    """Both ends included."""

    model_config = ConfigDict(frozen=True)

    low: float
    high: float


def interval95(values: Sequence[float]) -> Interval | None:
    """The interval of the mean of `values`; `None` for fewer than two."""
    if len(values) < 2:
        return None
    found = student95(values)
    if len(values) >= FEW:
        return found
    resampled = bootstrap95(values)
    return Interval(low=min(found.low, resampled.low), high=max(found.high, resampled.high))


def student95(values: Sequence[float]) -> Interval:
    """Student's t interval of the mean of two values or more."""
    count, mean = len(values), float(np.mean(values))
    half = float(stdtrit(count - 1, 0.975)) * float(np.std(values, ddof=1)) / count**0.5
    return Interval(low=mean - half, high=mean + half)


def bootstrap95(values: Sequence[float]) -> Interval:
    """Percentile bootstrap of the mean; the same values always give the same interval."""
    drawn = np.random.default_rng(0).choice(np.asarray(values, dtype=np.float64), (_RESAMPLES, len(values)))
    low, high = np.quantile(drawn.mean(axis=1), (0.025, 0.975))
    return Interval(low=float(low), high=float(high))


def method_words(count: int) -> str:
    """How `interval95` makes the interval of so many values."""
    if count < 2:
        return "none: one seed has no spread"
    if count >= FEW:
        return f"paired t over {count} seeds"
    return f"paired t and bootstrap over {count} seeds, the wider bound of the two on each side"
