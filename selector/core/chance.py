"""How much of a change counts that chance alone might explain."""

from __future__ import annotations


def believed_frac(square: float, *, half_at: float) -> float:
    """The weight z² / (z² + k²) of a change: a half at k = `half_at` standard deviations, nearly 1 far beyond.

    `square` is z², the square of the change over its variance (at least 0).
    """
    return square / (square + half_at * half_at)


def beyond_frac(deviations: float) -> float:
    """The share of a change of so many standard deviations that is beyond the first one: 0 up to there."""
    return max(0.0, 1.0 - 1.0 / abs(deviations)) if deviations else 0.0
