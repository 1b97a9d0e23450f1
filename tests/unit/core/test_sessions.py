"""Where a session's prefix is remembered to be."""

from __future__ import annotations

from dataclasses import replace

from selector.core.sessions import Sessions
from tests.fleets import request_view

TURN = replace(request_view(prompt_tokens=900, expected_output_tokens=100.0), session_key="chat")


def test_the_last_turn_counts_until_it_is_forgotten() -> None:
    sessions = Sessions(kept_s=60.0)
    assert sessions.prefix(TURN, 0.0) is None
    sessions.sent(TURN, "b0", 0.0)
    sessions.sent(TURN, "b1", 30.0)
    found = sessions.prefix(TURN, 90.0)
    assert found is not None
    assert (found.backend, found.tokens) == ("b1", 1_000.0)
    assert sessions.prefix(TURN, 90.1) is None


def test_requests_without_a_session_share_nothing() -> None:
    sessions = Sessions(kept_s=60.0)
    sessions.sent(request_view(), "b0", 0.0)
    assert sessions.prefix(request_view(), 0.0) is None


def test_the_longest_unseen_is_forgotten_first() -> None:
    sessions = Sessions(kept_s=1e9)
    sessions.sent(TURN, "b0", 0.0)
    for number in range(20_000):
        sessions.sent(replace(TURN, session_key=f"s{number}"), "b1", 1.0)
    assert sessions.prefix(TURN, 1.0) is None
    assert sessions.prefix(replace(TURN, session_key="s0"), 1.0) is not None
