"""Is what was measured smooth and repeatable? Numbers for the report; `roofline` says whether it is possible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from selector.core.cost import ContextSlope, StepCost, StepPoint

_NOISE_FRAC = 0.02
"""A cell may be this much cheaper than a smaller one before it counts as out of order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOneOut:
    """How well a cell is predicted by the others."""

    batch: int
    context_tokens: float
    ms_error_frac: float
    j_error_frac: float
    inside: bool
    """Whether the others surround it; otherwise only their batches do, and its context is extrapolated."""


def leave_one_out(points: Sequence[StepPoint], slope: ContextSlope | None) -> list[LeaveOneOut]:
    """Errors of the interpolation at every cell whose batch lies within those of the others."""
    errors = []
    for point in points:
        others = [other for other in points if other is not point]
        batches = [other.batch for other in others]
        if not others or not min(batches) <= point.batch <= max(batches):
            continue
        guess = StepCost(others, slope).estimate(point.batch, point.context_tokens)
        errors.append(
            LeaveOneOut(
                batch=point.batch,
                context_tokens=point.context_tokens,
                ms_error_frac=guess.step_ms / point.step_ms - 1,
                j_error_frac=guess.step_j / point.step_j - 1,
                inside=not guess.extrapolated,
            )
        )
    return errors


def out_of_order(points: Iterable[tuple[int, int, StepPoint]]) -> list[str]:
    """Cells that cost clearly less than one of a smaller batch, or of a shorter prompt, all else equal.

    `points` are (batch, prompt tokens, cell).
    """
    cells = sorted(points, key=lambda cell: (cell[0], cell[1]))
    lines = [[cell for cell in cells if cell[0] == batch] for batch in sorted({cell[0] for cell in cells})]
    lines += [[cell for cell in cells if cell[1] == tokens] for tokens in sorted({cell[1] for cell in cells})]
    found = []
    for line in lines:
        for (batch0, tokens0, smaller), (batch1, tokens1, larger) in pairwise(line):
            for name in ("step_ms", "step_j"):
                before, after = getattr(smaller, name), getattr(larger, name)
                if after < before * (1 - _NOISE_FRAC):
                    found.append(
                        f"{name} falls from {before:.3f} (batch {batch0}, prompt {tokens0}) "
                        f"to {after:.3f} (batch {batch1}, prompt {tokens1})"
                    )
    return found


def spread_frac(values: Sequence[float]) -> float | None:
    """Largest less smallest over the mean; `None` for a single value."""
    return None if len(values) < 2 else (max(values) - min(values)) / (sum(values) / len(values))


def summary(values: Sequence[float]) -> dict[str, float | int | None]:
    """Median and worst of absolute values."""
    absolute = [abs(value) for value in values]
    return {
        "cells": len(absolute),
        "median": round(median(absolute), 5) if absolute else None,
        "worst": round(max(absolute), 5) if absolute else None,
    }
