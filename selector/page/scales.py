"""Data to pixels, and ticks at round numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps [low, high] of the data onto [start, end] of the image; `log` by ratios, for which both must be above 0."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Pixels of a value; values outside end up outside."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        at = math.log(max(value, 1e-12)) if self.log else value
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Round values within the scale, about so many."""
        return log_ticks(self.low, self.high, about) if self.log else linear_ticks(self.low, self.high, about)


def linear_ticks(low: float, high: float, about: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten within [low, high]."""
    rough = (high - low) / max(1, about)
    power = 10.0 ** math.floor(math.log10(rough))
    # A step of more than a third of the scale can pass it over: then the next smaller one.
    for factor in (10, 5, 2, 1, 0.5, 0.2):
        step = factor * power
        first = math.ceil(low / step - 1e-9)
        found = [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]
        if (step < rough * 1.999 and len(found) >= 2) or factor == 0.2:
            break
    return found


def log_ticks(low: float, high: float, about: int) -> list[float]:
    """Powers of ten within [low, high], with 3, or 2 and 5, times them where those are few; linear in a narrow one."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0)):
        found = [factor * 10.0**decade for decade in decades for factor in factors]
        within = [tick for tick in found if low * 0.999 <= tick <= high * 1.001]
        if len(within) >= min(3, about):
            every = math.ceil(len(within) / (about + 1))
            return within[::every]
    return linear_ticks(low, high, about)


def padded(values: Sequence[float], *, share: float = 0.08, floor: float | None = None) -> tuple[float, float]:
    """Bounds around `values` with room on both sides, never below `floor`; one value gets room too."""
    low, high = min(values), max(values)
    room = (high - low) * share or abs(high) * share or 1.0
    low, high = low - room, high + room
    return (low if floor is None else max(floor, low)), high


def label(value: float) -> str:
    """A tick in few characters: 0.05, 20, 1500, 12k, 3M."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:g}M"
    if size >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{value:.6g}"
