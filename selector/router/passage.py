"""A streamed answer from a backend's connection to a client: what a read brought goes out in one write.

exchange ──chunks, pieces──▶ Passage ──▶ AnswerStream (times, withheld events) ──▶ client
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from selector.core.stream import StreamObserver
from selector.router.additions import Additions
from selector.router.answerstream import AnswerStream
from selector.router.client import Client


class Passage:
    """A sink for one stream, whose head the client was given."""

    __slots__ = ("_client", "_clock", "_finished", "_observer", "_over", "_stream", "_write_chunks")

    def __init__(
        self, additions: Additions, observer: StreamObserver, client: Client, clock: Callable[[], float]
    ) -> None:
        """`clock` gives seconds since the router started."""
        self._client = client
        self._clock = clock
        self._observer = observer
        self._stream = AnswerStream(additions, observer)
        self._write_chunks = client.takes_chunks
        self._finished = self._over = False

    def chunks(self, data: bytes) -> int:
        """See `Sink`."""
        write = self._write_chunks
        if write is None:
            return 0
        taken = self._stream.chunks(data, self._clock())
        if taken:
            write(data if taken == len(data) else data[:taken])
        return taken

    def pieces(self, pieces: Sequence[bytes], *, last: bool) -> None:
        """See `Sink`. The last of a complete answer ends it for the client at once."""
        feed, clock = self._stream.feed, self._clock
        passed = [kept for piece in pieces if (kept := feed(piece, clock()))]
        if last:
            self._finish(passed)
        else:
            self._client.pieces(passed, last=False)

    def end(self) -> bool:
        """Nothing more comes. Whether the answer was complete: then the client has it, otherwise `broke` is due."""
        if not self._finished:
            self._finish([])
        return self._over

    def broke(self, error: bytes) -> None:
        """The client gets an error event and the end, after what came."""
        self._client.pieces([error], last=True)

    def _finish(self, passed: list[bytes]) -> None:
        self._finished = True
        rest = self._stream.finish(self._clock())
        if rest:
            passed.append(rest)
        self._over = self._observer.done
        self._client.pieces(passed, last=self._over)
