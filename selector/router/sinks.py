"""Where the body of a backend's answer goes: pushed, nothing waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Sink(Protocol):
    """Takes the body of one answer as it comes."""

    def chunks(self, data: bytes) -> int:
        """How many bytes at the start of `data` it took: whole HTTP chunks, framing and all. May be none, or all.

        `data` begins at the border of two chunks.
        """

    def pieces(self, pieces: Sequence[bytes], *, last: bool) -> None:
        """What came of the body at once, in order, each chunk a piece; `last` if the body was read to its end."""


class WholeBody:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def chunks(self, data: bytes) -> int:
        """See `Sink`."""
        return 0

    def pieces(self, pieces: Sequence[bytes], *, last: bool) -> None:
        """See `Sink`."""
        self._pieces += pieces

    def body(self) -> bytes:
        """What came."""
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
