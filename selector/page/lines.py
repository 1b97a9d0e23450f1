"""A chart of lines with markers, from plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selector.page.frame import Frame
from selector.page.styles import Style, marker
from selector.page.svg import path

_ROOM = 1.12
"""By how much a logarithmic axis reaches beyond the values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One value of a line."""

    x: float
    y: float
    told: str
    """Shows when pointed at."""
    sure: bool = True
    """Whether it was measured; drawn hollow otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line, its marks in the order in which they are joined."""

    name: str
    style: Style
    marks: Sequence[Mark]


def log_range(values: Sequence[float]) -> tuple[float, float]:
    """Bounds of a logarithmic axis around `values`, which are above 0; (1, 10) without any."""
    return (min(values) / _ROOM, max(values) * _ROOM) if values else (1.0, 10.0)


def draw(frame: Frame, lines: Sequence[Line], *, size: float = 4.0) -> None:
    """Draws the lines into a frame, and then their markers, so that no line hides one."""
    routes = [(line, [(frame.x(mark.x), frame.y(mark.y)) for mark in line.marks]) for line in lines]
    for line, route in routes:
        dash = line.style.dash
        frame.marks.append(path(route, fill="none", stroke=line.style.colour, stroke_width=1.5, stroke_dasharray=dash))
    for line, route in routes:
        for (x, y), mark in zip(route, line.marks, strict=True):
            frame.marks.append(marker(line.style, x, y, mark.told, size=size, hollow=not mark.sure))


def batch_ticks(lines: Sequence[Line]) -> list[tuple[float, str]]:
    """Ticks at the batches that the lines have, those left out that would stand on their neighbour's."""
    batches = sorted({mark.x for line in lines for mark in line.marks})
    ticks: list[float] = []
    for batch in batches:
        if not ticks or batch >= 1.4 * ticks[-1]:
            ticks.append(batch)
    return [(batch, f"{batch:g}") for batch in ticks]
