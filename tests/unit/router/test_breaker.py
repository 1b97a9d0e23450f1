"""The circuit breaker of one backend."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from selector.files.faults import Faults
from selector.router.breaker import Circuit, CircuitBreaker

OPTIONS = Faults(breaker_failures=3, breaker_open_s=1.0, breaker_open_max_s=8.0)


def longest() -> float:
    """A draw that makes a breaker stay open for all of its time, but for a rounding."""
    return 1.0 - 2.0**-53


def opened(now_s: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker(OPTIONS, longest)
    for _ in range(3):
        breaker.failed("it broke", now_s)
    assert breaker.circuit is Circuit.OPEN
    return breaker


def test_it_opens_after_failures_in_a_row_and_says_why() -> None:
    breaker = CircuitBreaker(OPTIONS, longest)
    assert [breaker.failed("no", 0.0), breaker.failed("no", 0.0)] == [False, False]
    breaker.succeeded(0.0)
    assert [breaker.failed("no", 0.0), breaker.failed("no", 0.0)] == [False, False]
    assert breaker.admits
    assert breaker.failed("it broke", 0.0)
    assert not breaker.admits
    assert breaker.reason == "circuit breaker open after 3 failures in a row: it broke"
    assert breaker.openings == 1


def test_what_was_sent_before_it_opened_says_nothing_any_more() -> None:
    breaker = opened()
    assert not breaker.failed("late", 0.5)
    assert not breaker.succeeded(0.5)
    assert breaker.circuit is Circuit.OPEN
    assert breaker.openings == 1


def test_one_request_tries_it_and_its_success_closes_it() -> None:
    breaker = opened()
    assert not breaker.tick(0.9)
    assert breaker.tick(1.0)
    assert (breaker.circuit, breaker.admits) == (Circuit.HALF_OPEN, True)
    assert breaker.sent()
    assert not breaker.admits
    assert breaker.succeeded(1.1)
    assert (breaker.circuit, breaker.admits) == (Circuit.CLOSED, True)
    assert not breaker.left()


def test_a_try_that_fails_opens_it_for_twice_as_long_up_to_a_limit() -> None:
    breaker, now_s = opened(), 0.0
    for open_s in (1.0, 2.0, 4.0, 8.0, 8.0):
        assert not breaker.tick(now_s + 0.99 * open_s)
        now_s += open_s
        assert breaker.tick(now_s)
        breaker.sent()
        assert breaker.failed("still", now_s)
        assert not breaker.admits


def test_a_try_without_a_verdict_lets_the_next_one_try() -> None:
    breaker = opened()
    breaker.tick(1.0)
    breaker.sent()
    assert breaker.left()
    assert (breaker.circuit, breaker.admits) == (Circuit.HALF_OPEN, True)
    assert not breaker.left()


def test_a_backend_that_flaps_is_left_alone_for_longer_and_a_quiet_time_forgives_it() -> None:
    def reopened_after(quiet_s: float) -> CircuitBreaker:
        breaker = opened()
        breaker.tick(1.0)
        breaker.sent()
        breaker.succeeded(1.0)
        for _ in range(3):
            breaker.failed("again", 1.0 + quiet_s)
        return breaker

    assert not reopened_after(0.5).tick(1.5 + 1.9)
    assert reopened_after(0.5).tick(1.5 + 2.0)
    assert reopened_after(1.0).tick(2.0 + 1.0)


@given(st.lists(st.tuples(st.sampled_from(["fail", "ok", "sent", "left", "tick"]), st.floats(0, 5)), max_size=100))
def test_it_says_of_every_change_and_comes_back_once_its_time_is_over(steps: list[tuple[str, float]]) -> None:
    breaker, now_s = CircuitBreaker(OPTIONS, longest), 0.0
    for step, passed_s in steps:
        now_s += passed_s
        before = breaker.reason
        match step:
            case "fail":
                changed = breaker.failed("x", now_s)
            case "ok":
                changed = breaker.succeeded(now_s)
            case "sent":
                changed = breaker.sent()
            case "left":
                changed = breaker.left()
            case _:
                changed = breaker.tick(now_s)
        assert changed or breaker.reason == before
        assert breaker.admits or breaker.circuit is not Circuit.CLOSED
    breaker.left()
    breaker.tick(now_s + OPTIONS.breaker_open_max_s)
    assert breaker.admits
