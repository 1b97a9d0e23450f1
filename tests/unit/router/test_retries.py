"""Retries come from a budget, and their pauses are random up to a bound that doubles."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from selector.files.faults import Faults
from selector.router.retries import Denied, Retries, RetryBudget, backoff_s

draws = st.floats(0, 1, exclude_max=True)


@given(
    steps=st.lists(st.tuples(st.sampled_from(["request", "retry"]), st.floats(0, 10)), max_size=200),
    per_request=st.floats(0, 1),
    per_s=st.floats(0, 10),
    burst=st.floats(1, 50),
)
def test_no_more_is_ever_taken_than_came_in(
    steps: list[tuple[str, float]], per_request: float, per_s: float, burst: float
) -> None:
    budget = RetryBudget(per_request=per_request, per_s=per_s, burst=burst)
    now_s, requests, taken = 0.0, 0, 0
    for kind, passed_s in steps:
        now_s += passed_s
        if kind == "request":
            budget.requested(now_s)
            requests += 1
        else:
            taken += budget.take(now_s)
        assert -1e-9 <= budget.left(now_s) <= burst
    assert taken <= burst + requests * per_request + now_s * per_s + 1e-6


def test_an_empty_budget_denies_until_requests_or_time_fill_it() -> None:
    budget = RetryBudget(per_request=0.5, per_s=0.1, burst=2)
    assert [budget.take(0.0) for _ in range(3)] == [True, True, False]
    budget.requested(0.0)
    assert not budget.take(0.0)
    budget.requested(0.0)
    assert budget.take(0.0)
    assert not budget.take(9.0)
    assert budget.take(10.5)


@given(retry=st.integers(1, 10_000), draw=draws, base_ms=st.floats(0, 1e3), more_ms=st.floats(0, 1e4))
def test_a_pause_is_within_its_bound(retry: int, draw: float, base_ms: float, more_ms: float) -> None:
    options = Faults(retry_backoff_ms=base_ms, retry_backoff_max_ms=base_ms + more_ms)
    pause_s = backoff_s(retry, options, draw)
    assert 0.0 <= pause_s <= (base_ms + more_ms) / 1e3
    assert pause_s <= base_ms * 2.0 ** min(retry - 1, 500) / 1e3


def test_the_bound_doubles_and_the_whole_of_it_is_used() -> None:
    options = Faults(retry_backoff_ms=10, retry_backoff_max_ms=35)
    assert [backoff_s(retry, options, 0.5) for retry in (1, 2, 3, 4)] == [0.005, 0.010, 0.0175, 0.0175]
    assert backoff_s(1, options, 0.0) == 0.0


def test_a_request_is_not_sent_again_without_end_nor_beyond_the_budget() -> None:
    retries = Retries(Faults(retries=2, retry_budget_burst=3, retry_budget_per_s=0, retry_backoff_ms=8), lambda: 0.5)
    assert [retries.ask(made, 0.0) for made in (0, 1, 2)] == [0.004, 0.008, Denied.ATTEMPTS]
    assert [retries.ask(0, 0.0), retries.ask(0, 0.0)] == [0.004, Denied.BUDGET]
