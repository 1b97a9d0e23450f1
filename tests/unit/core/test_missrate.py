"""The share of late requests that missed their targets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from selector.core.missrate import MissRate
from selector.core.types import Outcome
from tests.fleets import ENDED


def outcome(tbt_ms: float | None, target_ms: float | None) -> Outcome:
    return replace(ENDED, tbt_ms=tbt_ms, tbt_target_ms=target_ms)


@pytest.mark.parametrize(
    ("tbt_ms", "target_ms", "within"),
    [(8.0, 8.0, True), (8.1, 8.0, False), (8.0, None, None), (None, 8.0, None), (None, None, None)],
)
def test_a_target_is_met_up_to_and_including_it(
    tbt_ms: float | None, target_ms: float | None, within: bool | None
) -> None:
    assert outcome(tbt_ms, target_ms).within_target is within


def test_each_that_ended_counts_a_fiftieth() -> None:
    misses = MissRate(0.1)
    assert (misses.frac, misses.doubted_frac) == (0.0, 0.1), "nobody is known to have missed"
    misses.ended(outcome(9.0, 8.0))
    assert misses.frac == pytest.approx(1 / 50)
    assert misses.doubted_frac == pytest.approx(0.1 + 0.9 / 50)
    misses.ended(outcome(7.0, 8.0))
    assert misses.frac == pytest.approx(1 / 50 * 49 / 50)
    assert misses.doubted_frac == pytest.approx((0.1 + 0.9 / 50) * 49 / 50)


def test_it_comes_to_the_share_that_missed_lately() -> None:
    misses = MissRate(0.5)
    for number in range(1_000):  # first half of them, then every tenth
        misses.ended(outcome(9.0 if number % (2 if number < 500 else 10) == 0 else 7.0, 8.0))
    assert misses.frac == pytest.approx(0.1, abs=0.02)
    assert misses.doubted_frac == pytest.approx(misses.frac), "what was expected at first is forgotten"


def test_a_request_that_had_no_target_or_no_time_between_tokens_tells_nothing() -> None:
    misses = MissRate(0.1)
    misses.ended(outcome(9.0, None))
    misses.ended(outcome(None, 8.0))
    assert (misses.frac, misses.doubted_frac) == (0.0, 0.1)
