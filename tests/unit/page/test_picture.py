"""Panels with a legend as one image."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET

import pytest

from selector.errors import UsageError
from selector.page.frame import Frame
from selector.page.lines import Line, Mark, batch_ticks, draw, log_range
from selector.page.picture import Picture
from selector.page.styles import line_style

SVG = "{http://www.w3.org/2000/svg}"


def panel(height: float = 240.0) -> str:
    frame = Frame(x_label="x, s", y_label="y, J", x_range=(1.0, 10.0), y_range=(1.0, 10.0), height=height, y_log=True)
    marks = [Mark(x=1.0, y=1.0, told="a <mark>"), Mark(x=10.0, y=10.0, told="guessed", sure=False)]
    draw(frame, [Line(name="a", style=line_style(1), marks=marks)])
    return frame.svg("t", "d")


def picture(count: int, **changes: object) -> Picture:
    legend = [(f"arm-{number}", line_style(number)) for number in range(12)]
    data = {"name": "p", "title": "A & B", "panels": [(f"panel {n}", panel()) for n in range(count)], "legend": legend}
    return Picture(**{**data, **changes})  # type: ignore[arg-type]  # a test's shorthand


@pytest.mark.parametrize(("count", "columns", "rows"), [(1, 1, 1), (3, 3, 1), (5, 3, 2), (2, 4, 1)])
def test_panels_stand_in_rows_inside_the_image(count: int, columns: int, rows: int) -> None:
    root = ET.fromstring(picture(count, columns=columns, note="hollow: outside").svg())
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    placed = [(float(one.attrib["x"]), float(one.attrib["y"]), one) for one in root.findall(f"{SVG}svg")]
    assert len(placed) == count and len({y for _, y, _ in placed}) == rows
    for x, y, one in placed:
        assert x + float(one.attrib["width"]) <= width and y + float(one.attrib["height"]) <= height
    for text in root.findall(f"{SVG}text"):
        assert 0 < float(text.attrib["x"]) < width and 0 < float(text.attrib["y"]) < height
    assert {f"arm-{number}" for number in range(12)} <= {text.text for text in root.iter(f"{SVG}text")}


def test_a_long_title_is_not_cut_off() -> None:
    title = "x" * 90
    assert float(ET.fromstring(picture(1, title=title).svg()).attrib["width"]) > 90 * 7


def test_what_was_not_measured_is_hollow() -> None:
    drawn = panel()
    assert 'fill="#0072B2" stroke="#ffffff"' in drawn and 'fill="#ffffff" stroke="#0072B2"' in drawn
    assert "a &lt;mark&gt;" in drawn


def test_ticks_do_not_stand_on_one_another() -> None:
    marks = [Mark(x=batch, y=1.0, told="") for batch in (1, 2, 4, 48, 64)]
    ticks = batch_ticks([Line(name="a", style=line_style(0), marks=marks)])
    assert [words for _, words in ticks] == ["1", "2", "4", "48"]
    low, high = log_range([2.0, 8.0])
    assert low < 2.0 and high > 8.0


def test_a_png_is_made_where_the_rasteriser_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("resvg_py")
    assert picture(1).png().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(UsageError, match=r"pip install drafter-selector\[png\]"):
        picture(1).png()
