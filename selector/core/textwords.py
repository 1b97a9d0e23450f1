"""A text cut into words once, and counted against the word lists, for all text rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from selector.core import textlexicon as lexicon

END_CHARS = 300

_SPACE_FOR_SIGNS = bytes(b if b >= 128 or chr(b).isalnum() else ord(" ") for b in range(256))
_TYPOGRAPHIC_SIGNS = "\u2018\u2019\u201c\u201d\u201e\u00ab\u00bb\u2013\u2014\u2026"
"""Quotation marks, dashes and the ellipsis, which stand against words as ASCII signs do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The words of a text, as shares and counts."""

    text: str
    lowered: str
    ends: str
    """The first and last `END_CHARS` of `lowered`, where a long text has its instruction or question."""
    total: int
    """Words, at least 1."""
    numbers: int
    """Words made of digits alone."""
    language_share: tuple[float, ...]
    """By language (`lexicon.LANGUAGES`): share of the words that are its function words."""
    distinct: int
    """Different words and numbers."""
    topic_words: Mapping[str, int]
    """By topic list: how many of its words occur, repetitions not counted."""

    def variety(self, topic: str) -> float:
        """Share of the different words that are in the list; damped in short texts, where one word is a large share."""
        return self.topic_words[topic] / (self.distinct + 8)


def cut(text: str) -> Words:
    lowered = text.lower()
    counts = Counter(_split(lowered))
    numbers = sum(counts[word] for word in counts if word.isdecimal())
    total = max(1, counts.total() - numbers)
    by_language = [0] * len(lexicon.LANGUAGES)
    languages_of_word = lexicon.LANGUAGES_OF_WORD
    for word in counts.keys() & languages_of_word.keys():
        count = counts[word]
        for position in languages_of_word[word]:
            by_language[position] += count
    by_topic = [0] * len(lexicon.TOPICS)
    topics_of_word = lexicon.TOPICS_OF_WORD
    for word in counts.keys() & topics_of_word.keys():
        for position in topics_of_word[word]:
            by_topic[position] += 1
    return Words(
        text=text,
        lowered=lowered,
        ends=lowered if len(lowered) <= 2 * END_CHARS else f"{lowered[:END_CHARS]}\n{lowered[-END_CHARS:]}",
        total=total,
        numbers=numbers,
        language_share=tuple(count / total for count in by_language),
        distinct=len(counts),
        topic_words=dict(zip(lexicon.TOPICS, by_topic, strict=True)),
    )


def _split(lowered: str) -> list[str]:
    """The words and numbers of a text; several times faster than a pattern of word characters."""
    if not lowered.isascii():
        for sign in _TYPOGRAPHIC_SIGNS:
            lowered = lowered.replace(sign, " ")
    return lowered.encode("utf-8", "replace").translate(_SPACE_FOR_SIGNS).decode("utf-8").split()
