"""One request in an engine: what was ordered, and what has come of it.

The engine hands tokens to a generation at every step; the coroutine that writes the answer waits for them. It is woken
once however many steps it missed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from selector.core.depthbatch import UNTOLD, UNTOLD_TEXT, DepthRequest
from selector.errors import SelectorError
from selector.simulator.server import Job


class QueueFull(SelectorError):
    """The server has as many waiting requests as it may (`--max-queued-requests`)."""


class DuplicateRid(SelectorError):
    """A request with this id is still running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What an engine has to know of a request."""

    rid: str
    prompt_tokens: int
    answer_tokens: int
    """Tokens it will generate, an end token included; 0 generates nothing (its prompt is prefilled all the same)."""
    text_type: str
    """Decides how many drafts are accepted."""
    draw_key: int
    tbt_target_ms: float | None = None
    """What it tells an engine that chooses its draft depth, and"""
    told_text_type: str = UNTOLD_TEXT
    """the text type that it names there."""
    stream: bool = False


class Generation:
    """One request in an engine. Times are emulated seconds. One coroutine at a time may wait for it."""

    __slots__ = ("_seen", "_waiter", "aborted", "delivered", "ended", "ended_s", "job", "order")

    def __init__(
        self,
        order: Order,
        *,
        accept_length: float,
        accept_spread: float,
        arrived_s: float,
        told: DepthRequest = UNTOLD,
    ) -> None:
        """`told` is what an engine that chooses its draft depth knows of it."""
        self.order = order
        self.job = Job(
            key=self,
            draw_key=order.draw_key,
            prompt_tokens=order.prompt_tokens,
            output_tokens=max(1, order.answer_tokens),
            accept_length=accept_length,
            accept_spread=accept_spread,
            arrived_s=arrived_s,
            told=told,
        )
        self.delivered = 0
        """Tokens it has got."""
        self.ended = False
        self.aborted = False
        self.ended_s: float | None = None
        self._seen = 0
        self._waiter: asyncio.Future[None] | None = None

    async def more(self, seen: int) -> int:
        """Waits until there are more than `seen` tokens or the request ended; returns the tokens there are."""
        if self.delivered <= seen and not self.ended:
            self._seen = seen
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.delivered

    async def end(self) -> None:
        """Waits until the request ended."""
        await self.more(self.order.answer_tokens)

    def give(self, tokens: int) -> None:
        """It has `tokens` now. For the engine."""
        self.delivered = min(tokens, self.order.answer_tokens)
        if self.delivered > self._seen:
            self._wake()

    def close(self, at_s: float, *, aborted: bool) -> None:
        """It ended. For the engine."""
        self.ended = True
        self.aborted = aborted
        self.ended_s = at_s
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None:
            if not self._waiter.done():
                self._waiter.set_result(None)
            self._waiter = None
