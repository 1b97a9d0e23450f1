"""Which of several things no other beats in both of two measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selector.page.styles import Style


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One thing that is compared by two measures; `y` is one of which less is better, such as J per accepted token."""

    name: str
    style: Style
    x: float
    y: float


def unbeaten(points: Sequence[Point], *, more_is_better: bool) -> list[Point]:
    """The points such that none is as good in both and better in one, in order of x."""
    sign = 1.0 if more_is_better else -1.0
    found: list[Point] = []
    for point in sorted(points, key=lambda point: (-sign * point.x, point.y)):
        if not found or point.y < found[-1].y:
            found.append(point)
    return sorted(found, key=lambda point: point.x)


def ring_sizes(count: int) -> list[float]:
    """Marker sizes such that markers in one place do not hide one another: large ones are drawn first."""
    return [8.0 - 4.0 * index / max(1, count - 1) for index in range(count)] if count > 1 else [6.0]
