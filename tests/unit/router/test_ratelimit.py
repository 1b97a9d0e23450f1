"""The limiter admits what a bucket of tokens admits, with one number of memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selector.router.ratelimit import RateLimit


def test_a_burst_then_an_even_rate() -> None:
    limit = RateLimit(60.0, 3)
    assert [limit.take(10.0) for _ in range(3)] == [0.0] * 3
    assert limit.take(10.0) == pytest.approx(1.0)
    assert limit.take(10.4) == pytest.approx(0.6)
    assert limit.take(11.0) == 0.0
    assert limit.take(11.0) == pytest.approx(1.0)
    assert [limit.take(100.0) for _ in range(3)] == [0.0] * 3
    assert limit.take(100.0) > 0.0


@given(
    st.sampled_from([1.0, 30.0, 600.0]),
    st.integers(1, 5),
    st.lists(st.floats(0.0, 90.0, allow_nan=False), min_size=1, max_size=60),
)
def test_it_agrees_with_a_bucket_and_its_waiting_time_is_right(
    per_minute: float, burst: int, gaps_s: list[float]
) -> None:
    limit, tokens, now_s = RateLimit(per_minute, burst), float(burst), 0.0
    for gap_s in gaps_s:
        now_s += gap_s
        tokens = min(float(burst), tokens + gap_s * per_minute / 60.0)
        wait_s = limit.take(now_s)
        if abs(tokens - 1.0) > 1e-6:
            assert (wait_s == 0.0) == (tokens > 1.0)
        if wait_s == 0.0:
            tokens -= 1.0
        else:
            assert wait_s == pytest.approx((1.0 - tokens) * 60.0 / per_minute, abs=1e-5)


def test_a_change_keeps_what_was_taken_and_never_waits_for_longer_than_it_would_have() -> None:
    limit = RateLimit(60.0, 100)
    for _ in range(100):
        limit.take(0.0)
    limit.change(60.0, 1, now_s=0.0)
    assert limit.take(0.0) == pytest.approx(1.0)
    limit.change(120.0, 1, now_s=0.25)
    assert limit.take(0.25) == pytest.approx(0.5)
    assert limit.take(0.75) == 0.0
    assert limit.take(0.75) == pytest.approx(0.5)


def test_it_is_one_number_and_two_settings() -> None:
    limit = RateLimit(1e6, 1000)
    for index in range(10_000):
        limit.take(index / 1e4)
    assert [type(getattr(limit, name)) for name in RateLimit.__slots__] == [float] * 3
