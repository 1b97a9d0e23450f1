"""Charts from plain numbers: fronts, distributions, scales, and series that can be told apart."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selector.core.quantile import quantile
from selector.simulator.page.charts import Curve, Point, curve_points, distribution, energy_bars, front, unbeaten
from selector.simulator.page.scales import Scale, label, linear_ticks, log_ticks, padded
from selector.simulator.page.styles import ENERGY_COLOURS, line_style, marker, shade, shades
from selector.simulator.page.svg import element, words

STYLE = line_style(0)
numbers = st.floats(0.01, 1.0)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12), st.booleans())
def test_exactly_the_points_that_no_other_beats_are_on_the_front(
    pairs: list[tuple[float, float]], more_is_better: bool
) -> None:
    points = [Point(name=str(n), style=STYLE, x=x, y=y) for n, (x, y) in enumerate(pairs)]
    sign = 1.0 if more_is_better else -1.0

    def beaten(x: float, y: float) -> bool:
        return any((sign * a > sign * x and b <= y) or (sign * a >= sign * x and b < y) for a, b in pairs)

    found = unbeaten(points, more_is_better=more_is_better)
    assert {(point.x, point.y) for point in found} == {(x, y) for x, y in pairs if not beaten(x, y)}
    assert [point.x for point in found] == sorted(point.x for point in found)


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


@given(st.floats(1e-3, 1e6), st.floats(1.001, 1e4), st.integers(2, 8))
def test_ticks_lie_within_the_scale_and_are_not_too_many(low: float, ratio: float, about: int) -> None:
    high = low * ratio
    for ticks in (linear_ticks(low, high, about), log_ticks(low, high, about)):
        assert ticks == sorted(set(ticks))
        assert all(low * 0.99 <= tick <= high * 1.01 for tick in ticks)
        assert 1 <= len(ticks) <= 2 * about + 2
        assert len({label(tick) for tick in ticks}) == len(ticks) or ratio < 1.01


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=5))
def test_padded_bounds_hold_the_values_and_are_no_point(values: list[float]) -> None:
    low, high = padded(values, floor=0.0)
    assert 0.0 <= low <= min(values) and max(values) < high


def test_scales_map_both_ways_of_counting() -> None:
    assert [Scale(0, 10, 100, 200)(value) for value in (0, 5, 10)] == [100, 150, 200]
    assert Scale(1, 100, 0, 2, log=True)(10) == pytest.approx(1)


def lightness(colour: str) -> float:
    """CIE L* of #rrggbb."""
    linear = []
    for part in (colour[1:3], colour[3:5], colour[5:7]):
        value = int(part, 16) / 255
        linear.append(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return 116 * luminance ** (1 / 3) - 16 if luminance > 0.008856 else 903.3 * luminance


def test_fills_are_told_apart_without_colour() -> None:
    for count in range(2, 7):
        values = [lightness(fill) for fill in shades(count)]
        assert all(after - before > 8 for before, after in pairwise(values))
    for one, other in combinations(ENERGY_COLOURS.values(), 2):
        assert abs(lightness(one) - lightness(other)) > 14
    assert [lightness(shade(part / 4)) for part in range(5)] == sorted(
        (lightness(shade(part / 4)) for part in range(5)), reverse=True
    )


def test_policies_are_told_apart_by_more_than_colour() -> None:
    styles = [line_style(number) for number in range(56)]
    assert len(set(styles)) == 56
    assert len({(style.dash, style.marker) for style in styles[:14]}) == 14
    assert len({marker(style, 0.0, 0.0) for style in styles[:7]}) == 7


def test_text_and_attributes_are_escaped() -> None:
    assert element("p", words('<b> & "x"'), title='"><script>') == (
        '<p title="&quot;&gt;&lt;script&gt;">&lt;b&gt; &amp; "x"</p>'
    )
    assert (
        element("path", stroke_width=1.2345, class_="a", aria_label=None)
        == '<path stroke-width="1.23" class="a"></path>'
    )
