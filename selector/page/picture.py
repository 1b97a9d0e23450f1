"""Panels that share a legend: on a page as HTML, beside it as one image, as SVG or PNG."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from selector.errors import UsageError
from selector.page.document import figure, grid
from selector.page.frame import WIDTH
from selector.page.styles import Style, line_legend, marker
from selector.page.svg import element, line, text, words

_FONT = "DejaVu Sans, Liberation Sans, Arial, sans-serif"
"""A rasteriser knows no `system-ui`; these are on most machines."""
_STYLE = f"text {{ font: 12px {_FONT}; fill: #1a1a1a; }} .small {{ font-size: 11px; }} .bold {{ font-weight: bold; }}"
_GAP, _HEAD, _CAPTION, _LEGEND_ROW = 18.0, 30.0, 22.0, 20.0
_LETTER = 7.4
"""Pixels that a letter takes at most, on average over a name."""
_SWATCH = 42.0
_PNG_ZOOM = 1.5

_VIEW_BOX = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Panels (caption, SVG) of one width under a title; `name` is that of its file."""

    name: str
    title: str
    panels: Sequence[tuple[str, str]]
    legend: Sequence[tuple[str, Style]] = ()
    columns: int = 3
    told: Sequence[str] = ()
    """What to read from it, in sentences."""
    note: str = ""
    """Stands below the legend where no sentence tells it."""

    def html(self) -> str:
        """Sentences, legend and panels for a section of a page."""
        sentences = "".join(element("p", words(sentence)) for sentence in self.told)
        names, styles = [name for name, _ in self.legend], [style for _, style in self.legend]
        legend = line_legend(names, styles) if names else ""
        return sentences + legend + grid([figure(caption, image) for caption, image in self.panels])

    def svg(self) -> str:
        """One image that needs no style sheet: title, panels side by side, legend below."""
        columns = max(1, min(self.columns, len(self.panels)))
        width = max(columns * WIDTH + (columns + 1) * _GAP, _LETTER * 1.2 * len(self.title) + 2 * _GAP)
        top = _HEAD
        parts = [text(self.title, _GAP, 20, class_="bold")]
        for row in range(math.ceil(len(self.panels) / columns)):
            tallest = 0.0
            for column, (caption, image) in enumerate(self.panels[row * columns : (row + 1) * columns]):
                left = _GAP + column * (WIDTH + _GAP)
                parts.append(text(caption, left, top + 14))
                height = _height(image)
                place = f'<svg x="{left:g}" y="{top + _CAPTION:g}" width="{WIDTH:g}" height="{height:g}" '
                parts.append(image.replace("<svg ", place, 1))
                tallest = max(tallest, height)
            top += _CAPTION + tallest + _GAP
        legend, height = _legend(self.legend, top, width)
        if self.note:
            legend.append(text(self.note, _GAP, top + height + 8, class_="small"))
            height += _LEGEND_ROW
        return element(
            "svg",
            element("style", _STYLE),
            element("rect", width=width, height=top + height, fill="#ffffff"),
            *parts,
            *legend,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {width:g} {top + height:g}",
            width=width,
            height=top + height,
        )

    def png(self) -> bytes:
        """The image for places that show no SVG. Raises `UsageError` where the rasteriser is not installed."""
        try:
            resvg = importlib.import_module("resvg_py")
        except ImportError:
            raise UsageError("--png", "needs the package resvg-py", "pip install drafter-selector[png]") from None
        return bytes(resvg.svg_to_bytes(svg_string=self.svg(), zoom=_PNG_ZOOM))


def _height(image: str) -> float:
    found = _VIEW_BOX.search(image)
    assert found is not None, "panels are drawn by selector.page.svg.drawing"
    return float(found[2])


def _legend(entries: Sequence[tuple[str, Style]], top: float, width: float) -> tuple[list[str], float]:
    """Names beside their lines, as many in a row as fit, and the height they take."""
    parts: list[str] = []
    x, y = _GAP, top
    for name, style in entries:
        needed = _SWATCH + _LETTER * len(name) + _GAP
        if x > _GAP and x + needed > width:
            x, y = _GAP, y + _LEGEND_ROW
        parts.append(line(x, y, x + 34, y, stroke=style.colour, stroke_width=2, stroke_dasharray=style.dash))
        parts.append(marker(style, x + 17, y))
        parts.append(text(name, x + _SWATCH, y + 4))
        x += needed
    return parts, (y - top + _LEGEND_ROW if entries else 0.0)
