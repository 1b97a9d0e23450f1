"""The emulated server answers as a real one did.

Every recorded request is sent to it, byte for byte. Its answer has the same status, the same headers, the same events
in the same order, the same keys in the same order and values of the same types. What may differ is in `DIFFERENCES`,
each with its reason; an entry that excuses nothing any more fails a test too.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from selector.emulator.asks import drawn_answer_tokens
from selector.emulator.fleet import EmulatedFleet, EmulatedServer
from tests.emulators import ManualClock, fleet_of, turns

pytestmark = pytest.mark.asyncio(loop_scope="module")

RECORDED = Path(__file__).parents[1] / "data" / "sglang_recorded"
NAMES = sorted(path.stem for path in RECORDED.glob("*.request"))

DIFFERENCES: dict[tuple[str, str], str] = {
    ("*loads*", "/accelerator"): "recorded on a CPU, which has no accelerator's name; the emulated machine has a GPU",
    ("chat_logprobs", "/choices[]/logprobs"): "filler words come from no distribution: there are no log probabilities",
    ("*generate*", "/meta_info/cached_tokens_details"): "no prefix cache is emulated: null, as without cached tokens",
    ("limits_spec_chat_meta_info", "/choices[]/meta_info/cached_tokens_details"): "no prefix cache is emulated",
    ("limits_model_info", "/embedding"): "what the model is inside, which the emulator does not know",
    ("limits_model_info", "/model_type"): "what the model is inside, which the emulator does not know",
    ("limits_model_info", "/architectures"): "what the model is inside, which the emulator does not know",
}
"""Place in the JSON (of an exchange, by name pattern) whose value may differ in kind or be missing: the reason."""

API_KEY = "k"
CONTEXT_TOKENS = 2_048
SMALL_CONTEXT_TOKENS = 1_024
"""For the prompts that were too long: the emulator counts about half as many tokens in them."""
MEAN_OUTPUT_TOKENS = 8.0
DRAW_KEY = next(key for key in count() if drawn_answer_tokens(key, MEAN_OUTPUT_TOKENS) == 8)
"""A key for which an answer that may end by itself does so after 8 tokens, as the recorded chat did."""

_ASIDE = frozenset({"date", "connection"})
"""Headers that say nothing about the server: the time, and what the client asked for."""


@dataclass(frozen=True, slots=True)
class Response:
    """A raw HTTP response, taken apart."""

    status: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @classmethod
    def parse(cls, raw: bytes) -> Response:
        head, _, rest = raw.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]
        chunked = ("transfer-encoding", "chunked") in headers
        return cls(status, tuple(headers), b"".join(_chunks(rest)) if chunked else rest)

    @property
    def telling_headers(self) -> dict[str, str]:
        """Headers by name, those aside left out; of the length only that it is there."""
        return {name: "" if name == "content-length" else value for name, value in self.headers if name not in _ASIDE}

    @property
    def content_type(self) -> str:
        return dict(self.headers).get("content-type", "")


def _chunks(data: bytes) -> Iterator[bytes]:
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        yield data[:length]
        data = data[length + 2 :]


def shape(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """(place, kind) of everything in a JSON value, in order; what a list holds is told once per kind of element."""
    if isinstance(value, dict):
        yield place, "object"
        for key, item in value.items():
            yield from shape(item, f"{place}/{key}")
    elif isinstance(value, list):
        yield place, "list"
        yield from dict.fromkeys(item for element in value for item in shape(element, f"{place}[]"))
    else:
        yield place, type(value).__name__


def kind_of(event: Any) -> str:
    """What an event of a stream is for."""
    if event == "[DONE]" or "error" in event:
        return "done" if event == "[DONE]" else "error"
    if "meta_info" in event:
        return "final" if event["meta_info"]["finish_reason"] else "partial"
    if not event["choices"]:
        return "sglext" if "sglext" in event else "usage"
    choice = event["choices"][0]
    if "role" in choice.get("delta", {}):
        return "role"
    if choice["finish_reason"]:
        return "finish"
    return "content"


def events_of(body: bytes) -> list[Any]:
    blocks = body.decode().split("\n\n")
    assert blocks.pop() == ""
    data = [block.removeprefix("data: ") for block in blocks]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


def outline(name: str, response: Response) -> dict[str, Any]:
    """Everything about a response that has to be the same."""
    found: dict[str, Any] = {
        "status": response.status,
        "headers": response.telling_headers,
    }
    if response.content_type.startswith("text/event-stream"):
        events = events_of(response.body)
        kinds = [kind_of(event) for event in events]
        # How many events an answer takes depends on its text and on timing; their kinds and order do not.
        found["order"] = [kind for index, kind in enumerate(kinds) if index == 0 or kind != kinds[index - 1]]
        for kind in set(kinds) - {"done"}:
            shapes = {_excused(name, event) for event, its in zip(events, kinds, strict=True) if its == kind}
            found[f"event {kind}"] = shapes
    elif response.content_type == "application/json":
        value = json.loads(response.body)
        if name.endswith("server_info"):
            # Shortening the recorded document put this key last.
            value["internal_states"] = value.pop("internal_states")
        found["json"] = _excused(name, value)
        found["message"] = _message(value)
    elif name.endswith("metrics"):
        found["metrics"] = metric_names(response.body)
    else:
        found["body"] = response.body
    return found


def _message(value: dict[str, Any]) -> str | None:
    """The words of an error, numbers left out; `None` where they quote a Python object or there is no error."""
    error = value.get("error", value)
    message = error.get("message") if isinstance(error, dict) else error
    if message is None or "validation error" in message:
        return None
    return re.sub(r"\d+", "#", message)


def _excused(name: str, value: Any) -> tuple[tuple[str, str], ...]:
    places = [place for (pattern, place) in DIFFERENCES if fnmatch(name, pattern)]
    return tuple(
        (place, kind)
        for place, kind in shape(value)
        if not any(place == excused or place.startswith((f"{excused}/", f"{excused}[")) for excused in places)
    )


def metric_names(body: bytes) -> set[tuple[str, ...]]:
    """Name, kind and label names of every metric line."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", body.decode(), re.MULTILINE))
    lines = re.findall(r"^([\w:]+)\{(.*)\} \S+$", body.decode(), re.MULTILINE)
    return {(name, kinds[name], *re.findall(r'(\w+)="', labels)) for name, labels in lines}


class Replay:
    """Emulated servers like the recorded ones, on real sockets. The test turns their clock."""

    def __init__(self, clock: ManualClock, servers: Mapping[str, EmulatedServer]) -> None:
        self._clock = clock
        self._servers = servers

    async def answer(self, name: str) -> Response:
        """The emulated answer to a recorded request, given in the state that the server was in."""
        server = self._servers[next(prefix for prefix in self._servers if name.startswith(prefix))]
        request = (RECORDED / f"{name}.request").read_bytes()
        if name.startswith("limits_abort_running"):
            return await self._aborted(server, request, waiting=False)
        if name.startswith("limits_abort_waiting"):
            async with self._blocked(server, waiting=0):
                return await self._aborted(server, request, waiting=True)
        if name.startswith("limits_queue_full") or name.endswith("_busy"):
            async with self._blocked(server, waiting=1):
                return Response.parse(await self._while_clock_stands(_send(server.url, request)))
        return await self._exchange(server, request)

    async def warm_up(self) -> None:
        """A short request on each server: the recorded ones had served some when they were asked for their load."""
        for name in ("limits_spec_chat_meta_info", "ngram_chat", "chat"):
            assert (await self.answer(name)).status.endswith("200 OK")

    async def _exchange(self, server: EmulatedServer, request: bytes) -> Response:
        asking = asyncio.create_task(_send(server.url, request))
        await self._clock.play(until=asking.done)
        return Response.parse(await asking)

    async def _while_clock_stands(self, exchange: Coroutine[None, None, bytes]) -> bytes:
        asking = asyncio.create_task(exchange)
        while not asking.done():
            await turns()
        return await asking

    @asynccontextmanager
    async def _blocked(self, server: EmulatedServer, *, waiting: int) -> AsyncIterator[None]:
        """Two requests run, which is all there is room for, and as many wait as said."""
        engine = server.engine
        blockers = []
        for number in range(2):
            blockers.append(asyncio.create_task(_send(server.url, _long_request(f"blocker-{number}"))))
            await self._clock.play(until=lambda wanted=number + 1: engine.running == wanted)
        for _ in range(waiting):
            blockers.append(asyncio.create_task(_send(server.url, _long_request("blocker-waiting"))))
            while engine.waiting == 0:
                await turns()
        yield
        engine.abort_all()
        await self._clock.play(until=lambda: all(blocker.done() for blocker in blockers))

    async def _aborted(self, server: EmulatedServer, request: bytes, *, waiting: bool) -> Response:
        """The request is ended through `/abort_request`, while it waits or after some steps."""
        engine = server.engine
        asking = asyncio.create_task(_send(server.url, request))
        if waiting:
            while engine.waiting == 0:
                await turns()
        else:
            await self._clock.play(until=lambda: engine.running == 1)
            for _ in range(3):
                self._clock.step()
                await turns()
        rid = json.loads(request.partition(b"\r\n\r\n")[2])["rid"]
        ending = _request("/abort_request", {"rid": rid})
        assert (await self._while_clock_stands(_send(server.url, ending))).startswith(b"HTTP/1.1 200")
        await self._clock.play(until=asking.done)
        return Response.parse(await asking)


def _request(path: str, body: object) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_KEY}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data


def _long_request(rid: str) -> bytes:
    sampling = {"max_new_tokens": 900, "ignore_eos": True}
    return _request("/generate", {"text": "hi", "rid": rid, "sampling_params": sampling})


async def _send(url: str, request: bytes) -> bytes:
    """Sends the bytes, with a draw key that lets answers end where the recorded ones did; returns what comes back."""
    first_line, _, rest = request.partition(b"\r\n")
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(b"%b\r\nx-emulated-draw-key: %d\r\n%b" % (first_line, DRAW_KEY, rest))
    try:
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replay() -> AsyncIterator[Replay]:
    """Plain and NGRAM servers; one more with an API key, its queue bound to one request."""
    clock = ManualClock()
    limits = {"max_running_requests": 2, "max_kv_tokens": 8_192}
    options = {"any_port": True, "clock": clock, "mean_output_tokens": MEAN_OUTPUT_TOKENS}
    open_arms = fleet_of("none", "ngram-6", max_context_tokens=SMALL_CONTEXT_TOKENS, **limits)
    open_fleet = EmulatedFleet(open_arms, **options)
    locked_fleet = EmulatedFleet(
        fleet_of("ngram-6", api_key_env="KEY", max_context_tokens=CONTEXT_TOKENS, **limits),
        max_queued_requests=1,
        environ={"KEY": API_KEY},
        **options,
    )
    async with open_fleet, locked_fleet:
        plain, ngram = open_fleet.servers
        replay = Replay(clock, {"limits_": locked_fleet.servers[0], "ngram_": ngram, "": plain})
        await replay.warm_up()
        yield replay


@pytest.mark.parametrize("name", NAMES)
async def test_the_emulated_answer_has_the_shape_of_the_recorded_one(name: str, replay: Replay) -> None:
    recorded = outline(name, Response.parse((RECORDED / f"{name}.response").read_bytes()))
    emulated = outline(name, await replay.answer(name))
    assert list(emulated) == list(recorded)
    for part in recorded:
        assert emulated[part] == recorded[part], part


@pytest.mark.parametrize("pattern_and_place", DIFFERENCES)
async def test_no_difference_is_excused_that_is_none(
    pattern_and_place: tuple[str, str], replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(DIFFERENCES, pattern_and_place)
    for name in NAMES:
        if fnmatch(name, pattern_and_place[0]):
            recorded = Response.parse((RECORDED / f"{name}.response").read_bytes())
            if outline(name, await replay.answer(name)) != outline(name, recorded):
                return
    pytest.fail("the recorded and the emulated answers do not differ there")
