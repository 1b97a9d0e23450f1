"""The rate of arrivals now, and how fast it changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random

import pytest

from selector.core.ratetrend import RateTrend

WINDOW_S = 15.0
INDEPENDENT = 1.0
CERTAIN = 1e-9
"""A dispersion next to none: whatever the slope, chance does not explain it."""

Rate = Callable[[float], float]


def steady(_: float) -> float:
    return 200.0


def rising(s: float) -> float:
    return 50.0 + 10.0 * s


def falling(s: float) -> float:
    return 900.0 - 10.0 * s


def evenly(rate: Rate, seconds: float) -> Iterator[float]:
    """Arrivals without any chance: one whenever the integral of `rate`, below 1000 a second, has grown by one."""
    step_s, due = 1e-3, 0.5
    for step in range(round(seconds / step_s)):
        due -= rate(step * step_s) * step_s
        if due <= 0.0:
            due += 1.0
            yield step * step_s


def at_random(rate: Rate, most_per_s: float, seconds: float, seed: int) -> Iterator[float]:
    """Independent arrivals: those at `most_per_s`, thinned."""
    random, now_s = Random(seed), 0.0
    while (now_s := now_s + random.expovariate(most_per_s)) < seconds:
        if random.random() * most_per_s < rate(now_s):
            yield now_s


def after(arrivals: Iterator[float], *, since_s: float = 0.0, window_s: float = WINDOW_S) -> RateTrend:
    found = RateTrend(since_s, window_s=window_s)
    for now_s in arrivals:
        found.arrived(now_s)
    return found


def flat_mean(arrivals: list[float], now_s: float) -> float:
    """What the window alone says, since 0."""
    counted = sum(math.exp((then_s - now_s) / WINDOW_S) for then_s in arrivals)
    return counted / (WINDOW_S * -math.expm1(-now_s / WINDOW_S))


@pytest.mark.parametrize("seconds", [3.0, 5.0, 14.9, 15.1, 40.0, 70.0])
@pytest.mark.parametrize("rate", [steady, rising, falling])
def test_a_straight_line_is_found_at_any_age(rate: Rate, seconds: float) -> None:
    """From the start of a window on, and on both sides of it."""
    trend = after(evenly(rate, seconds)).trend(seconds, CERTAIN)
    assert trend.per_s == pytest.approx(rate(seconds), rel=0.01)
    assert trend.per_s_per_s == pytest.approx(rate(1.0) - rate(0.0), abs=0.8)
    assert trend.before(1.0) == pytest.approx(rate(seconds - 1.0), rel=0.01)


@pytest.mark.parametrize(("start", "slope", "seconds"), [(5.0, 1.0, 30.0), (5.0, 1.0, 60.0), (70.0, -1.0, 50.0)])
def test_random_arrivals_of_a_changing_rate_are_followed(start: float, slope: float, seconds: float) -> None:
    """The mean of the window is a dozen behind; what chance could explain of a slope is all that is held back."""

    def rate(s: float) -> float:
        return start + slope * s

    now, flat = [], []
    for seed in range(40):
        arrivals = list(at_random(rate, max(rate(0.0), rate(seconds)), seconds, seed))
        now.append(after(iter(arrivals)).trend(seconds, INDEPENDENT).per_s)
        flat.append(flat_mean(arrivals, seconds))
    lag = abs(sum(flat) / len(flat) - rate(seconds))
    assert lag > 9.0
    assert abs(sum(now) / len(now) - rate(seconds)) < 0.35 * lag


def test_noise_is_no_slope() -> None:
    """At a steady rate the estimate deviates hardly more than the mean of the window does."""
    now, flat = [], []
    for seed in range(400):
        arrivals = list(at_random(lambda _: 10.0, 10.0, 60.0, seed))
        now.append(after(iter(arrivals)).trend(60.0, INDEPENDENT).per_s)
        flat.append(flat_mean(arrivals, 60.0))

    def deviation(rates: list[float]) -> float:
        return (sum((rate - 10.0) ** 2 for rate in rates) / len(rates)) ** 0.5

    assert sum(now) / len(now) == pytest.approx(10.0, rel=0.01)
    assert deviation(flat) == pytest.approx((10.0 / (2.0 * WINDOW_S)) ** 0.5, rel=0.1)
    assert deviation(now) < 1.15 * deviation(flat)


def deviations_squared(arrivals: Iterator[float], now_s: float, dispersion: float) -> float:
    """z² of the slope, from how much of it is followed: z² / (z² + 16)."""
    found = after(arrivals)
    whole = found.trend(now_s, CERTAIN * CERTAIN).per_s_per_s
    return 16.0 / (whole / found.trend(now_s, dispersion).per_s_per_s - 1.0)


@pytest.mark.parametrize("now_s", [5.0, 20.0, 60.0])
def test_the_deviation_of_a_slope_is_that_of_random_arrivals(now_s: float) -> None:
    squares = [
        deviations_squared(at_random(lambda _: 20.0, 20.0, now_s, seed), now_s, INDEPENDENT) for seed in range(400)
    ]
    assert sum(squares) / len(squares) == pytest.approx(1.0, abs=0.2)


def test_a_slope_of_arrivals_in_bunches_is_believed_less() -> None:
    once, fourfold = (deviations_squared(evenly(rising, 30.0), 30.0, dispersion) for dispersion in (1.0, 4.0))
    assert once == pytest.approx(4.0 * fourfold)


def test_a_slope_of_four_deviations_counts_half() -> None:
    found = after(evenly(rising, 30.0))
    at_four = deviations_squared(evenly(rising, 30.0), 30.0, INDEPENDENT) / 16.0
    halved, whole = found.trend(30.0, at_four), found.trend(30.0, CERTAIN)
    assert halved.per_s_per_s == pytest.approx(0.5 * whole.per_s_per_s, rel=1e-3)


def test_a_rate_is_never_below_nothing() -> None:
    found = after(evenly(lambda s: 60.0 - 2.0 * s, 30.0))
    assert found.trend(34.0, CERTAIN).per_s == 0.0
    assert found.trend(34.0, CERTAIN).before(4.0) > 0.0
    assert found.trend(29.0, CERTAIN).before(-100.0) == 0.0, "to come, by a line that falls"


def test_a_rate_is_at_most_three_times_the_mean() -> None:
    arrivals = [0.0, *[1.999] * 500]  # a line through these would come to four times
    assert after(iter(arrivals)).trend(2.0, INDEPENDENT).per_s == pytest.approx(3.0 * flat_mean(arrivals, 2.0))


def test_what_rises_from_nothing_stays_below_the_bound() -> None:
    for seconds in (5.0, 15.0, 100.0):
        trend = after(evenly(lambda s: 9.0 * s, seconds)).trend(seconds, CERTAIN)
        assert trend.per_s == pytest.approx(9.0 * seconds, rel=0.02)


def test_after_a_restart_only_what_was_given_counts() -> None:
    found = after(evenly(steady, 40.0))
    found.restart(40.0, age_s=3.0, per_s=7.0)
    assert found.age_s(40.0) == 3.0
    now = found.trend(40.0, CERTAIN)
    assert now.per_s == pytest.approx(7.0)
    assert now.per_s_per_s == pytest.approx(0.0, abs=1e-6)
    for number in range(140):  # and goes on so for 20 s
        found.arrived(40.0 + (number + 0.5) / 7.0)
    later = found.trend(60.0, CERTAIN)
    assert found.age_s(60.0) == 23.0
    assert later.per_s == pytest.approx(7.0, rel=0.01)
    assert later.per_s_per_s == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("requests", [1, 10, 5_000])
def test_what_comes_all_at_once_is_no_slope(requests: int) -> None:
    """The first arrival stands at the start of its window: so many in the first second."""
    found = after(iter([7.0] * requests), since_s=7.0)
    for now_s in (7.0, 7.0 + 1e-9, 7.5, 7.999):
        trend = found.trend(now_s, INDEPENDENT)
        assert trend.per_s == pytest.approx(requests, rel=0.04)
        assert trend.per_s_per_s == 0.0


def test_a_long_silence_leaves_nothing_and_breaks_nothing() -> None:
    for silence_s in (600.0, 1e4, 1e7, 1e12):
        found = after(evenly(steady, 20.0))
        trend = found.trend(20.0 + silence_s, INDEPENDENT)
        assert trend.per_s == pytest.approx(0.0, abs=1e-12)
        assert trend.per_s_per_s == pytest.approx(0.0, abs=1e-12)
        found.arrived(20.0 + silence_s)
        assert 0.0 < found.trend(20.0 + silence_s, INDEPENDENT).per_s <= 3.0 / WINDOW_S * 1.01


@pytest.mark.parametrize("window_s", [1e3, 1e5, 1e6, 1e9])
def test_in_a_window_of_ages_all_arrivals_weigh_the_same(window_s: float) -> None:
    """The plain least squares of a line: what its sums differ by is far below what they are."""
    trend = after(evenly(rising, 10.0), window_s=window_s).trend(10.0, CERTAIN)
    assert trend.per_s == pytest.approx(150.0, rel=0.01)
    assert trend.per_s_per_s == pytest.approx(10.0, rel=0.01)


@pytest.mark.parametrize("window_s", [1e100, 1e200, 1e300])
def test_a_window_too_long_for_a_slope_still_has_a_mean(window_s: float) -> None:
    assert after(evenly(steady, 10.0), window_s=window_s).trend(10.0, CERTAIN) == (pytest.approx(200.0), 0.0)


@pytest.mark.parametrize("window_s", [1e-300, 1e-9, 1e-3])
def test_a_window_too_short_for_a_gap_has_forgotten(window_s: float) -> None:
    found = after(evenly(steady, 2.0), window_s=window_s)
    assert found.trend(1e6, CERTAIN) == (0.0, 0.0)


AGES_S = [0.0, 1.0, 2.5, 2.7, 4.0, 6.5, 7.5, 7.6, 7.9]


@pytest.mark.parametrize("window_s", [4.0, 80.0])
def test_it_only_matters_how_long_a_window_is_against_the_age(window_s: float) -> None:
    plain = after(iter(AGES_S), window_s=window_s).trend(8.0, INDEPENDENT)
    slower = after((10.0 * age_s for age_s in AGES_S), window_s=10.0 * window_s).trend(80.0, INDEPENDENT)
    assert plain.per_s == pytest.approx(10.0 * slower.per_s)
    assert plain.per_s_per_s == pytest.approx(100.0 * slower.per_s_per_s)


def test_the_two_ways_to_its_sums_agree_where_they_meet() -> None:
    """At an age of a tenth of the window."""
    below, above = (after(iter(AGES_S), window_s=80.0 * by).trend(8.0, CERTAIN) for by in (1.0 + 1e-9, 1.0 - 1e-9))
    assert below == pytest.approx(above, rel=1e-6)
