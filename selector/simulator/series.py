"""Sums of steps whose cost rises linearly, and how many of them fit a budget."""

from __future__ import annotations

import math


def series(steps: int, first: float, slope: float) -> float:
    """first + (first + slope) + … over `steps` terms."""
    return steps * first + slope * (steps * (steps - 1) / 2)


def steps_within(budget: float, first: float, slope: float) -> int:
    """The largest n with `series(n, first, slope)` ≤ budget, at least 0. `first` > 0, `slope` ≥ 0 up to rounding."""
    if budget < first:
        return 0
    if slope <= 1e-12 * first:
        steps = int(budget / first)
    else:
        half = slope / 2
        linear = first - half
        steps = int((-linear + math.sqrt(linear * linear + 4 * half * budget)) / (2 * half))
    # Rounding of the square root can be off by one either way.
    while series(steps + 1, first, slope) <= budget:
        steps += 1
    while steps > 0 and series(steps, first, slope) > budget:
        steps -= 1
    return steps
