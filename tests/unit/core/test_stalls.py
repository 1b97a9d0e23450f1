"""How bursts of prefill stretch the time between tokens: the formula, and the measure of dispersion it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from statistics import fmean, pstdev

import pytest

from selector.core.stalls import PrefillWork, miss_probability, normal_deviate, slow_factor

PROMPTS_S = (0.01, 0.02, 0.12)
"""Prefill seconds of the prompts below, equally likely: mostly short ones, and a few that stall what runs."""


def dispersion_of(arrivals: Sequence[tuple[float, float]], *, window_s: float) -> float:
    """D after requests that came as (second, prefill seconds)."""
    work = PrefillWork(window_s=window_s)
    for at_s, prefill_s in arrivals:
        work.sent(1e3 * prefill_s, at_s)
    return work.bursts.dispersion_s


def poisson(rate_per_s: float, seconds: float, seed: int) -> list[tuple[float, float]]:
    """Arrivals at random instants, each with one of `PROMPTS_S`."""
    random, at_s, arrivals = Random(seed), 0.0, []
    while (at_s := at_s + random.expovariate(rate_per_s)) < seconds:
        arrivals.append((at_s, random.choice(PROMPTS_S)))
    return arrivals


POISSON_DISPERSION_S = fmean(s * s for s in PROMPTS_S) / fmean(PROMPTS_S)
"""E[s²] / E[s]: D of the work that Poisson arrivals bring, at any rate."""


def busy_period_s(random: Random, work_s: float, rate_per_s: float) -> float:
    """When a request that decodes for `work_s` is done: prefill that comes meanwhile is done first."""
    end_s, at_s = work_s, random.expovariate(rate_per_s)
    while at_s < end_s:
        end_s += random.choice(PROMPTS_S)
        at_s += random.expovariate(rate_per_s)
    return end_s


# ---- the formula


def test_without_bursts_prefill_or_work_only_the_accept_length_slows() -> None:
    for dispersion_s, prefill_frac, work_s in ((0.0, 0.5, 1.0), (2.0, 0.0, 1.0), (2.0, 0.5, 0.0)):
        assert slow_factor(1.28, 0.0, dispersion_s, prefill_frac, work_s) == 1.0
        assert slow_factor(1.28, 0.2, dispersion_s, prefill_frac, work_s) == 1.2
    assert slow_factor(0.0, 0.0, 2.0, 0.5, 1.0) == 1.0, "the mean is not stretched: ρ is in it already"


def test_the_factor_is_that_of_both_variances() -> None:
    variance = 2.0 * 0.3 / (1.5 * (1 - 0.3))
    assert slow_factor(1.2816, 0.0, 2.0, 0.3, 1.5) == pytest.approx(1.0 + 1.2816 * math.sqrt(variance))
    both = 1.0 + math.sqrt(0.4**2 + 1.2816**2 * variance)
    assert slow_factor(1.2816, 0.4, 2.0, 0.3, 1.5) == pytest.approx(both)


def test_a_backend_that_does_nothing_but_prefill_still_has_a_finite_factor() -> None:
    assert math.isfinite(slow_factor(2.3, 0.1, 5.0, 1.0, 0.1))


def test_the_probability_of_a_miss_is_that_of_a_normal_time() -> None:
    assert miss_probability(10.0, 12.0, 12.0, normal_deviate(0.9)) == pytest.approx(0.1)
    assert miss_probability(10.0, 12.0, 10.0, normal_deviate(0.9)) == pytest.approx(0.5)
    assert miss_probability(10.0, 10.0, 10.0, 1.28) == 0.0, "a time that does not vary"
    assert miss_probability(10.0, 10.0, 9.9, 1.28) == 1.0


@pytest.mark.parametrize(("rate_per_s", "work_s"), [(2.0, 1.0), (6.0, 0.5), (6.0, 3.0)])
def test_the_spread_is_that_of_a_simulated_delay_busy_period(rate_per_s: float, work_s: float) -> None:
    random = Random(f"{rate_per_s} {work_s}")
    took_s = [busy_period_s(random, work_s, rate_per_s) for _ in range(8_000)]
    prefill_frac = rate_per_s * fmean(PROMPTS_S)
    mean_s = work_s / (1.0 - prefill_frac)
    assert fmean(took_s) == pytest.approx(mean_s, rel=0.03)
    dispersion_s = POISSON_DISPERSION_S
    spread = slow_factor(1.0, 0.0, dispersion_s, prefill_frac, work_s) - 1.0
    assert spread == pytest.approx(pstdev(took_s) / mean_s, rel=0.15)
    nine_in_ten_s = sorted(took_s)[int(0.9 * len(took_s))]
    at_quantile = slow_factor(normal_deviate(0.9), 0.0, dispersion_s, prefill_frac, work_s)
    assert mean_s * at_quantile == pytest.approx(nine_in_ten_s, rel=0.15)


def test_the_normal_deviate_of_a_quantile() -> None:
    assert normal_deviate(0.5) == 0.0
    assert normal_deviate(0.9) == pytest.approx(1.2816, abs=1e-4)
    assert normal_deviate(0.1) == 0.0, "a target at a low quantile is no promise to be faster than the mean"


# ---- the measure


def test_nothing_is_known_before_two_seconds_were_seen() -> None:
    work = PrefillWork()
    assert work.bursts.dispersion_s == 0.0
    for at_s in (0.1, 0.2, 0.9, 1.1):
        work.sent(40.0, at_s)
        assert work.bursts.dispersion_s == 0.0
    work.sent(40.0, 2.5)
    assert work.bursts.dispersion_s > 0.0, "120 ms in the first second, 40 ms in the next"


def test_equal_work_every_second_is_no_burst() -> None:
    steady = [(second + offset, 0.05) for second in range(60) for offset in (0.0, 0.4, 0.9)]
    assert dispersion_of(steady, window_s=30.0) == pytest.approx(0.0, abs=1e-9)


def test_it_grows_with_the_prompts() -> None:
    arrivals = poisson(3.0, 120.0, seed=1)
    tenfold = [(at_s, 10.0 * prefill_s) for at_s, prefill_s in arrivals]
    assert dispersion_of(tenfold, window_s=30.0) == pytest.approx(10.0 * dispersion_of(arrivals, window_s=30.0))


@pytest.mark.parametrize("rate_per_s", [0.5, 3.0, 20.0])
def test_random_arrivals_have_the_dispersion_of_a_poisson_process(rate_per_s: float) -> None:
    arrivals = poisson(rate_per_s, 20_000.0, seed=2)
    assert dispersion_of(arrivals, window_s=5_000.0) == pytest.approx(POISSON_DISPERSION_S, rel=0.1)


def test_a_part_of_random_arrivals_has_the_same_dispersion() -> None:
    """What a backend sees of a fleet's arrivals."""
    part = poisson(20.0, 20_000.0, seed=2)
    random = Random(3)
    third = [each for each in part if random.random() < 1 / 3]
    whole_s, third_s = dispersion_of(part, window_s=5_000.0), dispersion_of(third, window_s=5_000.0)
    assert third_s == pytest.approx(whole_s, rel=0.1)


def test_quiet_seconds_count() -> None:
    """Work m in one second of four has mean m / 4 and mean square m² / 4, so D = 3 m / 4."""
    every_fourth = [(4.0 * number, 0.1) for number in range(2_000)]
    assert dispersion_of(every_fourth, window_s=500.0) == pytest.approx(0.075, rel=0.01)


def test_a_gap_counts_the_same_as_seconds_with_no_work_in_them() -> None:
    lead = poisson(2.0, 30.0, seed=3)
    silent = [(float(second), 0.0) for second in range(31, 50)]
    jumped, told = ([*lead, *middle, (50.0, 0.1), (51.0, 0.1)] for middle in ([], silent))
    assert dispersion_of(jumped, window_s=30.0) == pytest.approx(dispersion_of(told, window_s=30.0))


def test_a_burst_raises_it_and_is_forgotten() -> None:
    work = PrefillWork(window_s=10.0)
    seen = []
    for second in range(100):
        for _ in range(20 if second == 40 else 1):
            work.sent(50.0, second + 0.5)
        seen.append(work.bursts.dispersion_s)
    assert seen[40] == pytest.approx(0.0, abs=1e-9), "the second under way is not judged yet"
    assert seen[41] > 0.2
    assert all(later < earlier for earlier, later in pairwise(seen[50:]))
    assert seen[-1] < 0.1 * seen[41]


@pytest.mark.parametrize("silence_s", [300.0, 4 * 3_600.0, 30 * 86_400.0])
def test_a_long_silence_is_no_endless_burst(silence_s: float) -> None:
    lead = [(float(second), 0.05) for second in range(60)]
    after = [*lead, (60.0 + silence_s, 0.05), (61.0 + silence_s, 0.05)]
    for seen in range(len(lead), len(after) + 1):
        assert dispersion_of(after[:seen], window_s=30.0) <= 0.05 + 1e-6


def test_prompts_in_one_second_stall_more_than_the_same_prompts_apart() -> None:
    apart = [(float(second), 0.05) for second in range(40)]
    together = [(4.0 * (second // 4), 0.05) for second in range(40)]
    assert dispersion_of(together, window_s=30.0) > 2.0 * dispersion_of(apart, window_s=30.0)


def test_one_burst_is_no_habit_and_many_are() -> None:
    """Ten prompts at once every tenth second: the excess is believed as bursts repeat, near its whole in the end."""

    def excess_after(bursts: int) -> float:
        work = PrefillWork()
        for number in range(bursts):
            for _ in range(10):
                work.sent(100.0, 10.0 * number)
        work.sent(0.0, 10.0 * bursts)
        return work.bursts.excess_s

    # One second of ten holds 1 s of work: mean 0.1, D = 0.9, D₀ = 0.1, so x = 0.8 / 0.1.
    assert excess_after(1) < 0.5 * 8.0
    assert excess_after(60) == pytest.approx(8.0, rel=0.15)
