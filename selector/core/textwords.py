"""A text cut into words once and counted against the word lists, for text rules and text model alike.

Every listed word has two integers, one for the languages and one for the topics, with a field of `_FIELD_BITS` bits for
each list, 1 in the fields of the lists it stands in; every listed pair of words has one for the topics. The sum of the
integers of a text's words then holds the counts of all lists: with repetitions for languages, without for topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

from selector.core import textlexicon as lexicon
from selector.core.texthash import MAX_BYTES, FoldedText, fold

Word = bytes

END_CHARS = 300
_KEPT_TEXTS = 256
TOPIC_AT: Mapping[str, int] = {topic: place for place, topic in enumerate(lexicon.TOPICS)}
"""Place of a topic in `Words.topics`."""

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
_LANGUAGE_FIELDS = Struct(f"<{len(lexicon.LANGUAGES) + 1}H")
"""Languages, then numbers."""
_TOPIC_FIELDS = Struct(f"<{len(lexicon.TOPICS)}H")
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
    different: set[Word]
    """Those."""
    language_share: list[float]
    """By language (`lexicon.LANGUAGES`): share of the words that are its function words."""
    topics: tuple[int, ...]
    """By topic (`lexicon.TOPICS`): how many of its words and pairs of words occur, repetitions not counted."""
    byte_kinds: list[float]
    """By kind (`BYTE_KINDS`): share of the text's bytes, as UTF-8, that are of it."""

    @property
    def foreign_words(self) -> int:
        """The most different function words of one language other than English: 0, 1, or 2 for two and more."""
        seen = 0
        for word in self.different:
            languages = _LANGUAGES_OF.get(word, 0) & _FOREIGN
            if seen & languages:
                return 2
            seen |= languages
        return 1 if seen else 0

    @property
    def topic_words(self) -> Mapping[str, int]:
        """`topics` by name, for whoever reads only some of them and seldom."""
        return dict(zip(lexicon.TOPICS, self.topics, strict=True))

    @property
    def ends(self) -> str:
        """The first and last `END_CHARS` of `lowered`, where a long text has its instruction or question."""
        lowered = self.lowered
        return lowered if len(lowered) <= 2 * END_CHARS else f"{lowered[:END_CHARS]}\n{lowered[-END_CHARS:]}"

    def variety(self, topic: str) -> float:
        """Share of the different words that are in the list; damped in short texts, where one word is a large share."""
        return self.topics[TOPIC_AT[topic]] / (self.distinct + 8)

    def share_of(self, kind: str) -> float:
        """Share of the text's bytes that are of a kind."""
        return self.byte_kinds[_KIND_POSITION[kind]]


def cut(text: str) -> Words:
    """Cuts a text."""
    pieces = fold(text)
    words = pieces.folded.translate(_BLANK_FOR_SIGNS).split()
    different = set(words)
    *in_languages, numbers = _in_languages(words)
    total = max(1, len(words) - numbers)
    topics = _in_topics(words, different)
    return Words(
        text,
        pieces.folded.decode("utf-8", "replace"),
        pieces,
        total,
        numbers,
        len(different),
        different,
        [count / total for count in in_languages],
        topics,
        _shares_of_kinds(pieces.raw),
    )


@lru_cache(maxsize=_KEPT_TEXTS)
def topics_in(text: str) -> tuple[int, ...]:
    """`Words.topics` of a text of which nothing else is asked: a system prompt, which many requests share."""
    words = fold(text).folded.translate(_BLANK_FOR_SIGNS).split()
    return _in_topics(words, set(words))


def _in_languages(words: Iterable[Word]) -> tuple[int, ...]:
    """By language: how many of the words are its function words; numbers last."""
    return _fields(filter(None, map(_LANGUAGES_OF.get, words)), _LANGUAGE_FIELDS)


def _in_topics(words: list[Word], different: set[Word]) -> tuple[int, ...]:
    """By topic: how many different words and pairs of words of it occur."""
    pairs = _PAIRS.intersection(pairwise(words))
    of_words = map(_TOPICS_OF.__getitem__, different & _TOPIC_WORDS)
    return _fields((*of_words, *map(_TOPICS_OF_PAIR.__getitem__, pairs)), _TOPIC_FIELDS)


def _fields(integers: Iterable[int], layout: Struct) -> tuple[int, ...]:
    """The fields of the sum of integers."""
    return layout.unpack(sum(integers).to_bytes(layout.size, "little"))


def _shares_of_kinds(raw: bytes) -> list[float]:
    kinds, per_byte = raw.translate(_KIND_OF_BYTE, _BYTES_OF_NO_KIND), 1.0 / max(1, len(raw))
    return [kinds.count(kind) * per_byte for kind in _KINDS]


def _kind_of_byte() -> bytes:
    """Position of the kind of each byte; one past the last for bytes of none."""
    kinds = bytearray([len(BYTE_KINDS)] * 256)
    for position, members in enumerate(BYTE_KINDS.values()):
        for member in members:
            kinds[member] = position
    return bytes(kinds)


def _integers(lists: Iterable[Iterable[str]]) -> dict[tuple[Word, ...], int]:
    """The integer of each word and of each pair of words."""
    found: dict[tuple[Word, ...], int] = {}
    for position, entries in enumerate(lists):
        for entry in entries:
            words = tuple(fold(entry).folded.split(b"_"))
            found[words] = found.get(words, 0) + (1 << position * _FIELD_BITS)
    return found


assert MAX_BYTES // 2 < 2**_FIELD_BITS
_KIND_OF_BYTE = _kind_of_byte()
_BYTES_OF_NO_KIND = bytes(byte for byte in range(256) if _KIND_OF_BYTE[byte] == len(BYTE_KINDS))
_KIND_POSITION = {kind: position for position, kind in enumerate(BYTE_KINDS)}
_KINDS = range(len(BYTE_KINDS))
_NUMBERS = ["0" * digits for digits in range(1, _LONGEST_NUMBER + 1)]
_LANGUAGES_OF = {words[0]: field for words, field in _integers((*lexicon.LANGUAGE_WORDS.values(), _NUMBERS)).items()}
_TOPICS_OF_PAIR = _integers(lexicon.TOPIC_WORDS.values())
_TOPICS_OF = {words[0]: _TOPICS_OF_PAIR.pop(words) for words in list(_TOPICS_OF_PAIR) if len(words) == 1}
_FOREIGN = (1 << (len(lexicon.LANGUAGES) * _FIELD_BITS)) - (1 << _FIELD_BITS)
"""The fields of all languages but English, which comes first."""
_TOPIC_WORDS, _PAIRS = frozenset(_TOPICS_OF), frozenset(_TOPICS_OF_PAIR)
