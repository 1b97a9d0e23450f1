"""What every page draws with: fronts, scales, series that can be told apart, escaped markup."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selector.page.front import Point, unbeaten
from selector.page.scales import Scale, label, linear_ticks, log_ticks, padded
from selector.page.styles import ENERGY_COLOURS, line_style, marker, shade, shades
from selector.page.svg import element, words

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
