"""Whether a request that failed before its first byte is sent again, and after how long: without I/O.

A retry costs the backends that still work, so all retries together come from one budget: a share of the requests there
are, and a little per second. When everything fails the budget is soon empty, and failures are told at once instead of
being multiplied. The pause before a retry is drawn from 0 to a bound that doubles ("full jitter"), so that requests
that failed together do not come back together.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from selector.files.faults import Faults


class Denied(StrEnum):
    """Why there is no retry."""

    ATTEMPTS = "attempts"
    """The request was sent often enough."""
    BUDGET = "budget"
    """Retries are too large a share of the requests already."""
    UNSAFE = "unsafe"
    """The backend may have begun, and beginning twice is not the same as once."""
    NO_BACKEND = "no_backend"
    """No other backend can take it."""


class RetryBudget:
    """What retries are taken from. Times in seconds, never going back."""

    def __init__(self, *, per_request: float, per_s: float, burst: float) -> None:
        self._per_request = per_request
        self._per_s = per_s
        self._burst = burst
        self._left = burst
        self._at_s: float | None = None

    def requested(self, now_s: float) -> None:
        """A request came, not a retry of one."""
        self._left = min(self._burst, self.left(now_s) + self._per_request)
        self._at_s = now_s

    def take(self, now_s: float) -> bool:
        """Takes one retry, if there is one."""
        self._left, self._at_s = self.left(now_s), now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def left(self, now_s: float) -> float:
        """Retries there are."""
        passed_s = 0.0 if self._at_s is None else now_s - self._at_s
        return min(self._burst, self._left + passed_s * self._per_s)


def backoff_s(retry: int, options: Faults, draw: float) -> float:
    """The pause before retry number `retry`, from 1 on; `draw` is random in [0, 1)."""
    # The exponent is bounded so that no number of retries overflows.
    bound_ms = min(options.retry_backoff_max_ms, options.retry_backoff_ms * 2.0 ** min(retry - 1, 64))
    return draw * bound_ms / 1e3


class Retries:
    """The budget of one router and the rules above it. `draw` gives random numbers in [0, 1)."""

    def __init__(self, options: Faults, draw: Callable[[], float]) -> None:
        self._options = options
        self._draw = draw
        self.budget = RetryBudget(
            per_request=options.retry_budget_frac,
            per_s=options.retry_budget_per_s,
            burst=options.retry_budget_burst,
        )

    def requested(self, now_s: float) -> None:
        """A request came."""
        self.budget.requested(now_s)

    def ask(self, made: int, now_s: float) -> float | Denied:
        """The pause in seconds before a request that was retried `made` times is sent again, or why it is not."""
        if made >= self._options.retries:
            return Denied.ATTEMPTS
        if not self.budget.take(now_s):
            return Denied.BUDGET
        return backoff_s(made + 1, self._options, self._draw())
