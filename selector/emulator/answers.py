"""What the three APIs' answers have in common: a stream of events, or one body.

    chat         role event, an event a step, finish event          [sglext event] [usage event] [DONE]
    completion   an event a step, the last with the finish reason   [sglext event] [usage event] [DONE]
    native       an event a step, each with everything so far       [DONE]

Formats are bytes in memory without I/O. An event holds the tokens of one step, several when drafts were accepted; a
writer that falls behind joins the tokens of several steps in one event, as SGLang does.
"""

from __future__ import annotations

from typing import Protocol

import orjson

DONE = b"data: [DONE]\n\n"


class Answer(Protocol):
    """One request's answer in the format of one API."""

    headers_first: bool
    """Whether a stream's status and headers are sent at once, or only with the first token."""

    def begin(self) -> list[bytes]:
        """Events before the first tokens."""
        ...

    def event(self, seen: int, tokens: int, *, ended: bool) -> bytes | None:
        """The event that brings the reader from `seen` tokens to `tokens`; `None` when there is nothing to tell."""
        ...

    def end(self) -> list[bytes]:
        """Events after the last tokens, up to and with `[DONE]`."""
        ...

    def whole(self) -> bytes:
        """The body of an answer that is not streamed."""
        ...


def sse(data: object) -> bytes:
    """One server-sent event with JSON."""
    return b"data: %b\n\n" % orjson.dumps(data)
