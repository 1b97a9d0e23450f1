"""A text as hashed words, pairs of words and character n-grams: whole-array arithmetic, no loop over characters.

Bytes are folded first (letters to lower case, digits to one digit, other white space to a blank). The hash of bytes
s … e−1 is taken from one running sum, so that any number of pieces costs a few array operations (Rabin–Karp):

    C[i] = Σ_{j<i} (byte_j + 1) · B^j  mod 2^32        hash(s, e) = (C[e] − C[s]) · B^(−s)  mod 2^32

`B` is odd and so has an inverse. A final multiplication spreads the hash; its top bits are the bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint32]
Positions = NDArray[np.intp]

_BASE = 0x01000193
_SPREAD = np.uint32(0x9E3779B1)
_LEFT = np.uint32(0x85EBCA6B)
_RIGHT = np.uint32(0xC2B2AE35)
_FIRST_MAX_BYTES = 16_384

_TYPOGRAPHIC = {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u201e": '"', "\u2013": "-", "\u2014": "-"}
"""Quotation marks and dashes that stand for ASCII signs."""


def _folding() -> NDArray[np.uint8]:
    table = np.arange(256, dtype=np.uint8)
    table[:32] = ord(" ")
    table[ord("\n")] = ord("\n")
    table[127] = ord(" ")
    table[ord("A") : ord("Z") + 1] += 32
    table[ord("0") : ord("9") + 1] = ord("0")
    return table


def _is_word_byte() -> NDArray[np.bool_]:
    return np.array([byte >= 128 or chr(byte).isalnum() for byte in range(256)])


def _powers(base: int, count: int) -> Hashes:
    powers = np.empty(count, np.uint32)
    power = 1
    for position in range(count):
        powers[position] = power
        power = power * base % 2**32
    return powers


_FOLDED = _folding()
_IN_WORD = _is_word_byte()
_POWERS = _powers(_BASE, _FIRST_MAX_BYTES)
_INVERSES = _powers(pow(_BASE, -1, 2**32), _FIRST_MAX_BYTES)
MAX_BYTES = _FIRST_MAX_BYTES - 1
"""Most bytes of a text that are read; what is longer is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedText:
    """A text's bytes and the hashes of its words."""

    raw: NDArray[np.uint8]
    """UTF-8, quotation marks and dashes made ASCII."""
    folded: NDArray[np.uint8]
    sums: Hashes
    """C above; one longer than the bytes."""
    starts: Positions
    """Where each word starts; words are runs of letters, digits and bytes above ASCII."""
    stops: Positions
    words: Hashes
    """Hash of each word, not spread yet."""

    def ngrams(self, length: int) -> Hashes:
        """Spread hashes of all runs of `length` bytes, in order."""
        count = max(0, len(self.folded) - length + 1)
        hashes = self.sums[length : length + count] - self.sums[:count]
        return spread(hashes * _INVERSES[:count])


def hashed(text: str) -> HashedText:
    """Hashes the words of a text. Lone surrogates and NULs are bytes like any other."""
    if not text.isascii():
        for sign, plain in _TYPOGRAPHIC.items():
            text = text.replace(sign, plain)
    raw = np.frombuffer(text.encode("utf-8", "surrogatepass")[:MAX_BYTES], np.uint8)
    folded = _FOLDED.take(raw)
    sums = np.zeros(len(raw) + 1, np.uint32)
    np.cumsum((folded + np.uint32(1)) * _POWERS[: len(raw)], dtype=np.uint32, out=sums[1:])
    inside = np.zeros(len(raw) + 2, np.bool_)
    _IN_WORD.take(raw, out=inside[1:-1])
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    starts, stops = edges[::2], edges[1::2]
    words = (sums.take(stops) - sums.take(starts)) * _INVERSES.take(starts)
    return HashedText(raw=raw, folded=folded, sums=sums, starts=starts, stops=stops, words=words)


def pairs(words: Hashes) -> Hashes:
    """Hash of each word with the next one, not spread yet."""
    return words[:-1] * _LEFT + words[1:] * _RIGHT


def spread(hashes: Hashes) -> Hashes:
    """Hashes whose top bits depend on all bits."""
    mixed = hashes ^ (hashes >> np.uint32(15))
    return mixed * _SPREAD
