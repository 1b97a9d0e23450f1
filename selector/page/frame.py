"""A plotting area with its axes, ticks, units and grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from selector.page.scales import Scale, label
from selector.page.svg import drawing, element, line, text

WIDTH = 360.0
"""Pixels of every image, the width of a phone: text keeps its size there."""


@dataclass(slots=True, kw_only=True)
class Frame:
    """One plotting area. `x_label` and `y_label` name quantity and unit."""

    x_label: str
    y_label: str
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    height: float = 240.0
    x_log: bool = False
    y_log: bool = False
    left: float = 48.0
    marks: list[str] = field(default_factory=list)
    """What is drawn inside, in order."""
    x: Scale = field(init=False)
    y: Scale = field(init=False)

    def __post_init__(self) -> None:
        self.x = Scale(*self.x_range, self.left, WIDTH - 12.0, self.x_log)
        self.y = Scale(*self.y_range, self.height - 38.0, 20.0, self.y_log)

    @property
    def bottom(self) -> float:
        """Pixels of the x axis."""
        return self.y.start

    def svg(self, title: str, description: str, *, x_ticks: Sequence[tuple[float, str]] | None = None) -> str:
        """The image: axes and grid behind the marks. `x_ticks` are (value, words) where numbers are not what counts."""
        ticks = x_ticks if x_ticks is not None else [(tick, label(tick)) for tick in self.x.ticks()]
        grid = [
            line(self.left, self.y(tick), self.x.end, self.y(tick), stroke="#e2e2e2") for tick in self.y.ticks(4)
        ] + [line(self.x(tick), self.y.end, self.x(tick), self.bottom, stroke="#eeeeee") for tick, _ in ticks]
        axes = [
            line(self.left, self.bottom, self.x.end, self.bottom, stroke="#555555"),
            line(self.left, self.y.end, self.left, self.bottom, stroke="#555555"),
            *(
                text(label(tick), self.left - 5, self.y(tick) + 4, anchor="end", class_="small")
                for tick in self.y.ticks(4)
            ),
            *(text(words, self.x(tick), self.bottom + 15, anchor="middle", class_="small") for tick, words in ticks),
            text(self.y_label, 4, 11),
            text(self.x_label, self.x.end, self.height - 5, anchor="end"),
        ]
        return drawing(
            *grid,
            element("g", *self.marks),
            *axes,
            width=WIDTH,
            height=self.height,
            title=title,
            description=description,
        )
