"""A text cut into words once, hashed, and counted against the word lists, for text rules and text model alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from selector.core import textlexicon as lexicon
from selector.core.texthash import HashedText, Hashes, hashed, pairs

END_CHARS = 300

_Rows = NDArray[np.intp]
_Table = NDArray[np.float32]

_WORD_BUCKETS = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The words of a text, as shares and counts."""

    text: str
    lowered: str
    """The folded bytes as text: ASCII letters in lower case, digits all 0."""
    ends: str
    """The first and last `END_CHARS` of `lowered`, where a long text has its instruction or question."""
    hashed: HashedText
    total: int
    """Words that are not numbers, at least 1."""
    numbers: int
    """Words that begin with a digit."""
    language_share: tuple[float, ...]
    """By language (`lexicon.LANGUAGES`): share of the words that are its function words."""
    language_words: tuple[float, ...]
    """By language: how many different function words of it occur."""
    distinct: int
    """Different words and numbers; a few of a long text may count as one."""
    topics: tuple[float, ...]
    """By topic (`lexicon.TOPICS`): how many of its words and pairs of words occur, repetitions not counted."""
    topic_words: Mapping[str, float]
    """The same by name."""
    byte_counts: tuple[int, ...]
    """How often each of the 256 bytes occurs in the text as UTF-8."""
    byte_shares: NDArray[np.float32]
    """The same as shares of the text; all 0 for an empty one."""

    def variety(self, topic: str) -> float:
        """Share of the different words that are in the list; damped in short texts, where one word is a large share."""
        return self.topic_words[topic] / (self.distinct + 8)

    def share_of(self, signs: bytes) -> float:
        """Share of the text's bytes that are among `signs`."""
        counts = self.byte_counts
        return sum(counts[sign] for sign in signs) / max(1, len(self.hashed.raw))


def cut(text: str) -> Words:
    """Cuts a text. Lone surrogates and NULs stand for themselves."""
    pieces = hashed(text)
    words = pieces.words
    lowered = pieces.folded.tobytes().decode("utf-8", "replace")
    numbers = int(np.count_nonzero(pieces.folded.take(pieces.starts) == _DIGIT))
    total = max(1, len(words) - numbers)
    occurrences = np.bincount(_rows(words), minlength=len(_KEYS)).astype(np.float32)
    there = _occurring(words, occurrences)
    seen = np.zeros(_WORD_BUCKETS, np.bool_)
    seen[words & _WORD_MASK] = True
    counts = (there @ _STANDS_IN).tolist()
    topics = tuple(counts[_LANGUAGES:])
    byte_counts = np.bincount(pieces.raw, minlength=256)
    return Words(
        text=text,
        lowered=lowered,
        ends=lowered if len(lowered) <= 2 * END_CHARS else f"{lowered[:END_CHARS]}\n{lowered[-END_CHARS:]}",
        hashed=pieces,
        total=total,
        numbers=numbers,
        language_share=tuple((occurrences @ _LANGUAGE_OF / total).tolist()),
        language_words=tuple(counts[:_LANGUAGES]),
        distinct=int(np.count_nonzero(seen)),
        topics=topics,
        topic_words=dict(zip(lexicon.TOPICS, topics, strict=True)),
        byte_counts=tuple(byte_counts.tolist()),
        byte_shares=(byte_counts / max(1, len(pieces.raw))).astype(np.float32),
    )


def topics_in(text: str) -> Mapping[str, float]:
    """`Words.topic_words` of a text of which nothing else is asked."""
    words = hashed(text).words
    there = _occurring(words, np.bincount(_rows(words), minlength=len(_KEYS)).astype(np.float32))
    return dict(zip(lexicon.TOPICS, (there @ _STANDS_IN).tolist()[_LANGUAGES:], strict=True))


def _occurring(words: Hashes, occurrences: _Table) -> _Table:
    """1 for each row of the lexicon that occurs as a word or as a pair of words."""
    there = np.minimum(occurrences, _ONE)
    there[_rows(pairs(words))] = 1.0
    return there


def _rows(pieces: Hashes) -> _Rows:
    """Rows of the lexicon that the pieces are, each as often as it occurs."""
    rows = np.searchsorted(_KEYS, pieces)
    return rows[_KEYS.take(rows) == pieces]


def _key(entry: str) -> int:
    """The hash of a word, or of a pair of words joined by `_`."""
    words = hashed(entry.replace("_", " ")).words
    return int(words[0] if len(words) == 1 else pairs(words)[0])


def _tables() -> tuple[Hashes, _Table]:
    """Hashes of all entries, sorted and closed by one that stands for none; by entry and list, whether it is in it."""
    lists = (*lexicon.LANGUAGE_WORDS.values(), *lexicon.TOPIC_WORDS.values())
    lists_of: dict[int, list[int]] = {}
    for position, entries in enumerate(lists):
        for entry in entries:
            lists_of.setdefault(_key(entry), []).append(position)
    keys = np.array([*sorted(lists_of), 2**32 - 1], np.uint32)
    stands_in = np.zeros((len(keys), len(lists)), np.float32)
    for row, key in enumerate(keys[:-1].tolist()):
        stands_in[row, lists_of[key]] = 1.0
    return keys, stands_in


_DIGIT = np.uint8(ord("0"))
_ONE = np.float32(1.0)
_WORD_MASK = np.uint32(_WORD_BUCKETS - 1)
_LANGUAGES = len(lexicon.LANGUAGES)
_KEYS, _STANDS_IN = _tables()
_LANGUAGE_OF = np.ascontiguousarray(_STANDS_IN[:, :_LANGUAGES])
