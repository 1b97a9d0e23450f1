"""A circuit breaker: a backend under which requests keep failing gets none for a while, then one to try it.

    closed ──failures in a row──▶ open ──its time is over──▶ half open ──a request is sent──▶ (trying)
      ▲                             ▲                            ▲  ▲                          │ │ │
      │                             └────────fails───────────────│──│──────────────────────────┘ │ │
      └─────────────────────────────────────succeeds─────────────│──│────────────────────────────┘ │
                                                                 │  └──ends without a verdict──────┘
Polls do not close it: a server may answer `/ready` and fail every request. Without I/O and without a clock: times come
in, in seconds, and never go back. A breaker that opens again soon after it closed stays open twice as long as before.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from selector.files.faults import Faults


class Circuit(StrEnum):
    """State of a breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitBreaker:
    """One backend's. Methods return whether `admits` or `reason` changed."""

    def __init__(self, options: Faults, draw: Callable[[], float]) -> None:
        """`draw` gives random numbers in [0, 1): routers that share a backend should not all try it at once."""
        self._limit = options.breaker_failures
        self._open_s = options.breaker_open_s
        self._open_max_s = options.breaker_open_max_s
        self._draw = draw
        self.circuit = Circuit.CLOSED
        self.reason: str | None = None
        """Why no request is admitted; `None` if one is."""
        self.openings = 0
        """Times it opened."""
        self._failures = 0
        self._in_a_row = 0
        """Openings without a quiet time in between."""
        self._last_open_s = 0.0
        self._due_s = 0.0
        """When it is half open, if it is open; until when an opening counts as one more in a row, if it is closed."""
        self._trying = False

    @property
    def admits(self) -> bool:
        """Whether requests may be sent."""
        return self.reason is None

    def failed(self, why: str, now_s: float) -> bool:
        """A request failed for a reason that lies with the backend."""
        if self.circuit is Circuit.OPEN:
            return False  # sent before it opened
        self._failures += 1
        if self.circuit is Circuit.CLOSED and self._failures < self._limit:
            return False
        self._in_a_row = self._in_a_row + 1 if self.circuit is Circuit.HALF_OPEN or now_s < self._due_s else 1
        longest_s = min(self._open_max_s, self._open_s * 2.0 ** min(self._in_a_row - 1, 64))
        self._last_open_s = longest_s * (0.5 + 0.5 * self._draw())
        self._due_s = now_s + self._last_open_s
        self.circuit, self._trying = Circuit.OPEN, False
        self.openings += 1
        self.reason = f"circuit breaker open after {self._failures} failures in a row: {why}"
        return True

    def succeeded(self, now_s: float) -> bool:
        """A request was answered."""
        if self.circuit is Circuit.OPEN:
            return False  # sent before it opened
        self._failures = 0
        if self.circuit is Circuit.CLOSED:
            return False
        self.circuit, self._trying = Circuit.CLOSED, False
        self._due_s = now_s + self._last_open_s
        changed, self.reason = self.reason is not None, None
        return changed

    def tick(self, now_s: float) -> bool:
        """Looks at the time."""
        if self.circuit is not Circuit.OPEN or now_s < self._due_s:
            return False
        self.circuit, self.reason = Circuit.HALF_OPEN, None
        return True

    def sent(self) -> bool:
        """A request was sent: half open, it is the one that tries."""
        if self.circuit is not Circuit.HALF_OPEN or self._trying:
            return False
        self._trying = True
        self.reason = "circuit breaker half open: one request is trying"
        return True

    def left(self) -> bool:
        """A request is over. If nothing was said of how, the next one may try."""
        if self.circuit is not Circuit.HALF_OPEN or not self._trying:
            return False
        self._trying, self.reason = False, None
        return True
