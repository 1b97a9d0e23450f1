"""Server-sent events as bytes: cut out of a stream, whatever the reads were, and what their fields hold."""

from __future__ import annotations

import re

MAX_EVENT_BYTES = 8 * 1024 * 1024
"""An event that grows beyond this is not one; the splitter gives it up as it is."""

_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LONGEST_END = 4
_CR = ord("\r")


class EventSplitter:
    """Splits a byte stream into events. Their concatenation is the stream, whatever the reads were."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending = b""
        """What has not been completed by a blank line: not empty at the end means a truncated stream."""

    def feed(self, data: bytes) -> list[bytes]:
        """The events that `data` completes, each with its terminating blank line."""
        # What was pending holds no whole end, so a first end reaches into `data`.
        search_from = max(0, len(self.pending) - _LONGEST_END + 1)
        pending = self.pending + data if self.pending else data
        events: list[bytes] = []
        if _CR not in pending:
            *whole, rest = pending.split(b"\n\n")
            events = [event + b"\n\n" for event in whole]
        else:
            start = 0
            for end in _EVENT_END.finditer(pending, search_from):
                events.append(pending[start : end.end()])
                start = end.end()
            rest = pending[start:]
        if len(rest) > MAX_EVENT_BYTES:
            events.append(rest)
            rest = b""
        self.pending = rest
        return events

    def rest(self) -> bytes:
        """What is pending."""
        return self.pending


def event_data(event: bytes) -> bytes:
    """The payload of an event's `data:` lines, joined by newlines; empty for comments and other fields."""
    if event.startswith(b"data: ") and event.find(b"\n") >= len(event) - 2:
        return event[6:].rstrip(b"\r\n")
    parts = []
    for line in event.splitlines():
        if line.startswith(b"data:"):
            parts.append(line[5:].removeprefix(b" "))
    return b"\n".join(parts)


def event_name(event: bytes) -> bytes:
    """The value of an event's first line when that is its `event:` field, otherwise nothing."""
    if not event.startswith(b"event:"):
        return b""
    return event.splitlines()[0][6:].strip()
