"""Sends requests when they are due, whatever the answers do (open loop), or as clients that wait for their answers
(closed loop), and measures each as its reader would see it.

Times are seconds of the replayed clock: real seconds × `time_scale`, so that an emulated fleet that runs at half speed
is measured in its own time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import Any

import aiohttp
import orjson

from selector.core.stream import StreamObserver
from selector.core.streamevents import EventSplitter
from selector.simulator.arrivals import Arrivals

ARM_HEADER = "x-drafter-selector-arm"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRequest:
    """One request to send."""

    number: int
    due_s: float
    """On the replayed clock, from the start."""
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    text_type: str
    tbt_target_ms: float | None
    path: str = "/v1/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back. `error` is `None` for a complete answer."""

    request: TimedRequest
    arm: str | None
    status: int | None
    tokens: int
    ttft_ms: float | None
    tbt_ms: float | None
    finished_s: float
    error: str | None
    late_ms: float
    """Real ms by which it was sent after it was due: the load generator's own lag."""


class Replay:
    """One replay of `requests` against `url` (the base, without path).

    `arrivals`, of a load of as many requests, says who is sent next and when instead of their `due_s`.
    """

    def __init__(
        self,
        url: str,
        requests: Sequence[TimedRequest],
        *,
        time_scale: float = 1.0,
        on_answer: Callable[[Answer], None] | None = None,
        timeout_s: float = 120.0,
        arrivals: Arrivals | None = None,
    ) -> None:
        self._url = url
        self._requests = list(requests) if arrivals else sorted(requests, key=lambda request: request.due_s)
        self._arrivals = arrivals
        self._time_scale = time_scale
        self._on_answer = on_answer
        self._timeout_s = timeout_s
        self.in_flight = 0

    async def run(self) -> list[Answer]:
        """Sends everything and waits for the last answer; answers in the order in which requests were sent."""
        loop = asyncio.get_running_loop()
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session, asyncio.TaskGroup() as group:
            started = loop.time()
            if self._arrivals is not None:
                tasks = await self._as_they_arrive(self._arrivals, session, group, started)
            else:
                tasks = []
                for request in self._requests:
                    due = started + request.due_s / self._time_scale
                    await asyncio.sleep(max(0.0, due - loop.time()))
                    tasks.append(group.create_task(self._one(session, request, started, due)))
        return [task.result() for task in tasks]

    async def _as_they_arrive(
        self, arrivals: Arrivals, session: aiohttp.ClientSession, group: asyncio.TaskGroup, started: float
    ) -> list[asyncio.Task[Answer]]:
        """Every request that was sent, once no more will be."""
        clock = asyncio.get_running_loop().time
        tasks: list[asyncio.Task[Answer]] = []
        under_way: set[asyncio.Task[Answer]] = set()
        ended = asyncio.Event()

        def end(task: asyncio.Task[Answer]) -> None:
            under_way.remove(task)
            failed = task.cancelled() or task.exception() is not None or task.result().error is not None
            arrivals.ended((clock() - started) * self._time_scale, refused=failed)
            ended.set()

        while True:
            wait_s = arrivals.next_s - (clock() - started) * self._time_scale
            if wait_s <= 0.0:
                taken = arrivals.take()
                if taken is not None:
                    task = group.create_task(self._one(session, self._requests[taken[0]], started, clock()))
                    task.add_done_callback(end)
                    tasks.append(task)
                    under_way.add(task)
                continue
            if not isfinite(wait_s) and not under_way:
                return tasks
            ended.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), wait_s / self._time_scale if isfinite(wait_s) else None)

    async def _one(self, session: aiohttp.ClientSession, request: TimedRequest, started: float, due: float) -> Answer:
        clock = asyncio.get_running_loop().time
        sent = clock()
        observer, splitter = StreamObserver(), EventSplitter()
        arm: str | None = None
        status: int | None = None
        error: str | None = None
        self.in_flight += 1
        try:
            async with session.post(
                f"{self._url}{request.path}",
                data=orjson.dumps(request.body),
                headers={"content-type": "application/json", **request.headers},
            ) as response:
                status, arm = response.status, response.headers.get(ARM_HEADER)
                if status != 200:
                    error = f"HTTP {status}: {(await response.text(errors='replace'))[:200]}"
                else:
                    async for chunk in response.content.iter_any():
                        now_s = (clock() - started) * self._time_scale
                        for event in splitter.feed(chunk):
                            observer.event(event, now_s)
                    error = observer.error or (None if observer.done else "the stream ended without [DONE]")
        except (aiohttp.ClientError, TimeoutError, OSError) as failed:
            error = f"{type(failed).__name__}: {failed}"
        finally:
            self.in_flight -= 1
        sent_s = (sent - started) * self._time_scale
        answer = Answer(
            request=request,
            arm=arm,
            status=status,
            tokens=observer.completion_tokens or 0,
            ttft_ms=None if observer.first_s is None else 1e3 * (observer.first_s - sent_s),
            tbt_ms=observer.tbt_ms,
            finished_s=(clock() - started) * self._time_scale,
            error=error,
            late_ms=1e3 * (sent - due),
        )
        if self._on_answer is not None:
            self._on_answer(answer)
        return answer


class LagWatch:
    """Event-loop lag in ms: how long a callback that another thread posts waits for its turn.

    A timer of the loop would not do: it fires up to a millisecond late by itself.
    """

    def __init__(self, *, interval_s: float = 0.01) -> None:
        self.lags_ms: list[float] = []
        self._interval_s = interval_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lag-watch", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> LagWatch:
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        return self

    async def __aexit__(self, *failure: object) -> None:
        self._over.set()
        await asyncio.to_thread(self._thread.join)

    def _beat(self) -> None:
        assert self._loop is not None
        while not self._over.wait(self._interval_s):
            self._loop.call_soon_threadsafe(self._seen, time.perf_counter())

    def _seen(self, posted: float) -> None:
        self.lags_ms.append(1e3 * (time.perf_counter() - posted))
