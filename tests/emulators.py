"""What tests of the emulator share: a clock they turn by hand, a small profile and its fleets, an in-memory client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from selector.emulator.clock import Clock
from selector.emulator.http import Handler, Message
from selector.files.fleet import Backend, Fleet, LoadedFleet
from selector.files.profile import Profile
from tests.profiles import MADE_UP, made_up_document

TARGET = "smol"
START_UNIX_S = 1_800_000_000.0


class ManualClock(Clock):
    """Emulated time that stands still until a test moves it."""

    def __init__(self) -> None:
        super().__init__(start_unix_s=START_UNIX_S, time_scale=1.0)
        self._now_s = 0.0

    def now_s(self) -> float:
        return self._now_s

    def _wake_at(self, when_s: float) -> None:
        """Nobody is woken: the test moves the clock."""

    def set(self, now_s: float) -> None:
        """Moves the clock and runs nothing yet, as when the event loop is busy with something else."""
        assert now_s >= self._now_s
        self._now_s = now_s

    def advance_to(self, now_s: float) -> None:
        """Moves the clock and runs what has become due."""
        self.set(now_s)
        self.run_due()

    def step(self) -> bool:
        """Moves to the next callback and runs it; False when there is none."""
        due_s = self.next_due_s
        if due_s is None:
            return False
        self.advance_to(max(due_s, self._now_s))
        return True

    async def play(self, until: Callable[[], bool] | None = None) -> None:
        """Steps on, with turns of the event loop in between, until `until` holds (or nothing is due any more)."""
        await turns()
        while not (until and until()):
            if not self.step() and until is None:
                return
            await turns()


async def turns(count: int = 4) -> None:
    """Lets whatever is ready to run, run: a woken writer needs one turn, its reader in the same loop another."""
    for _ in range(count):
        await asyncio.sleep(0)


def profile_document(arms: Mapping[str, tuple[str, int]]) -> dict[str, Any]:
    """A profile of made-up numbers; `arms` has SGLang's algorithm and the verify width by arm name."""
    made = {
        name: {
            "algorithm": algorithm,
            "verify_tokens": width,
            "topk": 1 if width > 1 else None,
            "context_slope": {"ms_per_token": 3e-5, "j_per_token": 2e-5, "provenance": MADE_UP},
            "cells": [
                {
                    "batch": batch,
                    "context_tokens": 500,
                    "step_ms": 5.0 + 0.1 * batch * width,
                    "step_j": 2.5 + 0.05 * batch * width,
                    "provenance": MADE_UP,
                }
                for batch in (1, 8, 32)
            ],
            "acceptance": {
                "code": {"mean": 1 + 0.6 * (width - 1), "provenance": MADE_UP},
                "romansh": {"mean": 1 + 0.1 * (width - 1), "provenance": MADE_UP},
            }
            if width > 1
            else {},
        }
        for name, (algorithm, width) in arms.items()
    }
    prefill = [
        {"prompt_tokens": tokens, "ms": ms, "j": j, "provenance": MADE_UP}
        for tokens, ms, j in ((100, 10.0, 5.0), (8_000, 400.0, 250.0))
    ]
    document = made_up_document(
        made, target=TARGET, prefill=prefill, idle={"bare_w": 80.0, "served_w": 95.0, "provenance": MADE_UP}
    )
    document["target"]["model"] = "/model"
    return document


PROFILE = Profile.model_validate(
    profile_document({"none": ("none", 1), "ngram-6": ("NGRAM", 6), "dspark-8": ("DSPARK", 8)})
)


def fleet_of(*arms: str, gpus: Sequence[Sequence[str]] | None = None, **limits: object) -> LoadedFleet:
    """A backend per arm, called b0, b1 …, on a GPU of its own unless `gpus` lists them; `limits` are fields of each."""
    where = gpus or [(f"gpu{index}",) for index in range(len(arms))]
    backends = tuple(
        Backend.model_validate({"name": f"b{index}", "arm": arm, "gpus": where[index], "profile": "made-up", **limits})
        for index, arm in enumerate(arms)
    )
    fleet = Fleet(version=1, target=TARGET, backends=backends)
    return LoadedFleet(fleet, "fleet of a test", {"made-up": PROFILE})


@dataclass(slots=True)
class Answer:
    """What an ASGI application sent, and when by the clock of the test."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    chunks: list[tuple[float, bytes]] = field(default_factory=list)
    complete: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(chunk for _, chunk in self.chunks)

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """The data of a stream's events, parsed, without `[DONE]`."""
        data = [chunk.removeprefix(b"data: ").strip() for _, chunk in self.chunks if chunk]
        assert data[-1] == b"[DONE]"
        return [json.loads(item) for item in data[:-1]]


class Client:
    """Calls an ASGI application in memory: what it sends is there at once, stamped with the test's clock."""

    def __init__(self, app: Handler, clock: ManualClock) -> None:
        self._app = app
        self._clock = clock

    def open(
        self, path: str, body: object = None, headers: Mapping[str, str] | None = None, method: str | None = None
    ) -> Exchange:
        """Starts a request; `body` is JSON, or bytes as they are."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        path, _, query = path.partition("?")
        given = {"content-type": "application/json", **(headers or {})}
        scope = {
            "type": "http",
            "method": method or ("GET" if body is None else "POST"),
            "path": path,
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
        }
        return Exchange(self._app, scope, data, self._clock)

    async def call(self, path: str, body: object = None, **options: Any) -> Answer:
        """A whole exchange; the clock is turned as far as the answer needs."""
        exchange = self.open(path, body, **options)
        await self._clock.play(until=exchange.task.done)
        await exchange.task
        return exchange.answer


class Exchange:
    """One request under way."""

    def __init__(self, app: Handler, scope: dict[str, Any], data: bytes, clock: ManualClock) -> None:
        self.answer = Answer()
        self._clock = clock
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": data, "more_body": False})
        self.task = asyncio.ensure_future(app(scope, self._incoming.get, self._send))

    def disconnect(self) -> None:
        """The client closes the connection."""
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def _send(self, message: Message) -> None:
        answer = self.answer
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        answer.chunks.append((self._clock.now_s(), message.get("body", b"")))
        answer.complete = not message.get("more_body", False)
