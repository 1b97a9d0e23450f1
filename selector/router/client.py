"""The client's side of one request: what came, where the answer goes, and its leaving.

Two ways lead to the relay. A plain request comes straight from the connection (`front`); every other one comes through
the library server as an ASGI call, which is turned into the same two things here: an `Incoming` and a `Client`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from selector.errors import SelectorError
from selector.router.answers import RefusedRequest, too_large
from selector.router.keyring import FREE, Lease
from selector.router.metrics import RouterMetrics
from selector.router.routes import Route
from selector.router.wire import Headers

if TYPE_CHECKING:
    from selector.router.tracing import RequestTrace

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_MOST_WAITING_BYTES = 65_536
"""So much may wait for a slow client before its backend is slowed down."""


class ClientGone(SelectorError):
    """The client closed its connection."""


@dataclass(slots=True, kw_only=True)
class Incoming:
    """One request as it came."""

    route: Route
    query: bytes
    headers: Headers
    """Names in lower case."""
    body: bytes
    lease: Lease = FREE
    """Whoever admitted the request ends it."""
    trace: RequestTrace | None = None
    """`None` where nothing is traced."""


class Pausable(Protocol):
    """Where the pieces of an answer come from."""

    def pause(self) -> None:
        """No more for now."""

    def resume(self) -> None:
        """Go on."""


class Client(Protocol):
    """Where one answer goes: `whole`, or `start` and then `pieces` up to the last. Nothing blocks.

    A client that left takes everything and does nothing with it: the task that serves it is cancelled.
    """

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """A complete answer; its content length is added."""

    def start(self, status: int, headers: Headers) -> None:
        """The head of an answer of unknown length. May wait to go out with the first `pieces`, perhaps none."""

    def pieces(self, pieces: Sequence[bytes], *, last: bool) -> None:
        """The next bytes of the body, each piece, not empty, in one HTTP chunk. After the `last` it is complete."""

    @property
    def takes_chunks(self) -> Callable[[bytes], None] | None:
        """Takes the next bytes of the body as whole HTTP chunks, framing and all, but not before the first `pieces`.

        `None` where they are of no use.
        """

    def follow(self, source: Pausable) -> None:
        """`source` is to be paused while the client is too slow."""


def header_texts(headers: Headers) -> Mapping[str, str]:
    """Headers by name; of several of one name the first."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(headers)}


class AsgiClient:
    """A client behind a library server. `pump` sends what it was given, in order."""

    def __init__(self, send: Send, *, chunks: bool) -> None:
        """Without `chunks` (HTTP/1.0 has none) an answer of unknown length is sent once it is complete."""
        self._send = send
        self._chunks = chunks
        self._head: tuple[int, Headers] | None = None
        self._collected: list[bytes] = []
        self._messages: deque[MutableMapping[str, Any] | None] = deque()
        self._waiting = asyncio.Event()
        self._waiting_bytes = 0
        self._source: Pausable | None = None

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """See `Client`."""
        headers = [*headers, (b"content-length", b"%d" % len(body))]
        self._put({"type": "http.response.start", "status": status, "headers": headers})
        self._put({"type": "http.response.body", "body": body})

    def start(self, status: int, headers: Headers) -> None:
        """See `Client`."""
        if self._chunks:
            self._put({"type": "http.response.start", "status": status, "headers": headers})
        else:
            self._head = status, headers

    def pieces(self, pieces: Sequence[bytes], *, last: bool) -> None:
        """See `Client`."""
        if self._head is None:
            for piece in pieces:
                self._put({"type": "http.response.body", "body": piece, "more_body": True})
            if last:
                self._put({"type": "http.response.body", "body": b""})
            return
        self._collected += pieces
        if last:
            self.whole(*self._head, b"".join(self._collected))

    @property
    def takes_chunks(self) -> None:
        """The library frames what it sends."""

    def follow(self, source: Pausable) -> None:
        """See `Client`."""
        self._source = source

    def close(self) -> None:
        """Nothing more comes: `pump` returns once everything is sent."""
        self._put(None)

    async def pump(self) -> None:
        """Sends until `close`."""
        while True:
            while self._messages:
                message = self._messages.popleft()
                if message is None:
                    return
                await self._send(message)
                self._waiting_bytes -= len(message.get("body", b""))
            if self._source is not None:
                self._source.resume()
            self._waiting.clear()
            await self._waiting.wait()

    def _put(self, message: MutableMapping[str, Any] | None) -> None:
        self._messages.append(message)
        self._waiting_bytes += 0 if message is None else len(message.get("body", b""))
        self._waiting.set()
        if self._source is not None and self._waiting_bytes > _MOST_WAITING_BYTES:
            self._source.pause()


async def read_body(receive: Receive, max_body_bytes: int) -> bytes:
    """The whole body. Raises `RefusedRequest` (413) when it is larger, `ClientGone` when it does not come."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > max_body_bytes:
            raise too_large(max_body_bytes)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def refuse(client: Client, route: Route, refused: RefusedRequest, metrics: RouterMetrics) -> None:
    """Answers with an error in the shape of the route, and counts it."""
    metrics.refused_requests.labels(str(refused.status)).inc()
    headers, body = refused.answer(route.dialect)
    client.whole(refused.status, headers, body)


class ClientWatch:
    """Ends the block under it at once when the client goes away, with `ClientGone`.

    Works as `asyncio.timeout` does: the task that entered is cancelled, and the cancellation becomes `ClientGone` where
    the block ends. The body must have been read.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._watcher = asyncio.create_task(self._wait())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.cancel()
        if self._gone and self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise ClientGone from None

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._task.cancel()
