"""Whether a backend is fit for requests by what it says of itself and how requests fare: a state machine without I/O.

    unavailable ──poll answers, identity right──▶ available
         ▲                                           │ failures in a row ≥ limit, of polls and traffic together
         └───────────────────────────────────────────┘
    any state   ──poll answers, identity wrong──▶ quarantined ──identity right──▶ available

The identity is due for a check at the start, and again after any sign that the server was restarted: a failure, or
counters that went backwards. (The watch looks at it now and then besides.) A backend that is available here may be kept
from requests all the same, by its circuit breaker (`breaker`) or because its peers do better (`outliers`).
"""

from __future__ import annotations

from enum import StrEnum

from selector.router.loads import LoadReport


class State(StrEnum):
    """Of one backend."""

    AVAILABLE = "available"
    UNAVAILABLE = "unavailable"
    QUARANTINED = "quarantined"
    """It answers, but runs another arm than the fleet file says, or another model than before."""
    TRIPPED = "tripped"
    """It answers polls, but its circuit breaker is open."""
    EJECTED = "ejected"
    """It answers, but so much worse than its peers that it is left out for a while."""


class BackendHealth:
    """One backend. Every method returns whether state or reason changed."""

    def __init__(self, *, unhealthy_after_failures: int) -> None:
        self.state = State.UNAVAILABLE
        self.reason: str | None = "not polled yet"
        self.identity_due = True
        self._limit = unhealthy_after_failures
        self._poll_failures = 0
        self._traffic_failures = 0
        self._request_steps: float | None = None

    def poll_failed(self, why: str) -> bool:
        """A poll had no usable answer."""
        self._poll_failures += 1
        return self._failed(why)

    def traffic_failed(self, why: str) -> bool:
        """A request failed for a reason that lies with the backend."""
        self._traffic_failures += 1
        return self._failed(why)

    def traffic_succeeded(self) -> None:
        """A request was answered."""
        self._traffic_failures = 0

    def reported(self, report: LoadReport) -> None:
        """Looks at a load report for signs of a restart."""
        if report.request_steps is not None and report.request_steps < (self._request_steps or 0.0):
            self.identity_due = True
        self._request_steps = report.request_steps

    def poll_succeeded(self, wrong: str | None) -> bool:
        """A poll was answered, and the identity, if it was due, is checked; `wrong` says in what it is."""
        self._poll_failures = 0
        self.identity_due = wrong is not None
        if wrong is not None:
            return self._change(State.QUARANTINED, wrong)
        if self.state is not State.AVAILABLE:
            self._traffic_failures = 0
        return self._change(State.AVAILABLE, None)

    def _failed(self, why: str) -> bool:
        self.identity_due = True
        if self.state is State.AVAILABLE and self._poll_failures + self._traffic_failures < self._limit:
            return False
        if self.state is State.QUARANTINED and self._poll_failures < self._limit:
            return False
        return self._change(State.UNAVAILABLE, why)

    def _change(self, state: State, reason: str | None) -> bool:
        changed = (state, reason) != (self.state, self.reason)
        self.state, self.reason = state, reason
        return changed
