"""Polls of a simulated fleet: when they come, and what they tell the tracker."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

from selector.core.policy import BackendSpec
from selector.core.tracker import FleetTracker
from selector.core.types import LoadSignal
from selector.simulator.server import ServerModel


class Polls:
    """Every `interval_s`, of the backends where something happened since the last one.

    The others would say what they said before, which changes nothing. Nor does it that others run or another cache is
    filled, as all requests are the fleet's own: unless polls are written down, they tell of the queues.
    """

    __slots__ = ("_interval_s", "_number", "_servers", "_specs", "_told_waiting", "_tracker", "changed", "next_s")

    def __init__(
        self, specs: Sequence[BackendSpec], servers: Sequence[ServerModel], tracker: FleetTracker, interval_s: float
    ) -> None:
        self._specs, self._servers, self._tracker = specs, servers, tracker
        self._interval_s = interval_s
        self._number = 1
        self.next_s = interval_s
        self.changed: set[int] = set()
        """Servers where something happened since the last poll."""
        self._told_waiting = [0] * len(specs)
        """Requests waiting by the last poll that was told."""

    def poll(self, quiet_until_s: float) -> float:
        """The poll of `next_s`; gives the next one. Until the given time nothing else happens that it could tell."""
        tracker, told = self._tracker, self._told_waiting
        for index in sorted(self.changed):
            server = self._servers[index]
            waiting = server.waiting
            if waiting != told[index] or tracker.hears_every_poll:
                told[index] = waiting
                signal = LoadSignal(running=server.batch, waiting=waiting, kv_tokens=server.kv_tokens)
                tracker.polled(self._specs[index].name, signal, self.next_s)
        self.changed.clear()
        self._number += 1
        if quiet_until_s < inf:
            self._number = max(self._number, ceil(quiet_until_s / self._interval_s))
        self.next_s = self._number * self._interval_s
        return self.next_s
