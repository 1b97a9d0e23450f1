"""A backend of which every byte is scripted: no HTTP library between the script and the socket.

    async with FakeUpstream() as upstream:
        upstream.script = some_script        # async (Exchange) -> None, for every request that is passed on
        exchange = await upstream.next_exchange()

What the router polls (`/ready`, `/v1/loads`, `/server_info`, `/v1/models`) is answered from attributes. Nothing sleeps:
scripts wait for events.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import orjson

SERVER_INFO: Mapping[str, Any] = {
    "version": "0.5.23",
    "model_path": "/models/Made-Up-8B",
    "served_model_name": "Made-Up-8B",
    "tp_size": 1,
    "stream_response_default_include_usage": False,
    "speculative_algorithm": None,
    "internal_states": [{}],
}
"""Of a server without speculation."""
EAGLE3_K3: Mapping[str, Any] = {
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
    "speculative_adaptive": False,
}
IDLE_LOAD: Mapping[str, Any] = {
    "dp_rank": 0,
    "num_running_reqs": 0,
    "num_waiting_reqs": 0,
    "num_used_tokens": 0,
    "max_total_num_tokens": 400_000,
    "max_running_requests": 64,
}


@dataclass(slots=True)
class Exchange:
    """One request that was passed on, and the connection to answer it on."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the router closed the connection, if the script waits for it."""

    @property
    def json(self) -> dict[str, Any]:
        parsed: dict[str, Any] = orjson.loads(self.body)
        return parsed

    def header(self, name: str) -> str | None:
        """The value, if it came exactly once."""
        values = [value for key, value in self.headers if key.lower() == name]
        return values[0] if len(values) == 1 else None

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, status: int = 200, *headers: tuple[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers)]
        await self.raw(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    async def stream_head(self, *headers: tuple[str, str]) -> None:
        await self.head(
            200, ("content-type", "text/event-stream; charset=utf-8"), ("transfer-encoding", "chunked"), *headers
        )

    async def chunk(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    async def answer(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        length = ("content-length", str(len(body)))
        await self.head(status, length, *(headers or (("content-type", "application/json"),)))
        await self.raw(body)

    async def wait_closed(self) -> None:
        """Returns when the router has closed the connection."""
        try:
            rest = await self.reader.read(1)
        except ConnectionError:
            rest = b""
        assert rest == b"", "the router sent more instead of closing"
        self.closed.set()

    def break_off(self) -> None:
        """Ends the connection without another byte, as a killed process does."""
        self.writer.transport.abort()


Script = Callable[[Exchange], Awaitable[None]]


class FakeUpstream:
    """See the module. `info` is laid over `SERVER_INFO`."""

    def __init__(
        self,
        info: Mapping[str, Any] | None = None,
        *,
        script: Script | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.info: dict[str, Any] = {**SERVER_INFO, **(info or {})}
        self.models: object = {"object": "list", "data": [{"id": "Made-Up-8B"}]}
        self.loads: object = {"version": "0.5.23", "loads": [dict(IDLE_LOAD)]}
        self.ready_status = 200
        self.script: Script = script or _refuse
        self.seen: list[Exchange] = []
        self.aborts: list[bytes] = []
        self.polls = 0
        self.port = 0
        self._tls = tls
        self._polls = asyncio.Condition()
        self._arrived: asyncio.Queue[Exchange] = asyncio.Queue()
        self._connections: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}" if self._tls is None else f"https://localhost:{self.port}"

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.refuse_connections()
        for task in list(self._tasks):
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        faults = [result for result in results if isinstance(result, AssertionError)]
        if kind is None and faults:
            raise faults[0]

    async def listen(self) -> None:
        """Accepts connections, on the same port as before if it did before."""
        self._server = await asyncio.start_server(
            self._connected, "127.0.0.1", self.port, reuse_address=True, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse_connections(self) -> None:
        """Closes the listener and every connection, as a killed server does."""
        self._server.close()
        for writer in list(self._connections):
            writer.transport.abort()

    async def next_exchange(self) -> Exchange:
        """The next request that was passed on, from the first on."""
        return await self._arrived.get()

    async def polled_afresh(self) -> None:
        """Returns when the router has finished a poll that began after this call."""
        # The third beginning shows that the second poll, begun after now for certain, is done.
        await self.polls_begun(self.polls + 3)

    async def polls_begun(self, count: int) -> None:
        """Returns when that many polls have begun in all."""
        async with self._polls:
            await self._polls.wait_for(lambda: self.polls >= count)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._connections.add(writer)
        try:
            while (exchange := await _read(reader, writer)) is not None:
                await self._handle(exchange)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _handle(self, exchange: Exchange) -> None:
        path = exchange.target.partition("?")[0]
        match path:
            case "/ready":
                async with self._polls:
                    self.polls += 1
                    self._polls.notify_all()
                await exchange.answer(self.ready_status, b"")
            case "/v1/loads":
                await exchange.answer(200, orjson.dumps(self.loads))
            case "/server_info":
                await exchange.answer(200, orjson.dumps(self.info))
            case "/v1/models":
                await exchange.answer(200, orjson.dumps(self.models))
            case "/abort_request":
                self.aborts.append(exchange.body)
                await exchange.answer(200, b"")
            case _:
                self.seen.append(exchange)
                self._arrived.put_nowait(exchange)
                await self.script(exchange)


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Exchange | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
    return Exchange(method, target, headers, await reader.readexactly(length), reader, writer)


async def _refuse(exchange: Exchange) -> None:
    await exchange.answer(500, b'{"object":"error","message":"no script"}')


def streaming(*chunks: bytes) -> Script:
    """A script that streams these chunks and ends."""

    async def script(exchange: Exchange) -> None:
        await exchange.stream_head()
        for chunk in chunks:
            await exchange.chunk(chunk)
        await exchange.end()

    return script


def held(go_on: asyncio.Event, *chunks: bytes) -> Script:
    """A script that streams the first of these chunks, and the others once it may go on."""

    async def script(exchange: Exchange) -> None:
        await exchange.stream_head()
        await exchange.chunk(chunks[0])
        await go_on.wait()
        for chunk in chunks[1:]:
            await exchange.chunk(chunk)
        await exchange.end()

    return script


def answering(status: int, body: bytes, *headers: tuple[str, str]) -> Script:
    """A script that gives one whole answer."""

    async def script(exchange: Exchange) -> None:
        await exchange.answer(status, body, *headers)

    return script


async def hanging(exchange: Exchange) -> None:
    """A script that never answers, and ends when the router gives up."""
    await exchange.wait_closed()


async def broken(exchange: Exchange) -> None:
    """A script that breaks the connection off instead of answering."""
    exchange.break_off()
