"""The library server's protocol for what is not plain, made as hard to hold up as the front."""

from __future__ import annotations

import logging
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from selector.router.serving import Serving
from selector.router.wire import MAX_HEAD_BYTES

LOOK_EVERY_S = 5.0
"""How often it is looked at how long a client has kept us waiting."""
_MOST_AHEAD = 16
"""Requests on one connection that are not answered; one that sends more ahead is closed."""

_LOG = logging.getLogger("uvicorn.error.library")
# A client that sends nonsense is counted; its every line is not worth one here.
_LOG.addFilter(lambda record: record.levelno >= logging.ERROR)


class Library(HttpToolsProtocol):
    """uvicorn's protocol, with a bound on the size of heads and on the time that a client may leave one unfinished."""

    def __init__(self, *args: Any, serving: Serving, **more: Any) -> None:
        """All but `serving` as for `HttpToolsProtocol`."""
        super().__init__(*args, **more)
        self._serving = serving
        self.logger = _LOG
        self._cycles: list[RequestResponseCycle] = []
        """Requests that may not be answered yet, in order."""
        self._head_bytes = 0
        self._in_head = True
        self._since_s = self.loop.time()
        """When the head began, or the last of the body came."""
        self._timer = self.loop.call_later(LOOK_EVERY_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._timer.cancel()
        self._give_up()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if not self._in_head or not self._head_bytes:
            self._since_s = self.loop.time()
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            # Of the read in which a head begins, what is before it counts too: a bound, not a measure.
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("The head of the request is too long.")

    def eof_received(self) -> None:
        """The client closed its side: it has left. The connection is about to be closed, so nothing is written."""
        self._give_up()

    def send_400_response(self, msg: str) -> None:
        """What came is no request."""
        self._serving.admission.metrics.refused_requests.labels("400").inc()
        if self._give_up():
            self.transport.abort()  # a refusal in the middle of an answer would be taken for its rest
        else:
            super().send_400_response(msg)

    def on_headers_complete(self) -> None:
        """A head is complete."""
        self._in_head = False
        super().on_headers_complete()
        self._cycles = [*self._unanswered(), self.cycle]
        if len(self._cycles) > _MOST_AHEAD:
            self._give_up()
            self.transport.abort()
        elif len(self._cycles) > 1:
            # uvicorn stops reading here until its turn comes, and would not notice that the client left.
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        """A request is complete; the next bytes are another head."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def _give_up(self) -> bool:
        """Ends every answer under way or waiting for its turn; whether one had begun.

        uvicorn itself tells only the last of several requests that the connection is closed.
        """
        begun = False
        for cycle in self._unanswered():
            begun = begun or cycle.response_started
            cycle.disconnected = True
            cycle.message_event.set()
        return begun

    def _unanswered(self) -> list[RequestResponseCycle]:
        return [cycle for cycle in self._cycles if not cycle.response_complete]

    def _look(self) -> None:
        unfinished = (self._head_bytes > 0 and not self._unanswered()) if self._in_head else True
        if unfinished and self.loop.time() - self._since_s >= self.timeout_keep_alive:
            self.transport.abort()
            return
        self._timer = self.loop.call_later(LOOK_EVERY_S, self._look)
