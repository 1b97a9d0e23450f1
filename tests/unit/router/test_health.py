"""The state machine of one backend."""

from __future__ import annotations

import pytest

from selector.core.tracker import LoadSignal
from selector.router.health import BackendHealth, State
from selector.router.loads import LoadReport


def available(limit: int = 2) -> BackendHealth:
    health = BackendHealth(unhealthy_after_failures=limit)
    assert health.poll_succeeded(None)
    return health


def state(health: BackendHealth) -> tuple[State, str | None]:
    return health.state, health.reason


def steps(count: float | None) -> LoadReport:
    return LoadReport(signal=LoadSignal(running=0, waiting=0), request_steps=count)


def test_nothing_is_sent_to_a_backend_before_its_first_poll() -> None:
    health = BackendHealth(unhealthy_after_failures=2)
    assert state(health) == (State.UNAVAILABLE, "not polled yet")
    assert health.identity_due
    assert health.poll_failed("no connection")
    assert state(health) == (State.UNAVAILABLE, "no connection")
    assert not health.poll_failed("no connection")


@pytest.mark.parametrize("kinds", ["pp", "tt", "pt", "tp"])
def test_failures_of_polls_and_traffic_count_together(kinds: str) -> None:
    health = available()
    fail = {"p": health.poll_failed, "t": health.traffic_failed}
    assert not fail[kinds[0]]("first")
    assert state(health) == (State.AVAILABLE, None)
    assert health.identity_due
    assert fail[kinds[1]]("second")
    assert state(health) == (State.UNAVAILABLE, "second")


def test_a_success_of_the_same_kind_begins_the_count_anew() -> None:
    health = available()
    for _ in range(5):
        assert not health.poll_failed("x")
        assert not health.poll_succeeded(None)
    for _ in range(5):
        assert not health.traffic_failed("x")
        health.traffic_succeeded()
    assert health.state is State.AVAILABLE


def test_polls_that_succeed_do_not_hide_traffic_that_fails() -> None:
    health = available()
    assert not health.traffic_failed("x")
    assert not health.poll_succeeded(None)
    assert health.traffic_failed("y")
    assert state(health) == (State.UNAVAILABLE, "y")


def test_recovery_forgets_earlier_failures() -> None:
    health = available()
    health.traffic_failed("x")
    health.traffic_failed("y")
    assert health.poll_succeeded(None)
    assert not health.traffic_failed("z")
    assert health.state is State.AVAILABLE


def test_a_wrong_identity_is_quarantined_and_checked_at_every_poll() -> None:
    health = available()
    assert health.poll_succeeded("another arm")
    assert state(health) == (State.QUARANTINED, "another arm")
    assert health.identity_due
    assert not health.poll_failed("x")
    assert health.state is State.QUARANTINED
    assert health.poll_failed("x")
    assert state(health) == (State.UNAVAILABLE, "x")
    assert health.poll_succeeded("another arm")
    assert health.poll_succeeded(None)
    assert state(health) == (State.AVAILABLE, None)
    assert not health.identity_due


def test_counters_that_go_backwards_make_the_identity_due() -> None:
    health = available()
    for count in (None, 5.0, 5.0, 9.0):
        health.reported(steps(count))
        assert not health.identity_due
    health.reported(steps(8.0))
    assert health.identity_due
