"""The text of emulated answers: token n of an answer is one short English word with a leading space.

All words have the same length and all token ids the same number of digits, so the text or the ids of any run of tokens
is a slice of a byte string made once: formatting a chunk costs the same however long the answer is.
"""

from __future__ import annotations

from functools import lru_cache

_CYCLE_TEXT = (
    b" able also area away back ball bank base bear best bird blue boat body book call came camp care case"
    b" city clay coat cold come corn dark date deal deep door down draw drop dust each east edge face fact"
    b" fair fall farm fast fell felt fill find fine fire fish five flat flow food foot form four free full"
)
_WORD_BYTES = 5
_CYCLE_TOKENS = len(_CYCLE_TEXT) // _WORD_BYTES
END_TOKEN_ID = 2
"""The token that ends an answer by itself; it has no text."""
_FIRST_TOKEN_ID = 10_000
_ID_BYTES = 6
_CYCLE_IDS = "".join(f"{_FIRST_TOKEN_ID + index}," for index in range(_CYCLE_TOKENS)).encode()


@lru_cache(maxsize=4)
def _cycles(count: int) -> tuple[bytes, bytes]:
    return _CYCLE_TEXT * count, _CYCLE_IDS * count


class Words:
    """The words of one answer; `start_key` decides which comes first."""

    __slots__ = ("_first", "_ids", "_text")

    def __init__(self, start_key: int, longest_tokens: int) -> None:
        # Doubling the size until it suffices keeps the number of distinct byte strings small.
        cycles = 2
        while (cycles - 1) * _CYCLE_TOKENS < longest_tokens:
            cycles *= 2
        self._text, self._ids = _cycles(cycles)
        self._first = start_key % _CYCLE_TOKENS

    def text(self, start: int, end: int) -> bytes:
        """Text of the tokens `start` … `end` − 1. Needs no escaping in JSON."""
        first = self._first
        return self._text[_WORD_BYTES * (first + start) : _WORD_BYTES * (first + max(start, end))]

    def ids(self, end: int) -> bytes:
        """Ids of the first `end` tokens, separated by commas."""
        first = self._first
        return self._ids[_ID_BYTES * first : _ID_BYTES * (first + end)].removesuffix(b",")
