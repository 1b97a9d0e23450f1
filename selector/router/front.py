"""One client connection: plain requests go straight to the relay, everything else to the library server.

    bytes ──▶ head ──▶ plain, and of a relayed route ──▶ admission ──▶ body ──▶ relay, one request at a time
                └────▶ anything else: uvicorn's protocol takes the connection, from the first byte of this head on

Nothing of a request has been answered or acted on when the connection changes hands, so the library reads it as if it
had been there from the start; it keeps the connection from then on. What comes while an answer is under way waits, up
to a bound, and is looked at afterwards: pipelined requests are answered in order.

A client that closes its side of the connection has left, as for most servers: the answer is given up.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, TypeAlias

from uvicorn import Config
from uvicorn.server import ServerState

from selector.router.answers import CLOSE, RefusedRequest
from selector.router.client import Incoming, refuse
from selector.router.keyring import FREE
from selector.router.library import LOOK_EVERY_S, Library
from selector.router.plainanswer import PlainAnswer
from selector.router.routes import ROUTES, Route
from selector.router.serving import Serving
from selector.router.tcp import prepare
from selector.router.wire import MAX_HEAD_BYTES, PlainRequest, may_become_plain, plain_request

_LOG = logging.getLogger("selector.router")
_MOST_WAITING_BYTES = 65_536
"""Of requests that came while an answer was under way; beyond it the connection ends with that answer."""
_WRITE_BUFFER_BYTES = 65_536
"""When so much waits for a slow client, its backend is not read until most of it is gone."""
_LINGER_S = 1.0
_Task: TypeAlias = "asyncio.Task[None]"


class Front(asyncio.Protocol):
    """A protocol class for uvicorn's `Config(http=...)`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        serving: Serving,
    ) -> None:
        """All but the last is what uvicorn gives every protocol."""
        self._config = config
        self._server = server_state
        self._app_state = app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._serving = serving
        self._patience_s = float(config.timeout_keep_alive)
        self._transport: asyncio.Transport
        self._pending = b""
        """Bytes that are not read as a request yet."""
        self._request: PlainRequest | None = None
        """Whose body is coming."""
        self._lease = FREE
        """Of the request whose body is coming, or that is being answered."""
        self._parts: list[bytes] = []
        self._missing = 0
        self._answer: PlainAnswer | None = None
        self._task: _Task | None = None
        self._deaf = False
        """What still comes is dropped: this connection ends with the answer under way."""
        self._since_s = 0.0
        """Since when there is nothing but waiting for the client."""
        self._timer: asyncio.TimerHandle | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self._transport = transport  # type: ignore[assignment] # uvloop's have the interface, not the base class
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        prepare(transport.get_extra_info("socket"))
        self._server.connections.add(self)  # type: ignore[arg-type] # uvicorn calls nothing of them but `shutdown`
        self._since_s = self._loop.time()
        self._timer = self._loop.call_later(LOOK_EVERY_S, self._look)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self._deaf:
            return
        if self._answer is not None:
            self._pending += data
            if len(self._pending) > _MOST_WAITING_BYTES:
                # Reading goes on, or the client's leaving would go unnoticed.
                self._deaf, self._answer.keep_alive = True, False
                self._pending = b""
        elif self._request is not None:
            self._body(self._request, data)
        else:
            if not self._pending:
                self._since_s = self._loop.time()
            self._pending += data
            self._head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client left, or everything it wanted is done."""
        self._let_go()
        self._pending = b""
        self._request, self._parts = None, []
        self._lease.end()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """The client is slow."""
        self._since_s = self._loop.time()
        if self._answer is not None:
            self._answer.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._since_s = self._loop.time()
        if self._answer is not None:
            self._answer.resume()

    def shutdown(self) -> None:
        """uvicorn asks every connection to end when it can."""
        if self._answer is None:
            self._transport.close()
        else:
            self._answer.keep_alive = False

    # one request after the other

    def _head(self) -> None:
        """Looks at the start of what is pending."""
        pending = self._pending
        end = pending.find(b"\r\n\r\n") + 4
        if end < 4:
            if not may_become_plain(pending):
                self._hand_over()
            elif len(pending) > MAX_HEAD_BYTES:
                self._refuse_head()
            return
        request = plain_request(pending[:end]) if end <= MAX_HEAD_BYTES else None
        route = None if request is None else ROUTES.get(request.path)
        if request is None or route is None:
            self._hand_over()
            return
        try:
            self._lease = self._serving.admission.admit(request.headers, request.length)
        except RefusedRequest as refused:
            self._refuse(route, refused)
            return
        self._request, self._missing = request, request.length
        self._pending = b""
        self._body(request, pending[end:])

    def _body(self, request: PlainRequest, data: bytes) -> None:
        """Some more of a body, and perhaps of what follows it."""
        if len(data) < self._missing:
            self._parts.append(data)
            self._missing -= len(data)
            self._since_s = self._loop.time()
            return
        if len(data) > self._missing:
            data, self._pending = data[: self._missing], data[self._missing :]
        body = b"".join([*self._parts, data]) if self._parts else data
        self._request, self._parts = None, []
        self._serve(request, body)

    def _serve(self, request: PlainRequest, body: bytes) -> None:
        slow = self._transport.get_write_buffer_size() > _WRITE_BUFFER_BYTES
        self._answer = PlainAnswer(self._transport, keep_alive=request.keep_alive, slow=slow)
        route = ROUTES[request.path]
        incoming = Incoming(route=route, query=request.query, headers=request.headers, body=body, lease=self._lease)
        task = self._loop.create_task(self._serving.relay.serve(incoming, self._answer))
        self._task = task
        self._server.tasks.add(task)
        task.add_done_callback(self._served)

    def _served(self, task: _Task) -> None:
        self._server.tasks.discard(task)
        self._lease.end()
        answer, self._answer, self._task = self._answer, None, None
        assert answer is not None
        if task.cancelled():
            self._transport.abort()
            return
        fault = task.exception()
        if fault is not None:
            _LOG.error("a request could not be served", exc_info=fault)
            if not answer.begun:
                answer.whole(500, [(b"content-type", b"text/plain; charset=utf-8"), CLOSE], b"Internal Server Error")
        if not answer.complete:
            self._transport.close()
            return
        if not answer.keep_alive:
            self._close_gently() if self._deaf else self._transport.close()
            return
        self._server.total_requests += 1
        self._since_s = self._loop.time()
        if self._pending and not self._transport.is_closing():
            self._head()

    def _refuse(self, route: Route, refused: RefusedRequest) -> None:
        answer = PlainAnswer(self._transport, keep_alive=False, slow=False)
        refuse(answer, route, refused, self._serving.admission.metrics)
        self._close_gently()

    def _refuse_head(self) -> None:
        body = b"the head of the request is too long"
        headers = [(b"content-type", b"text/plain; charset=utf-8")]
        PlainAnswer(self._transport, keep_alive=False, slow=False).whole(431, headers, body)
        self._close_gently()

    def _close_gently(self) -> None:
        """Closes once the client had time to read why: what it still sends would make the system drop the answer."""
        self._pending = b""
        self._deaf = True
        self._loop.call_later(_LINGER_S, self._transport.close)

    def _hand_over(self) -> None:
        """The library server takes the connection."""
        pending, self._pending = self._pending, b""
        self._let_go()
        library = Library(self._config, self._server, self._app_state, self._loop, serving=self._serving)
        library.connection_made(self._transport)
        self._transport.set_protocol(library)
        library.data_received(pending)

    def _let_go(self) -> None:
        self._server.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """One timer that looks now and then at how long the client has kept us waiting."""
        waited_s = self._loop.time() - self._since_s
        if waited_s >= self._patience_s and (self._answer is None or self._answer.slow):
            # A client that reads nothing of its answer for so long is gone, whatever its connection says.
            self._transport.abort()
            return
        self._timer = self._loop.call_later(LOOK_EVERY_S, self._look)
