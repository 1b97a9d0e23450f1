"""A text as folded bytes and its runs of bytes (character n-grams), hashed with whole-array arithmetic.

Folding makes letters lower case, digits one digit and other white space a blank, so that runs say what is written and
not how. A run of four bytes is one 32-bit integer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint32]

GRAM_BYTES = 4
MAX_BYTES = 16_384
"""Most bytes of a text that are read; what is longer is cut."""

_SPREAD = np.uint32(0x9E3779B1)
_INTEGER = np.dtype("<u4")
_NOTHING = np.empty(0, _INTEGER)
_TYPOGRAPHIC = {
    sign.encode(): plain
    for sign, plain in {
        "\u00ab": b'"',
        "\u00bb": b'"',
        "\u2018": b"'",
        "\u2019": b"'",
        "\u201c": b'"',
        "\u201d": b'"',
        "\u201e": b'"',
        "\u2013": b"-",
        "\u2014": b"-",
        "\u2026": b".",
    }.items()
}
"""Quotation marks, dashes and the ellipsis as UTF-8, and the ASCII they stand for."""


def _folding() -> bytes:
    """What each byte is folded to."""
    table = bytearray(range(256))
    table[:32] = b" " * 32
    table[127] = ord(" ")
    table[ord("\n")] = ord("\n")
    table[ord("A") : ord("Z") + 1] = bytes(range(ord("a"), ord("z") + 1))
    table[ord("0") : ord("9") + 1] = b"0" * 10
    return bytes(table)


_FOLDED = _folding()


class FoldedText(NamedTuple):
    """The bytes of a text."""

    raw: bytes
    """UTF-8, quotation marks and dashes made ASCII."""
    folded: bytes
    """As long as `raw`."""

    def grams(self) -> Hashes:
        """Hash of every run of `GRAM_BYTES` bytes, in the order of the text: its top bits are the bucket."""
        runs = max(0, len(self.folded) - GRAM_BYTES + 1)
        # An integer from every byte on: one view that overlaps itself.
        integers = np.ndarray((runs,), _INTEGER, self.folded, strides=(1,)) if runs else _NOTHING
        hashes: Hashes = np.multiply(integers, _SPREAD)
        return hashes


def fold(text: str) -> FoldedText:
    """Folds a text. Lone surrogates are read as question marks, NULs as blanks."""
    data = text.encode("utf-8", "replace")[:MAX_BYTES]
    if not text.isascii():
        for sign, plain in _TYPOGRAPHIC.items():
            # Looking for one byte first, because that is many times as fast.
            if sign[-1] in data:
                data = data.replace(sign, plain)
    return FoldedText(data, data.translate(_FOLDED))
