"""One request to a backend and its answer, read as it comes: what the client is to get goes straight to a sink.

    bytes of the connection ──▶ parser ──▶ head
              │                    └─────▶ pieces ──▶ sink, called once a read    one chunk of the body, one piece
              └── at the border of two chunks ──────▶ sink, which may take whole chunks as they are

No task runs per piece and nothing waits in between, so a piece costs the parser, the sink and little else. The parser
does not miss chunks that it never saw: between two chunks it expects what it expected before the first of them. A sink
that cannot keep up pauses the exchange; then the backend's connection is not read, and the backend is slowed down.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import httptools

from selector.errors import UpstreamError
from selector.router.sinks import Sink, WholeBody
from selector.router.wire import MAX_HEAD_BYTES, Headers

_LONGEST_PIECE_BYTES = 65_536
"""A chunk that is longer, and comes in several reads, is passed on in several pieces."""
_LOOKS = 4
"""How often the idle timeout is looked at while it passes."""
BROKE = "the connection broke"


class Line(Protocol):
    """The connection under an exchange."""

    def pause_reading(self) -> None:
        """Nothing more is read."""

    def resume_reading(self) -> None:
        """Reading goes on."""

    def exchanged(self, *, reusable: bool) -> None:
        """The answer was read to its end."""

    def abort(self) -> None:
        """The rest of the answer is of no use."""


class Exchange:
    """Belongs to one loop. Whoever began it must `close` it; that costs nothing once the answer was read to its end."""

    __slots__ = (
        "_at_border",
        "_chunked",
        "_complete",
        "_fault",
        "_head",
        "_head_bytes",
        "_heard",
        "_idle_timeout_s",
        "_informational",
        "_keeps_alive",
        "_line",
        "_loop",
        "_over",
        "_parser",
        "_part",
        "_paused",
        "_pieces",
        "_silent_looks",
        "_sink",
        "_timer",
        "_too_much",
        "headers",
        "status",
    )

    def __init__(self, line: Line, loop: asyncio.AbstractEventLoop, idle_timeout_s: float) -> None:
        self.status = 0
        self.headers: Headers = []
        """Names in lower case."""
        self._line: Line | None = line
        self._loop = loop
        self._idle_timeout_s = idle_timeout_s
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        # Both results say in words why there is none; `None` is success.
        self._head: asyncio.Future[str | None] = loop.create_future()
        self._over: asyncio.Future[str | None] = loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._sink: Sink | None = None
        self._pieces: list[bytes] = []
        """Of the body, not given to a sink yet."""
        self._part = b""
        """Of a chunk that is not complete."""
        self._head_bytes = 0
        self._silent_looks = 0
        self._chunked = self._complete = self._informational = self._keeps_alive = self._paused = self._too_much = False
        self._at_border = False
        """Everything up to the end of a chunk was read and given to the sink, and nothing after it."""
        self._heard = True
        self._fault: Exception | None = None

    # what the relay does

    async def head(self, within_s: float) -> None:
        """Returns when `status` and `headers` have come. Raises `UpstreamError` when they do not, or not in time."""
        timer = self._loop.call_later(within_s, self._fail, "no answer in time")
        try:
            failed = await self._head
        finally:
            timer.cancel()
        if failed is not None:
            raise UpstreamError(failed)

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is a stream of events that can be read: not compressed."""
        kind: bytes | None = None
        for name, value in self.headers:
            if name == b"content-encoding":
                return False
            if name == b"content-type" and kind is None:
                kind = value
        return kind is not None and kind.lower().startswith(b"text/event-stream")

    async def pass_to(self, sink: Sink) -> None:
        """Gives the body to `sink` as it comes, beginning at once, if only with nothing; returns after the last of it.

        Raises `UpstreamError` when the connection broke before the end, or the body paused for too long, and whatever
        `sink` raises.
        """
        over = self._over.done()
        early, self._pieces = self._pieces, []
        sink.pieces(early, last=over and self._over.result() is None)
        if not over:
            self._sink = sink
            self._timer = self._loop.call_later(self._idle_timeout_s / _LOOKS, self._look)
        failed = await self._over
        if self._fault is not None:
            raise self._fault
        if failed is not None:
            raise UpstreamError(failed)

    async def whole_body(self) -> bytes:
        """The rest of the body. Raises as `pass_to` does."""
        whole = WholeBody()
        await self.pass_to(whole)
        return whole.body()

    def pause(self) -> None:
        """Nothing is read until `resume`. A pause of the client's does not count as one of the backend's."""
        if self._line is not None and not self._paused:
            self._paused = True
            self._line.pause_reading()

    def resume(self) -> None:
        """Ends a pause."""
        if self._line is not None and self._paused:
            self._paused, self._heard = False, True
            self._line.resume_reading()

    def close(self) -> None:
        """Closes the connection, unless the answer was read to its end."""
        line = self._line
        self._end(BROKE)
        if line is not None:
            line.abort()

    # what the connection does

    def feed(self, data: bytes) -> None:
        """Bytes of the answer came."""
        self._heard = True
        if self._at_border and self._sink is not None:
            # What runs for every token ends here.
            try:
                taken = self._sink.chunks(data)
            except Exception as fault:  # noqa: BLE001 # raised where the answer is awaited
                self._faulted(fault)
                return
            if taken == len(data):
                return
            data = data[taken:]
            self._at_border = False
        if self._parser is not None:
            self._parse(self._parser, data)

    def _parse(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        why: str | None = None
        try:
            parser.feed_data(data)
        except httptools.HttpParserError:
            why = "it sent something that is not HTTP"
        except httptools.HttpParserUpgrade:
            why = "it wants another protocol"
        if not self._head.done():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                why = "it sent too long a head"
        if why is not None:
            self._fail(why)
            return
        complete = self._complete
        if self._pieces or complete:
            self._give(self._sink, last=complete)
        if complete and self._line is not None:
            line, paused = self._line, self._paused
            reusable = self._keeps_alive and not self._too_much
            self._end(None)
            if paused:
                line.resume_reading()
            line.exchanged(reusable=reusable)
        elif not data.endswith(b"\r\n"):
            self._at_border = False  # the parser has begun the line of the next chunk's size

    def lost(self, *, cleanly: bool) -> None:
        """The connection is gone; `cleanly` if the server closed it and no fault did."""
        # The end of the connection is the end of a body that says nothing of its length.
        whole = cleanly and self._head.done() and not self._chunked and not self._has_length()
        if whole:
            self._give(self._sink, last=True)
        self._end(None if whole else BROKE)

    # what the parser finds

    def on_message_begin(self) -> None:
        """An answer begins; a second one was not asked for."""
        self._too_much = self._complete

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or a trailer, which is dropped."""
        if not self._head.done():
            self.headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        """The head is complete."""
        parser = self._parser
        if parser is None or self._head.done():
            return
        status = parser.get_status_code()
        self._informational = 100 <= status < 200
        if self._informational:
            self.headers.clear()
            return
        self.status = status
        self._keeps_alive = parser.should_keep_alive()  # afterwards the parser does not know any more
        for name, _ in self.headers:
            if name == b"transfer-encoding":
                self._chunked = True
                break
        self._head.set_result(None)

    def on_body(self, body: bytes) -> None:
        """Bytes of the body, never across the border of two chunks."""
        if self._complete:
            return  # of an answer that nobody asked for
        self._part = self._part + body if self._part else body
        if not self._chunked or len(self._part) > _LONGEST_PIECE_BYTES:
            self._pieces.append(self._part)
            self._part = b""

    def on_chunk_complete(self) -> None:
        """A chunk of a chunked body is complete."""
        self._at_border = self._chunked and not self._complete
        if self._part:
            self._pieces.append(self._part)
            self._part = b""

    def on_chunk_header(self) -> None:
        """The line of a chunk's size is complete."""
        self._at_border = False

    def on_message_complete(self) -> None:
        """The answer is complete."""
        self._complete = not self._informational

    def _has_length(self) -> bool:
        return any(name == b"content-length" for name, _ in self.headers) or self.status in (204, 304)

    def _look(self) -> None:
        """One timer that looks now and then, rather than one for every piece."""
        self._silent_looks = 0 if self._heard or self._paused else self._silent_looks + 1
        self._heard = False
        if self._silent_looks >= _LOOKS:
            self._fail(f"nothing came for {self._idle_timeout_s:g} s")
        else:
            self._timer = self._loop.call_later(self._idle_timeout_s / _LOOKS, self._look)

    def _give(self, sink: Sink | None, *, last: bool) -> None:
        """Gives what came to the sink; without one it waits for `pass_to`."""
        if sink is None:
            return
        pieces, self._pieces = self._pieces, []
        try:
            sink.pieces(pieces, last=last)
        except Exception as fault:  # noqa: BLE001 # raised where the answer is awaited
            self._faulted(fault)

    def _faulted(self, fault: Exception) -> None:
        self._sink, self._fault = None, fault
        self._fail("the answer could not be passed on")

    def _fail(self, why: str) -> None:
        line = self._line
        self._end(why)
        if line is not None:
            line.abort()

    def _end(self, failed: str | None) -> None:
        if self._part:
            self._pieces.append(self._part)  # of a chunk that was cut off
            self._part = b""
        sink, self._sink = self._sink, None
        self._line = self._parser = None
        if self._pieces:
            self._give(sink, last=False)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for future in (self._head, self._over):
            if not future.done():
                future.set_result(failed)
