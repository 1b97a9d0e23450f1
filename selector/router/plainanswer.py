"""The answer to one plain request, written straight to the client's connection: what comes together in one write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from selector.router.answers import CLOSE
from selector.router.client import Pausable
from selector.router.wire import LAST_CHUNK, Headers, status_line, written_head

_WITHOUT_BODY = frozenset({204, 304})


class PlainAnswer:
    """A `Client`, see there."""

    __slots__ = ("_head", "_source", "_transport", "begun", "complete", "keep_alive", "slow")

    def __init__(self, transport: asyncio.Transport, *, keep_alive: bool, slow: bool) -> None:
        """`slow`: more than enough waits to be sent already."""
        self._transport = transport
        self._source: Pausable | None = None
        self._head = b""
        """Of an answer that has started, until it is written."""
        self.keep_alive = keep_alive
        self.slow = slow
        self.begun = False
        self.complete = False

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """See `Client`."""
        if status in _WITHOUT_BODY:
            self._write(self._written(status, headers))
        else:
            self._write(self._written(status, [*headers, (b"content-length", b"%d" % len(body))]) + body)
        self.complete = True

    def start(self, status: int, headers: Headers) -> None:
        """See `Client`."""
        self._head = self._written(status, [*headers, (b"transfer-encoding", b"chunked")])

    def pieces(self, pieces: Sequence[bytes], *, last: bool) -> None:
        """See `Client`."""
        written = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
        if self._head:
            written.insert(0, self._head)
            self._head = b""
        if last:
            written.append(LAST_CHUNK)
            self.complete = True
        if written:
            self._write(b"".join(written))

    @property
    def takes_chunks(self) -> Callable[[bytes], None]:
        """See `Client`."""
        return self._chunks

    def _chunks(self, data: bytes) -> None:
        # The one method that runs for every token: nothing is called that need not be.
        if not self._transport.is_closing():
            self._transport.write(data)

    def follow(self, source: Pausable) -> None:
        """See `Client`."""
        self._source = source
        if self.slow:
            source.pause()

    def pause(self) -> None:
        """The client reads more slowly than the backend writes."""
        self.slow = True
        if self._source is not None:
            self._source.pause()

    def resume(self) -> None:
        """It has caught up."""
        self.slow = False
        if self._source is not None:
            self._source.resume()

    def _written(self, status: int, headers: Headers) -> bytes:
        if CLOSE in headers:
            self.keep_alive = False
        elif not self.keep_alive:
            headers = [*headers, CLOSE]
        return written_head(status_line(status), headers)

    def _write(self, data: bytes) -> None:
        self.begun = True
        if not self._transport.is_closing():
            self._transport.write(data)
