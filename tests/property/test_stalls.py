"""What must hold of stalls for any numbers: which way the factor moves, and that dispersion_s is a variance."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from selector.core.stalls import PrefillWork, miss_probability, normal_deviate, slow_factor

deviates = st.floats(0.0, 4.0)
bursts = st.floats(0.0, 50.0)
shares = st.floats(0.0, 1.0)
works = st.floats(1e-3, 100.0)


@given(deviates, shares, bursts, shares, works, st.integers(0, 4), st.floats(1.0, 3.0))
def test_the_factor_moves_one_way_in_every_argument(
    deviate: float, slowness: float, dispersion_s: float, prefill_frac: float, work_s: float, which: int, by: float
) -> None:
    """Later quantiles, more bursts and more prefill stretch more; a longer answer averages its stalls out."""
    first = (deviate, slowness, dispersion_s, prefill_frac, work_s)
    second = [value * by if index == which else value for index, value in enumerate(first)]
    before = slow_factor(*first)
    after = slow_factor(second[0], second[1], second[2], min(second[3], 1.0), second[4])
    assert 1.0 + slowness <= before * (1.0 + 1e-12) < math.inf
    slack = 1e-12 * before
    assert after <= before + slack if which == 4 else after >= before - slack


@given(works, works, works, st.floats(0.1, 3.0))
def test_a_miss_is_likelier_the_tighter_the_target(mean_ms: float, slow_ms: float, target_ms: float, z: float) -> None:
    probability = miss_probability(mean_ms, slow_ms, target_ms, z)
    assert 0.0 <= miss_probability(mean_ms, slow_ms, 2.0 * target_ms, z) <= probability <= 1.0


@given(st.floats(0.5, 0.999), st.floats(0.5, 0.999))
def test_later_quantiles_lie_further_out(one: float, other: float) -> None:
    assert normal_deviate(min(one, other)) <= normal_deviate(max(one, other))


@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.floats(0.0, 5_000.0)), max_size=30), st.floats(2.0, 100.0))
def test_dispersion_s_is_never_negative_and_starts_from_nothing(
    sends: list[tuple[float, float]], window_s: float
) -> None:
    work, now_s = PrefillWork(window_s=window_s), 0.0
    assert work.bursts.dispersion_s == 0.0
    for gap_s, prefill_ms in sends:
        now_s += gap_s
        work.sent(prefill_ms, now_s)
        assert 0.0 <= work.bursts.dispersion_s < math.inf


@given(st.lists(st.floats(0.0, 3.0), min_size=1, max_size=30), st.integers(1, 1_000), st.integers(1, 6))
def test_when_counting_began_does_not_matter(gaps_s: list[float], start_s: int, sends: int) -> None:
    early, late, now_s = PrefillWork(), PrefillWork(), 0.0
    for number, gap_s in enumerate(gaps_s):
        now_s += round(gap_s, 3)
        for _ in range(1 + number % sends):
            early.sent(30.0, round(now_s, 3))
            late.sent(30.0, round(now_s + start_s, 3))
    assert math.isclose(early.bursts.dispersion_s, late.bursts.dispersion_s, rel_tol=1e-9, abs_tol=1e-12)
