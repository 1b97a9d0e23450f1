"""What is kept for whoever looks is what the log has, under the event's name."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from selector.core.types import Decision
from selector.router.journal import Journal
from tests.fleets import ENDED, request_view


class Log:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Mapping[str, object]]] = []

    def write(self, event: str, fields: Mapping[str, object]) -> None:
        self.events.append((event, fields))


@pytest.fixture
def log() -> Log:
    return Log()


def fill(journal: Journal) -> None:
    journal.write("poll", {"t_s": 0.5})
    decision = Decision(backend="b0", reason="cheapest", settings={"budget": 2.0})
    journal.decided(request_view("a"), decision, "none", 1.0, fallback=True)
    journal.settings("b0", {"budget": 2.0}, "refused", "cheapest", 1.5)
    journal.ended(ENDED, 2.0)


def test_the_log_gets_everything_in_order(log: Log) -> None:
    fill(Journal(log))  # type: ignore[arg-type] # a log that writes nowhere
    assert [event for event, _ in log.events] == ["poll", "decision", "settings", "end"]
    (_, decided), (_, settings), (_, ended) = log.events[1:]
    assert (decided["backend"], decided["arm"], decided["fallback"]) == ("b0", "none", True)
    assert (decided["reason"], decided["settings"]) == ("cheapest", {"budget": 2.0})
    assert (settings["result"], settings["why"], settings["t_s"]) == ("refused", "cheapest", 1.5)
    assert ended == {"t_s": 2.0, "outcome": ENDED}


def test_polls_are_not_kept_for_people(log: Log) -> None:
    journal = Journal(log)  # type: ignore[arg-type] # a log that writes nowhere
    fill(journal)
    assert list(journal.recent) == [{"event": event, **fields} for event, fields in log.events[1:]]


def test_without_a_log_the_last_events_are_kept_all_the_same() -> None:
    journal = Journal(None)
    for _ in range(100):
        fill(journal)
    assert len(journal.recent) == 200
    assert journal.recent[-1] == {"event": "end", "t_s": 2.0, "outcome": ENDED}
