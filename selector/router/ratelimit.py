"""A limit on the rate of requests that takes one number of memory, however many requests there were.

The generic cell rate algorithm (ITU-T I.371): each request is due one interval after the one before it, and may come
early by as much as a burst allows. It admits the same requests as a bucket of `burst` tokens that is filled evenly.
"""

from __future__ import annotations


class RateLimit:
    """`per_minute` requests on average, `burst` at once. Belongs to one thread."""

    __slots__ = ("_due_s", "_early_s", "_interval_s")

    def __init__(self, per_minute: float, burst: int) -> None:
        self._due_s = float("-inf")
        self.change(per_minute, burst, now_s=0.0)

    def change(self, per_minute: float, burst: int, *, now_s: float) -> None:
        """Other limits from now on; what was taken stays taken, as far as these limits could have let it."""
        self._interval_s = 60.0 / per_minute
        self._early_s = (burst - 1) * self._interval_s
        self._due_s = min(self._due_s, now_s + self._early_s + self._interval_s)

    def take(self, now_s: float) -> float:
        """Takes one request and returns 0; or takes none and returns the seconds until there will be one."""
        due_s = max(self._due_s, now_s)
        wait_s = due_s - self._early_s - now_s
        if wait_s > 1e-9:
            return wait_s
        self._due_s = due_s + self._interval_s
        return 0.0
