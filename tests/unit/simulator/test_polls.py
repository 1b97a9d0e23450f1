"""Polls tell what changed in queues, and skip times at which nothing can have."""

from __future__ import annotations

from math import inf

import pytest

from selector.core.tracker import FleetTracker
from selector.core.types import LoadSignal
from selector.simulator.draws import AcceptDraws
from selector.simulator.job import Job
from selector.simulator.polls import Polls
from selector.simulator.server import ServerModel
from tests.fleets import specs_of

pytestmark = pytest.mark.interpreted


class Heard(FleetTracker):
    """What polls told: time, backend, requests waiting."""

    def __init__(self, hears_every_poll: bool = False) -> None:
        super().__init__(specs_of("none", "none"))
        self.hears_every_poll = hears_every_poll
        self.told: list[tuple[float, str, int]] = []

    def polled(self, backend: str, signal: LoadSignal, now_s: float) -> None:
        self.told.append((now_s, backend, signal.waiting))
        super().polled(backend, signal, now_s)


def fleet_of(tracker: FleetTracker) -> tuple[list[ServerModel], Polls]:
    specs = specs_of("none", "none")
    servers = [
        ServerModel(spec.cost, AcceptDraws(0), max_running_requests=64, max_kv_tokens=100_000, backend=spec)
        for spec in specs
    ]
    return servers, Polls(specs, servers, tracker, 0.5)


def send(server: ServerModel) -> None:
    job = Job(
        key="r", draw_key=0, prompt_tokens=500, output_tokens=100, accept_length=1.0, accept_spread=0.0, arrived_s=0.0
    )
    server.enqueue(job, 0.0)


def test_only_servers_where_something_happened_are_polled_and_only_news_is_told() -> None:
    tracker = Heard()
    servers, polls = fleet_of(tracker)
    for server in servers:
        send(server)
    polls.changed.add(1)
    polls.poll(inf)
    assert tracker.told == [(0.5, "b1", 1)]
    polls.poll(inf)
    polls.changed.add(1)
    polls.poll(inf)
    assert len(tracker.told) == 1, "as many wait as before"
    servers[1].advance(10.0)
    polls.changed.update((0, 1))
    polls.poll(inf)
    assert tracker.told[1:] == [(2.0, "b0", 1), (2.0, "b1", 0)]


def test_where_polls_are_written_down_all_that_changed_tell() -> None:
    tracker = Heard(hears_every_poll=True)
    _, polls = fleet_of(tracker)
    for _ in range(2):
        polls.changed.add(0)
        polls.poll(inf)
    polls.poll(inf)
    assert tracker.told == [(0.5, "b0", 0), (1.0, "b0", 0)]


@pytest.mark.parametrize(
    ("quiet_until_s", "next_s"), [(0.5, 1.0), (0.9, 1.0), (1.0, 1.0), (1.1, 1.5), (10.2, 10.5), (inf, 1.0)]
)
def test_the_next_poll_is_the_first_after_anything_can_happen(quiet_until_s: float, next_s: float) -> None:
    _, polls = fleet_of(Heard())
    assert polls.poll(quiet_until_s) == polls.next_s == next_s
