"""One new request per turn of the event loop, in the order they came.

Were a burst of requests decided in one turn, every token that came meanwhile would wait until the last is decided. With
one a turn, tokens pass between two of them.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """Belongs to one event loop."""

    __slots__ = ("_is_taken", "_waiting")

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def mine(self) -> None:
        """Returns in a turn that nobody else has; at once if nobody has this one. Cancelled, it leaves the queue."""
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._next)
            return
        mine: asyncio.Future[None] = loop.create_future()
        self._waiting.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self._next()  # it was this one's turn already
            raise
        loop.call_soon(self._next)

    def _next(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._is_taken = False
