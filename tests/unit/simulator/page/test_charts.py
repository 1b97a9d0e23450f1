"""Charts from plain numbers: fronts, distributions, scales, and series that can be told apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selector.core.quantile import quantile
from selector.page.styles import line_style
from selector.simulator.page.charts import Curve, Point, curve_points, distribution, energy_bars, front

STYLE = line_style(0)
numbers = st.floats(0.01, 1.0)


@given(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=300), st.integers(0, 50))
def test_a_distribution_rises_from_the_first_to_the_last_value(values: list[float], never: int) -> None:
    values.sort()
    total = len(values) + never
    points = curve_points(values, total)
    assert points[0][0] == values[0] and points[-1] == (values[-1], len(values) / total)
    assert points == sorted(points)
    for time, share in points:
        # One of several equal values is drawn; the curve is never above the truth.
        assert share <= sum(value <= time for value in values) / total + 1e-12
    half = quantile(values, 0.5)
    assert half is not None and values[0] <= half <= values[-1]


def test_requests_that_never_got_a_value_keep_the_curve_below_100_percent() -> None:
    assert curve_points([1.0, 2.0, 3.0], 4)[-1] == (3.0, 0.75)
    assert curve_points([1.0, 2.0, 3.0], 3)[-1] == (3.0, 1.0)


def test_charts_of_little_or_nothing_are_drawn() -> None:
    empty = distribution([Curve(name="p", style=STYLE, values=[], total=0)], title="t", x_label="x, ms")
    alone = distribution([Curve(name="p", style=STYLE, values=[5.0], total=1)], title="t", x_label="x, ms", target_ms=5)
    same = front([Point(name="p", style=STYLE, x=1.0, y=1.0)] * 2, title="t", by_attainment=True)
    zero = front([Point(name="p", style=STYLE, x=0.0, y=1.0)], title="t", by_attainment=True)
    for drawn in (empty, alone, same, zero, energy_bars([("p", {"decode": 1.0, "idle": 0.0})], title="t")):
        assert "nan" not in drawn and "inf" not in drawn


def test_the_front_says_values_where_pointed_at() -> None:
    drawn = front([Point(name="a<b", style=STYLE, x=0.987, y=0.5)], title="t", by_attainment=True)
    assert "a&lt;b: 0.5000 J/token, 98.7% attained" in drawn
    assert "J per accepted token, idle included" in drawn and "requests within their TBT target, %" in drawn


def test_bars_are_as_long_as_their_energy() -> None:
    drawn = energy_bars([("p", {"decode": 1.0, "prefill": 2.0, "idle": 1.0})], title="t")
    widths = [float(part.split('width="')[1].split('"')[0]) for part in drawn.split("<rect")[1:]]
    assert widths[1] == pytest.approx(2 * widths[0], rel=0.01) and widths[2] == pytest.approx(widths[0], rel=0.01)
