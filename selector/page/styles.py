"""How series are told apart: by colour, dash and marker at once, so that any one of them is enough.

Lines: Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), without its yellow, which is lost on white.
Stacks: shades that differ in lightness in the order they are stacked (cividis, https://doi.org/10.1371/journal.pone.0199239).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi, sin

from selector.page.svg import element, line, words

_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = (None, "6 3", "2 2", "8 3 2 3", "10 2", "4 4 1 4", "1 3")
_MARKERS = ("circle", "square", "triangle", "diamond", "cross", "star", "wedge", "plus")

_CIVIDIS = (
    "#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838",
)  # fmt: skip

ENERGY_COLOURS = {"decode": "#0072B2", "prefill": "#E69F00", "idle": "#D9D9D9"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How one series, such as a policy or an arm, is drawn wherever it appears."""

    colour: str
    dash: str | None
    marker: str


def line_style(number: int) -> Style:
    """The style of the series of that number; the first 56 differ."""
    return Style(
        colour=_COLOURS[number % len(_COLOURS)],
        dash=_DASHES[number % len(_DASHES)],
        marker=_MARKERS[number % len(_MARKERS)],
    )


def shades(count: int) -> list[str]:
    """`count` fills from dark to light."""
    if count == 1:
        return [_CIVIDIS[2]]
    return [_CIVIDIS[round(index * (len(_CIVIDIS) - 1) / (count - 1))] for index in range(count)]


def shade(part: float) -> str:
    """A fill for a share of the largest value: light for little, dark for much; white for nothing."""
    if part <= 0.0:
        return "#ffffff"
    return _CIVIDIS[round((1.0 - min(part, 1.0)) * (len(_CIVIDIS) - 1))]


def marker(
    style: Style, x: float, y: float, title: str | None = None, *, size: float = 5.0, hollow: bool = False
) -> str:
    """The marker of a style at a place, filled unless `hollow`; `title` shows when pointed at."""
    children = [element("title", words(title))] if title else []
    inside, outline = ("#ffffff", style.colour) if hollow else (style.colour, "#ffffff")
    fill = {"fill": inside, "stroke": outline, "stroke_width": 1}
    match style.marker:
        case "circle":
            return element("circle", *children, cx=x, cy=y, r=size, **fill)
        case "square":
            corner = 0.9 * size
            return element("rect", *children, x=x - corner, y=y - corner, width=2 * corner, height=2 * corner, **fill)
        case "cross" | "plus":
            turn = 45 if style.marker == "cross" else 0
            arm = 1.2 * size
            strokes = line(x - arm, y, x + arm, y) + line(x, y - arm, x, y + arm)
            rotate = f"rotate({turn} {x:.2f} {y:.2f})"
            width = 1 if hollow else 3
            return element("g", *children, strokes, stroke=style.colour, stroke_width=width, transform=rotate)
    corners, inner, turn = {
        "triangle": (3, 1.0, -90),
        "wedge": (3, 1.0, 90),
        "diamond": (4, 1.0, -90),
        "star": (5, 0.45, -90),
    }[style.marker]
    points = _polygon(x, y, 1.25 * size, corners, inner, turn)
    return element("polygon", *children, points=" ".join(f"{px:.2f},{py:.2f}" for px, py in points), **fill)


def _polygon(x: float, y: float, radius: float, corners: int, inner: float, turn: float) -> list[tuple[float, float]]:
    points = []
    for index in range(2 * corners if inner < 1.0 else corners):
        far = radius * (inner if inner < 1.0 and index % 2 else 1.0)
        angle = pi * (turn / 180 + index * (1 if inner < 1.0 else 2) / corners)
        points.append((x + far * cos(angle), y + far * sin(angle)))
    return points


def line_legend(names: Sequence[str], styles: Sequence[Style]) -> str:
    """An HTML list of names, each beside its line and marker."""
    items = []
    for name, style in zip(names, styles, strict=True):
        swatch = line(0, 7, 34, 7, stroke=style.colour, stroke_width=2, stroke_dasharray=style.dash)
        picture = element(
            "svg", swatch, marker(style, 17, 7), viewBox="0 0 34 14", width=34, height=14, aria_hidden="true"
        )
        items.append(element("li", picture, words(name)))
    return element("ul", *items, class_="legend")


def fill_legend(names: Sequence[str], fills: Sequence[str]) -> str:
    """An HTML list of names, each beside its fill."""
    items = []
    for name, fill in zip(names, fills, strict=True):
        swatch = element("rect", x=1, y=1, width=16, height=12, fill=fill, stroke="#333333", stroke_width=1)
        picture = element("svg", swatch, viewBox="0 0 18 14", width=18, height=14, aria_hidden="true")
        items.append(element("li", picture, words(name)))
    return element("ul", *items, class_="legend")


STYLE_SHEET = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; background: #fff; color: #1a1a1a;
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .4rem; border-top: 1px solid #ccc; padding-top: 1rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
p { max-width: 46rem; margin: .4rem 0; }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1rem; list-style: none; padding: 0; margin: .6rem 0; }
a { color: #00508a; }
figure { margin: 0; min-width: 0; }
figcaption { font-size: .875rem; font-weight: 600; margin-bottom: .1rem; overflow-wrap: anywhere; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); gap: 1.1rem; }
.grid.wide { grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); max-width: 68rem; }
svg { max-width: 100%; height: auto; display: block; }
figure > svg { width: 100%; max-width: 32rem; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; fill: #1a1a1a; }
svg text.small { font-size: 11px; }
.legend { display: flex; flex-wrap: wrap; gap: .15rem 1.1rem; list-style: none; padding: 0; margin: .4rem 0;
  font-size: .875rem; }
.legend li { display: flex; align-items: center; gap: .4rem; overflow-wrap: anywhere; }
.legend svg { flex: none; }
.scroll { overflow-x: auto; border: 1px solid #ddd; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
.scroll > table { min-width: 100%; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #e4e4e4; vertical-align: top; }
th:first-child, td:first-child, .words { text-align: left; }
td { white-space: nowrap; }
td.words { max-width: 44rem; min-width: 5rem; white-space: normal; overflow-wrap: anywhere; }
.numbers td.words { min-width: 11rem; overflow-wrap: break-word; }
.numbers td.words:last-child { min-width: 22rem; }
.scroll th:first-child, .scroll td:first-child { position: sticky; left: 0; background: #fff; }
thead th { border-bottom: 2px solid #555; vertical-align: bottom; }
td.best { font-weight: 700; }
code { font-size: .875em; overflow-wrap: anywhere; }
details { margin: .6rem 0; }
summary { cursor: pointer; font-weight: 600; overflow-wrap: anywhere; }
.note { font-size: .875rem; color: #444; }
.decision { border-left: 3px solid #999; padding-left: .8rem; margin: 1rem 0; }
@media print { details > * { display: block; } body { max-width: none; } }
"""
