"""Kept-alive connections to one server: the last one used is taken first, and none is kept for long."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque

from selector.router.exchange import Exchange
from selector.router.tcp import prepare

KEEP_IDLE_S = 3.0
"""Less than the 5 s after which SGLang closes an idle connection: a request must not meet the closing."""

_CLOSE_WITHIN_S = 1.0


class Connection(asyncio.Protocol):
    """One connection: no exchange, or one."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._exchange: Exchange | None = None
        self._transport: asyncio.Transport
        self.usable = True
        """Open, and nothing came that was not asked for."""
        self.idle_since_s = 0.0

    def begin(self, exchange: Exchange, *parts: bytes) -> None:
        """Sends a request, whose answer goes to `exchange`."""
        if not self.usable:
            exchange.lost(cleanly=False)
            return
        self._exchange = exchange
        for part in parts:
            self._transport.write(part)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = transport  # type: ignore[assignment] # uvloop's have the interface, not the base class

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer; unasked for they make the connection useless."""
        if self._exchange is None:
            self.abort()
        else:
            self._exchange.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed by the server, by us, or by a fault in between."""
        self.usable = False
        self._pool.forget(self)
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.lost(cleanly=exc is None)

    # exchange.Line

    def pause_reading(self) -> None:
        """Stops reading."""
        if self.usable:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Reads again."""
        if self.usable:
            self._transport.resume_reading()

    def exchanged(self, *, reusable: bool) -> None:
        """The answer was read to its end; a request not sent to its end, though, spoils the connection."""
        self._exchange = None
        if reusable and self.usable and not self._transport.get_write_buffer_size():
            self._pool.give_back(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Closes at once."""
        self.usable = False
        self._exchange = None
        self._transport.abort()


class ConnectionPool:
    """Connections to one address. Belongs to the loop that uses it; `close` it."""

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None, connect_timeout_s: float) -> None:
        """`tls` verifies the server's certificate for `host`."""
        self._host = host
        self._port = port
        self._tls = tls
        self._connect_timeout_s = connect_timeout_s
        self._idle: deque[Connection] = deque()
        self._all: set[Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._none_left: asyncio.Event | None = None

    def idle(self) -> Connection | None:
        """A connection that is open and free, if there is one."""
        loop = asyncio.get_running_loop()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and loop.time() - connection.idle_since_s < KEEP_IDLE_S:
                return connection
            connection.abort()
        return None

    async def connect(self) -> Connection:
        """A new connection. Raises `TimeoutError` or `OSError`."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._connect_timeout_s):
            transport, connection = await loop.create_connection(
                lambda: Connection(self), self._host, self._port, ssl=self._tls
            )
        self._all.add(connection)
        with contextlib.suppress(OSError):
            prepare(transport.get_extra_info("socket"))
        return connection

    def give_back(self, connection: Connection) -> None:
        """An exchange is over and its connection can have another one."""
        loop = asyncio.get_running_loop()
        connection.idle_since_s = loop.time()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(KEEP_IDLE_S, self._sweep)

    def forget(self, connection: Connection) -> None:
        """It is closed. Among the idle ones it is found when its turn comes."""
        self._all.discard(connection)
        if self._none_left is not None and not self._all:
            self._none_left.set()

    async def close(self) -> None:
        """Closes every connection; returns when they are closed."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._all):
            connection.abort()
        self._idle.clear()
        if self._all:
            self._none_left = asyncio.Event()
            async with asyncio.timeout(_CLOSE_WITHIN_S):
                await self._none_left.wait()

    def _sweep(self) -> None:
        self._sweeper = None
        loop = asyncio.get_running_loop()
        while self._idle:
            oldest = self._idle[0]
            left_s = oldest.idle_since_s + KEEP_IDLE_S - loop.time()
            if oldest.usable and left_s > 0:
                self._sweeper = loop.call_later(left_s, self._sweep)
                return
            self._idle.popleft()
            if oldest.usable:
                oldest.abort()
