"""A streamed answer on its way through, without I/O: bytes from the backend in, bytes for the client out.

Whole events are passed on as they came, those of one piece together, and watched by the observer. An event that is not
complete yet waits for its end: until then it cannot be told whether it is one to withhold, and no reader of the stream
could use it.

Most reads of a chunked body are whole HTTP chunks with one content event each, all in the same words. `chunks` knows
them by those words, so that they go on as they are, framing and all.
"""

from __future__ import annotations

from selector.core.contentshape import ContentShape
from selector.core.stream import StreamObserver
from selector.core.streamevents import EventSplitter
from selector.router.additions import Additions

_SIZES_OF_3 = {b"%x\r\n" % size: size for size in range(0x100, 0x1000)}
_SIZES_OF_2 = {b"%x\r\n" % size: size for size in range(0x10, 0x100)}
"""Chunk sizes by their lines, as servers write them. What is written otherwise, or is of another length, the HTTP
parser reads."""
_LINE_OF_A_WHOLE = {len(line) + size + 2: line for sizes in (_SIZES_OF_2, _SIZES_OF_3) for line, size in sizes.items()}
"""The line with which a read begins that is one whole chunk, by the length of the read: no length has two."""
_QUOTE, _LF, _CR = b'"\n\r'


class AnswerStream:
    """One stream. `feed` for every piece of the body, or `chunks` where it can take a read, then `finish`."""

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

    def chunks(self, data: bytes, now_s: float) -> int:
        """How many bytes at the start of `data`, read at `now_s`, are HTTP chunks to pass on as they are.

        `data` begins at the border of two chunks. Those counted are whole, and each is one content event that `feed`
        would pass on too: they are taken as fed. What follows them is not.
        """
        before = self._shape.before
        if not before or self._splitter.pending:
            return 0
        after = self._shape.after + b"\r\n"
        length = len(data)
        # Nearly every read is one chunk, and that is seen without a loop.
        line = _LINE_OF_A_WHOLE.get(length)
        if line is not None and data.startswith(line) and data.startswith(before, len(line)) and data.endswith(after):
            text = data[len(line) + len(before) : length - len(after)]
            if text and not (_QUOTE in text or _LF in text or _CR in text):
                self._observer.content(now_s)
                return length
        around = len(before) + len(after) - 2
        passed = events = 0
        while passed < length:
            begin = passed + 5
            size = _SIZES_OF_3.get(data[passed:begin])
            if size is None:
                begin = passed + 4
                size = _SIZES_OF_2.get(data[passed:begin])
                if size is None:
                    break
            if not data.startswith(before, begin):
                break
            begin += len(before)
            end = begin + size - around
            if end <= begin or not data.startswith(after, end):
                break
            text = data[begin:end]
            if _QUOTE in text or _LF in text or _CR in text:
                break
            passed = end + len(after)
            events += 1
        if events:
            self._observer.content(now_s, events)
        return passed

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
