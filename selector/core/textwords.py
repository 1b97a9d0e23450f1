"""A text cut into words once and counted against the word lists, for text rules and text model alike.

Every word of a list, and every pair of words, has one integer with a field of `_FIELD_BITS` bits for each list, 1 in
the fields of the lists it stands in. The sum of the integers of a text's words then holds the counts of all lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import compress, pairwise, repeat
from typing import NamedTuple

import numpy as np

from selector.core import textlexicon as lexicon
from selector.core.texthash import MAX_BYTES, FoldedText, fold

END_CHARS = 300

BYTE_KINDS: Mapping[str, bytes] = {
    "digits": b"0123456789",
    "capitals": bytes(range(ord("A"), ord("Z") + 1)),
    "line ends": b"\n",
    "brackets and braces": b"{}[]<>;",
    "equals and underscores": b"=_",
    "parentheses": b"()",
    "double quotes": b'"',
    "dollars and backslashes": b"$\\^",
    "colons": b":",
    "commas and stops": b",.",
    "question marks": b"?",
    "operators": b"+-*/|&%#@`~",
    # First bytes of letters in UTF-8. Vietnamese shares one with other scripts.
    "accented letters": bytes(range(0xC3, 0xCA)),
    "letters beyond Western Europe": bytes((*range(0xCE, 0xE2), *range(0xE3, 0xEE))),
}
"""Kinds of bytes; none is of two kinds."""

_FIELD_BITS = 16
"""A text of `MAX_BYTES` has fewer words than a field can count."""
_LONGEST_NUMBER = 12
_LANGUAGES, _TOPICS = len(lexicon.LANGUAGES), len(lexicon.TOPICS)
_FIELDS = _LANGUAGES + _TOPICS + 1
_BLANK_FOR_SIGNS = bytes(byte if byte >= 128 or chr(byte).isalnum() else ord(" ") for byte in range(256))


class Words(NamedTuple):
    """The words of a text, as shares and counts. A tuple, since one is made per request and is made fast."""

    text: str
    lowered: str
    """The folded bytes as text: ASCII letters in lower case, digits all 0."""
    bytes: FoldedText
    total: int
    """Words that are not numbers, at least 1."""
    numbers: int
    """Words that are digits alone; of more than `_LONGEST_NUMBER` digits, none."""
    distinct: int
    """Different words and numbers."""
    language_share: list[float]
    """By language (`lexicon.LANGUAGES`): share of the words that are its function words."""
    language_words: list[int]
    """By language: how many different function words of it occur."""
    topics: list[int]
    """By topic (`lexicon.TOPICS`): how many of its words and pairs of words occur, repetitions not counted."""
    topic_words: Mapping[str, int]
    """The same by name."""
    byte_kinds: list[float]
    """By kind (`BYTE_KINDS`): share of the text's bytes, as UTF-8, that are of it."""

    @property
    def ends(self) -> str:
        """The first and last `END_CHARS` of `lowered`, where a long text has its instruction or question."""
        lowered = self.lowered
        return lowered if len(lowered) <= 2 * END_CHARS else f"{lowered[:END_CHARS]}\n{lowered[-END_CHARS:]}"

    def variety(self, topic: str) -> float:
        """Share of the different words that are in the list; damped in short texts, where one word is a large share."""
        return self.topic_words[topic] / (self.distinct + 8)

    def share_of(self, kind: str) -> float:
        """Share of the text's bytes that are of a kind."""
        return self.byte_kinds[_KIND_POSITION[kind]]


def cut(text: str) -> Words:
    """Cuts a text."""
    pieces = fold(text)
    words = pieces.folded.translate(_BLANK_FOR_SIGNS).split()
    different = set(words)
    in_lists = _counts(words)
    different_in_lists = _different_counts(words, different)
    numbers = in_lists[-1]
    total = max(1, len(words) - numbers)
    topics = different_in_lists[_LANGUAGES:-1]
    return Words(
        text,
        pieces.folded.decode("utf-8", "replace"),
        pieces,
        total,
        numbers,
        len(different),
        [count / total for count in in_lists[:_LANGUAGES]],
        different_in_lists[:_LANGUAGES],
        topics,
        dict(zip(lexicon.TOPICS, topics, strict=True)),
        _shares_of_kinds(pieces.raw),
    )


def topics_in(text: str) -> Mapping[str, int]:
    """`Words.topic_words` of a text of which nothing else is asked."""
    words = fold(text).folded.translate(_BLANK_FOR_SIGNS).split()
    return dict(zip(lexicon.TOPICS, _different_counts(words, set(words))[_LANGUAGES:-1], strict=True))


def _counts(words: Iterable[bytes]) -> list[int]:
    """By list: how many of the words stand in it. Languages, topics, and numbers last."""
    return _fields(sum(map(_LISTS_OF.get, words, repeat(0))))


def _different_counts(words: list[bytes], different: set[bytes]) -> list[int]:
    """By list: how many different words and pairs of words of it occur."""
    pairs = set(compress(pairwise(words), map(_FIRST_OF_PAIRS.__contains__, words)))
    return _fields(sum(map(_LISTS_OF.get, different, repeat(0))) + sum(map(_PAIR_LISTS.get, pairs, repeat(0))))


def _fields(total: int) -> list[int]:
    fields: list[int] = np.frombuffer(total.to_bytes(_FIELDS * _FIELD_BITS // 8, "little"), "<u2").tolist()
    return fields


def _shares_of_kinds(raw: bytes) -> list[float]:
    kinds = np.bincount(np.frombuffer(raw.translate(_KIND_OF_BYTE), np.uint8), minlength=len(BYTE_KINDS) + 1)
    per_byte = 1.0 / max(1, len(raw))
    return [count * per_byte for count in kinds[: len(BYTE_KINDS)].tolist()]


def _kind_of_byte() -> bytes:
    """Position of the kind of each byte; one past the last for bytes of none."""
    kinds = bytearray([len(BYTE_KINDS)] * 256)
    for position, members in enumerate(BYTE_KINDS.values()):
        for member in members:
            kinds[member] = position
    return bytes(kinds)


def _lists_of() -> tuple[dict[bytes, int], dict[tuple[bytes, ...], int]]:
    """The integer of each word, and of each pair of words."""
    numbers = ["0" * digits for digits in range(1, _LONGEST_NUMBER + 1)]
    of_word: dict[bytes, int] = {}
    of_pair: dict[tuple[bytes, ...], int] = {}
    for position, entries in enumerate((*lexicon.LANGUAGE_WORDS.values(), *lexicon.TOPIC_WORDS.values(), numbers)):
        field = 1 << position * _FIELD_BITS
        for entry in entries:
            words = tuple(fold(entry).folded.split(b"_"))
            if len(words) == 1:
                of_word[words[0]] = of_word.get(words[0], 0) + field
            else:
                of_pair[words] = of_pair.get(words, 0) + field
    return of_word, of_pair


assert MAX_BYTES // 2 < 2**_FIELD_BITS
_KIND_OF_BYTE = _kind_of_byte()
_KIND_POSITION = {kind: position for position, kind in enumerate(BYTE_KINDS)}
_LISTS_OF, _PAIR_LISTS = _lists_of()
_FIRST_OF_PAIRS = frozenset(pair[0] for pair in _PAIR_LISTS)
