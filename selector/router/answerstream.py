"""A streamed answer on its way through, without I/O: bytes from the backend in, bytes for the client out.

Whole events are passed on as they came, those of one read together, and watched by the observer. An event that is not
complete yet waits for its end: until then it cannot be told whether it is one to withhold, and no reader of the stream
could use it.
"""

from __future__ import annotations

from selector.core.stream import ContentShape, EventSplitter, StreamObserver
from selector.router.additions import Additions


class AnswerStream:
    """One stream. `feed` for every read, then `finish`."""

    __slots__ = ("_additions", "_observer", "_shape", "_splitter")

    def __init__(self, additions: Additions, observer: StreamObserver) -> None:
        self._additions = additions
        self._observer = observer
        self._shape = ContentShape()
        self._splitter = EventSplitter()

    def feed(self, data: bytes, now_s: float) -> bytes:
        """What to pass on of `data`, read at `now_s`, and of what waited for it; may be nothing."""
        if not self._splitter.pending and self._shape.matches(data):
            self._observer.content(now_s)
            return data
        passed = []
        for event in self._splitter.feed(data):
            plain = self._observer.event(event, now_s)
            if not self._additions.is_withheld(event):
                passed.append(event if plain else self._additions.completed(event, self._observer.spec))
                if plain:
                    self._shape.learn(event)
        return passed[0] if len(passed) == 1 else b"".join(passed)

    def finish(self, now_s: float) -> bytes:
        """What to pass on at the end of the stream.

        An event without its blank line is passed on only if it completes the answer. Otherwise the stream was cut in
        the middle of it: readers must discard such an event, and it would spoil an error event sent after it.
        """
        rest = self._splitter.rest()
        if not rest or self._observer.done:
            return rest
        self._observer.event(rest, now_s)
        return rest if self._observer.done else b""
