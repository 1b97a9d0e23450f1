"""What the content events of a stream look like, so that most of them need no second look."""

from __future__ import annotations

import re

HAS_CONTENT = re.compile(rb'"(?:content|text|reasoning_content|arguments|name|delta|partial_json)":\s*"[^"]')
"""Finds a field with generated text in an event; the match ends behind the first character of the text."""
_CR = ord("\r")
_PLAIN_TEXT = re.compile(rb'[^"\r\n]+')


class ContentShape:
    """What the content events of one stream have in common, so that most of them need no second look.

    Servers write every content event of a stream in the same words; only the text differs. An event that agrees with
    one already understood in all but its text, and whose text has no quote and no line end in it and is not empty, can
    hold no other field: it means the same.
    """

    __slots__ = ("after", "before")

    def __init__(self) -> None:
        self.before = b""
        """What comes before the text in every event of this shape, on one line; empty until a shape is learnt."""
        self.after = b""
        """What comes after it: from the quote that ends the text to the blank line, the only line end in it."""

    def matches(self, event: bytes) -> bool:
        """Whether `event` is one whole event of the shape learnt."""
        before, after = self.before, self.after
        return (
            before != b""
            and event.startswith(before)
            and event.endswith(after)
            and _PLAIN_TEXT.fullmatch(event, len(before), len(event) - len(after)) is not None
        )

    def learn(self, event: bytes) -> None:
        """Takes the shape of an event that `StreamObserver.event` found to be plain content."""
        match = HAS_CONTENT.search(event)
        if match is None or not event.startswith(b"data: "):
            return
        start = match.end() - 1
        end = event.find(b'"', start)
        # One line of data and one blank line: a line end of another kind could cut events differently.
        if event.find(b"\n") == len(event) - 2 and _CR not in event and event[end - 1 : end] != b"\\":
            self.before, self.after = event[:start], event[end:]
