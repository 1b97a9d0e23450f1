"""What the trained part of the text model reads: hashed runs of bytes (character n-grams), and named signs.

Grams: every run of `GRAM_BYTES` folded bytes of the sampled text, hashed into `BUCKETS` buckets. A gram is there or
not; how often it occurs does not count. Signs: how densely the words of each topic occur, how common some kinds of
bytes are, and a few facts of length and form; numbers from 0 to 1.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from selector.core import textlexicon as lexicon
from selector.core.requesttext import RequestText
from selector.core.texthash import Hashes
from selector.core.textwords import Words

GRAM_BYTES = 4
BUCKET_BITS = 15
BUCKETS = 2**BUCKET_BITS

Floats = NDArray[np.float32]

_SHIFT = np.uint32(32 - BUCKET_BITS)
_TYPICAL_VARIETY = 0.12
_LONG_CHARS = 6_000
_SHORT_WORDS = 8

_BYTE_KINDS: dict[str, tuple[bytes, float]] = {
    "digits": (b"0123456789", 0.1),
    "capitals": (bytes(range(ord("A"), ord("Z") + 1)), 0.1),
    "line ends": (b"\n", 0.06),
    "brackets and braces": (b"{}[]<>;", 0.06),
    "equals and underscores": (b"=_", 0.04),
    "parentheses": (b"()", 0.04),
    "double quotes": (b'"', 0.04),
    "dollars and backslashes": (b"$\\^", 0.04),
    "colons": (b":", 0.04),
    "commas and stops": (b",.", 0.05),
    "question marks": (b"?", 0.01),
    "operators": (b"+-*/|&%#@`~", 0.05),
}
"""Kinds of bytes, each with the share of a text at which it counts fully."""


def _kind_of_byte() -> Floats:
    kinds = np.zeros((256, len(_BYTE_KINDS)), np.float32)
    for column, (members, full_share) in enumerate(_BYTE_KINDS.values()):
        kinds[list(members), column] = 1.0 / full_share
    return kinds


_KIND_OF_BYTE = _kind_of_byte()
SIGNS: tuple[str, ...] = (*lexicon.TOPICS, *_BYTE_KINDS, "a long text", "hardly any words", "a dialogue")
"""Names of the signs."""


def grams_of(words: Words) -> Hashes:
    """Bucket of every gram of a text, in the order of the text."""
    return words.hashed.ngrams(GRAM_BYTES) >> _SHIFT


def signs_of(words: Words, request: RequestText) -> Floats:
    """The signs, in the order of `SIGNS`."""
    density = 1.0 / ((words.distinct + 8) * _TYPICAL_VARIETY)
    found = np.empty(len(SIGNS), np.float32)
    topics = len(lexicon.TOPICS)
    np.multiply(words.topics, density, out=found[:topics])
    np.matmul(words.byte_shares, _KIND_OF_BYTE, out=found[topics:-3])
    found[-3] = request.longest_chars > _LONG_CHARS
    found[-2] = words.total < _SHORT_WORDS
    found[-1] = request.is_dialogue
    return np.minimum(found, 1.0, out=found)


def fingerprint() -> str:
    """Changes with whatever weights learned from these features depend on: names, sizes and word lists."""
    lists = {**lexicon.LANGUAGE_WORDS, **lexicon.TOPIC_WORDS}
    facts = (GRAM_BYTES, BUCKET_BITS, SIGNS, [(name, sorted(words)) for name, words in lists.items()])
    return blake2b(repr(facts).encode(), digest_size=8).hexdigest()
