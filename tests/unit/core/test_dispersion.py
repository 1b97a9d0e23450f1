"""How much arrivals bunch."""

from __future__ import annotations

from random import Random

import pytest

from selector.core.dispersion import CountDispersion


def of_independent(bunch: int, *, seed: int = 1, seconds: float = 3_000.0) -> list[float]:
    """The values seen with bunches of so many requests that come at random, twice a second."""
    random, dispersion, now_s, seen = Random(seed), CountDispersion(0.0, bin_s=3.0), 0.0, []
    while (now_s := now_s + random.expovariate(2.0)) < seconds:
        for _ in range(bunch):
            dispersion.arrived(now_s)
        seen.append(dispersion.value)
    return seen


@pytest.mark.parametrize("bunch", [1, 4, 20])
def test_it_is_the_size_of_bunches_that_come_at_random(bunch: int) -> None:
    seen = of_independent(bunch)
    settled = seen[len(seen) // 10 :]
    assert sum(settled) / len(settled) == pytest.approx(bunch, rel=0.2)


def test_arrivals_more_even_than_random_ones_count_as_independent() -> None:
    dispersion = CountDispersion(0.0, bin_s=3.0)
    for number in range(1_000):
        dispersion.arrived(0.2 * number)
    assert dispersion.value == 1.0


def test_a_slow_rise_is_no_bunching() -> None:
    dispersion, now_s = CountDispersion(0.0, bin_s=3.0), 0.0
    while now_s < 60.0:  # from 1 to 30 a second
        now_s += 1.0 / (1.0 + 0.5 * now_s)
        dispersion.arrived(now_s)
    assert dispersion.value < 1.1


def test_one_pause_counts_twice_however_long_it_is() -> None:
    values = []
    for pause_s in (6.0, 6_000.0):
        dispersion = CountDispersion(0.0, bin_s=3.0)
        for number in range(90):  # 3 a second, and a pause between two bins
            dispersion.arrived(number / 3.0 + (pause_s if number >= 45 else 0.0))
        values.append(dispersion.value)
    assert values[0] == values[1] > 1.0


def test_it_is_independent_until_bins_say_otherwise() -> None:
    dispersion = CountDispersion(10.0, bin_s=3.0)
    for _ in range(500):
        dispersion.arrived(10.0)
    assert dispersion.value == 1.0
