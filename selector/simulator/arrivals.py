"""Where the requests of a run come from.

    OpenLoop     each at the time its trace says, however the fleet fares
    ClosedLoop   a number of clients, each of which sends its next request when its last one ended

A load is data and may be run many times; `start` gives the state of one run. The engine asks that state for the next
arrival, and tells it what ended; whatever happens at one instant is settled before the arrivals of that instant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite
from typing import Protocol

from selector.errors import DomainError
from selector.simulator.run import SimulatedRequest


class Arrivals(Protocol):
    """The arrivals of one run."""

    next_s: float
    """When to call `take` next, as far as known now; infinite when nothing is to come unless something ends."""

    def take(self) -> tuple[int, SimulatedRequest] | None:
        """The request that arrives at `next_s` and its number in the load; `None` when none does after all."""
        ...

    def ended(self, at_s: float, *, refused: bool = False) -> None:
        """A request that was taken ended, or was refused by the policy."""
        ...


class Load(Protocol):
    """Either of the two."""

    @property
    def requests(self) -> Sequence[SimulatedRequest]:
        """All requests that may come."""
        ...

    def start(self) -> Arrivals:
        """The state of a new run."""
        ...


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests in order of their arrival times."""

    requests: Sequence[SimulatedRequest]

    def start(self) -> Arrivals:
        """The state of a new run."""
        return _Timed(self.requests)


class _Timed:
    __slots__ = ("_requests", "_taken", "next_s")

    def __init__(self, requests: Sequence[SimulatedRequest]) -> None:
        self._requests = requests
        self._taken = 0
        self.next_s = requests[0].trace.arrival_s if requests else inf

    def take(self) -> tuple[int, SimulatedRequest]:
        number = self._taken
        self._taken = following = number + 1
        self.next_s = self._requests[following].trace.arrival_s if following < len(self._requests) else inf
        return number, self._requests[number]

    def ended(self, at_s: float, *, refused: bool = False) -> None:
        """What ends changes nothing."""


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Clients that wait for their answers, over `requests` in order (their own arrival times do not count).

    `clients_at` gives the number of clients at times in s, linear in between and constant after the last:
    `[(0, 64)]` keeps 64 requests in the system, `[(0, 1), (300, 256), (600, 1)]` is a ramp up and down. A client that
    is one too many goes when its request ended. A refused client tries again after `retry_s`, with its next request.
    The run ends when the last of `requests` did, unless it is ended before.

    Raises `DomainError` for a schedule that is empty, runs backwards, or has less than no clients.
    """

    requests: Sequence[SimulatedRequest]
    clients_at: Sequence[tuple[float, int]]
    retry_s: float = 1.0

    def __post_init__(self) -> None:
        if not self.clients_at:
            raise DomainError("a closed loop needs at least one (time, clients)")
        if not self.retry_s > 0.0:
            raise DomainError(f"retry_s is {self.retry_s}; refused clients must wait before they try again")
        for at_s, clients in self.clients_at:
            if not (isfinite(at_s) and at_s >= 0.0 and clients >= 0):
                raise DomainError(f"a closed loop cannot have {clients} clients at {at_s} s")
        for (before_s, _), (after_s, _) in pairwise(self.clients_at):
            if after_s < before_s:
                raise DomainError(f"the schedule of a closed loop goes back from {before_s} to {after_s} s")

    def start(self) -> Arrivals:
        """The state of a new run."""
        return _Clients(self)


class _Clients:
    __slots__ = ("_away", "_busy", "_clients", "_requests", "_retry_s", "_schedule", "_sent", "next_s")

    def __init__(self, load: ClosedLoop) -> None:
        self._requests = load.requests
        self._retry_s = load.retry_s
        self._schedule = deque(_changes(load.clients_at))
        self._clients = 0
        self._busy = 0
        """Clients whose request has not ended, or who wait to try again."""
        self._away: deque[float] = deque()
        """When refused clients try again."""
        self._sent = 0
        self.next_s = self._schedule[0][0] if load.requests else inf

    def take(self) -> tuple[int, SimulatedRequest] | None:
        at_s = self.next_s
        while self._schedule and self._schedule[0][0] <= at_s:
            self._clients = self._schedule.popleft()[1]
        while self._away and self._away[0] <= at_s:
            self._away.popleft()
            self._busy -= 1
        taken = None
        if self._busy < self._clients:
            taken = self._sent, self._requests[self._sent]
            self._sent += 1
            self._busy += 1
        self._plan(at_s)
        return taken

    def ended(self, at_s: float, *, refused: bool = False) -> None:
        if refused:
            self._away.append(at_s + self._retry_s)
        else:
            self._busy -= 1
        self._plan(at_s)

    def _plan(self, at_s: float) -> None:
        if self._sent == len(self._requests):
            self.next_s = inf
        elif self._busy < self._clients:
            self.next_s = at_s
        else:
            changes_s = self._schedule[0][0] if self._schedule else inf
            self.next_s = min(changes_s, self._away[0]) if self._away else changes_s


def _changes(clients_at: Sequence[tuple[float, int]]) -> Iterator[tuple[float, int]]:
    """The schedule as steps: (time, clients from then on). A line reaches each whole number at its own time."""
    yield clients_at[0]
    for (start_s, before), (end_s, after) in pairwise(clients_at):
        way = 1 if after > before else -1
        for clients in range(before + way, after + way, way) if after != before else ():
            yield start_s + (clients - before) / (after - before) * (end_s - start_s), clients
