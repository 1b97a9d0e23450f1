"""Emulated time.

A machine is emulated at `time_scale` emulated seconds per real second: 1 is real time, 0.5 runs it at half speed (for
a small host that would not keep up), 2 at double speed. Whatever the emulator reports (timestamps, latencies, energy)
is in emulated time; only loop lag is real.

Callbacks due at emulated instants run in the order of those instants, however late the event loop comes to them, so an
emulated machine is late under load but never skips a step and never drifts: every deadline is absolute.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from heapq import heappop, heappush

from selector.emulator.timer import deadline_timer


class Clock(ABC):
    """Emulated time since a start, and callbacks in order of emulated time."""

    def __init__(self, *, start_unix_s: float, time_scale: float) -> None:
        self.time_scale = time_scale
        self._start_unix_s = start_unix_s
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._running = False

    @abstractmethod
    def now_s(self) -> float:
        """Emulated seconds since the start; never runs backwards."""

    @abstractmethod
    def _wake_at(self, when_s: float) -> None:
        """Asks for a `run_due` at `when_s`; the last request counts."""

    def unix_s(self, at_s: float) -> float:
        """What the emulated machine's wall clock says at `at_s`."""
        return self._start_unix_s + at_s

    def unix_now_s(self) -> float:
        """What the emulated machine's wall clock says now."""
        return self.unix_s(self.now_s())

    def call_at(self, when_s: float, callback: Callable[[], None]) -> None:
        """Calls `callback` once, at or after `when_s`."""
        self._sequence += 1
        heappush(self._queue, (when_s, self._sequence, callback))
        if not self._running and self._queue[0][1] == self._sequence:
            self._wake_at(when_s)

    def run_due(self) -> None:
        """Runs what is due now, in order. What becomes due meanwhile waits for the next turn of the event loop."""
        now_s = self.now_s()
        self._running = True
        try:
            while self._queue and self._queue[0][0] <= now_s:
                heappop(self._queue)[2]()
        finally:
            self._running = False
        if self._queue:
            self._wake_at(self._queue[0][0])

    @property
    def next_due_s(self) -> float | None:
        """When the next callback is due; `None` without one."""
        return self._queue[0][0] if self._queue else None


class RealClock(Clock):
    """Follows `time.monotonic()` on the running event loop. `close` it when done."""

    def __init__(self, time_scale: float = 1.0) -> None:
        if not time_scale > 0:
            raise ValueError(f"time scale {time_scale} is not above 0")
        super().__init__(start_unix_s=time.time(), time_scale=time_scale)
        self._start_s = time.monotonic()
        self._timer = deadline_timer(asyncio.get_running_loop(), self.run_due)

    def now_s(self) -> float:
        return (time.monotonic() - self._start_s) * self.time_scale

    def _wake_at(self, when_s: float) -> None:
        self._timer.set(self._start_s + when_s / self.time_scale)

    def close(self) -> None:
        """No callback runs after this."""
        self._timer.close()
        self._queue.clear()
