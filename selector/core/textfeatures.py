"""What the trained part of the text model reads: hashed runs of bytes (character n-grams), and named signs.

Grams: every run of `GRAM_BYTES` folded bytes of the sampled text, hashed into `BUCKETS` buckets; each occurrence counts
the same. Signs: how densely the words of each topic occur, how common some kinds of bytes are, and whether the model
has answered before; numbers from 0 to 1.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from selector.core import textlexicon as lexicon
from selector.core.requesttext import RequestText
from selector.core.texthash import GRAM_BYTES, Hashes
from selector.core.textwords import Words

BUCKET_BITS = 14
BUCKETS = 2**BUCKET_BITS

Floats = NDArray[np.float32]

_ONE = np.float32(1.0)
_SHIFT = np.uint32(32 - BUCKET_BITS)
_TYPICAL_VARIETY = 0.12

_FULL_SHARE: dict[str, float] = {
    "digits": 0.1,
    "capitals": 0.1,
    "line ends": 0.06,
    "brackets and braces": 0.06,
    "equals and underscores": 0.04,
    "parentheses": 0.04,
    "double quotes": 0.04,
    "dollars and backslashes": 0.04,
    "colons": 0.04,
    "commas and stops": 0.05,
    "question marks": 0.01,
    "operators": 0.05,
}
"""The first of `textwords.BYTE_KINDS`, each with the share of a text at which it counts fully."""
_PER_FULL_SHARE = tuple(1.0 / share for share in _FULL_SHARE.values())
SIGNS: tuple[str, ...] = (*lexicon.TOPICS, *_FULL_SHARE, "a dialogue")
"""Names of the signs."""


def grams_of(words: Words) -> Hashes:
    """Bucket of every gram of a text, in the order of `FoldedText.grams`."""
    return words.bytes.grams() >> _SHIFT


def signs_of(words: Words, request: RequestText) -> Floats:
    """The signs, in the order of `SIGNS`."""
    density = 1.0 / ((words.distinct + 8) * _TYPICAL_VARIETY)
    found = [count * density for count in words.topics]
    found += [share * per_full for share, per_full in zip(words.byte_kinds, _PER_FULL_SHARE, strict=False)]
    found.append(request.is_dialogue)
    return np.minimum(np.fromiter(found, np.float32, len(SIGNS)), _ONE)


def fingerprint() -> str:
    """Changes with whatever weights learned from these features depend on: names, sizes and word lists."""
    lists = {**lexicon.LANGUAGE_WORDS, **lexicon.TOPIC_WORDS}
    facts = (GRAM_BYTES, BUCKET_BITS, SIGNS, [(name, sorted(words)) for name, words in lists.items()])
    return blake2b(repr(facts).encode(), digest_size=8).hexdigest()
