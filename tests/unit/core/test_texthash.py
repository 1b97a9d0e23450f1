"""Folded texts and the hashes of their runs of bytes: equal where the text is equal, whatever stands around it."""

from __future__ import annotations

import numpy as np
import pytest

from selector.core.texthash import GRAM_BYTES, MAX_BYTES, fold


def grams(text: str) -> list[int]:
    found: list[int] = fold(text).grams().tolist()
    return found


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("", b""),
        ("Room 12\tA\x00\n", b"room 00 a \n"),
        ("it’s “so” – «no»…", b'it\'s "so" - "no".'),
        ("É日", "É日".encode()),
        ("a\ud800b", b"a?b"),
    ],
)
def test_folding(text: str, folded: bytes) -> None:
    assert fold(text).folded == folded
    assert len(fold(text).raw) == len(folded)


def test_the_raw_bytes_keep_case_and_digits() -> None:
    assert fold("Room 12").raw == b"Room 12"


@pytest.mark.parametrize("length", range(12))
def test_every_run_of_bytes_has_a_hash(length: int) -> None:
    text = "abcdefghijkl"[:length]
    assert len(grams(text)) == max(0, length - GRAM_BYTES + 1)


def test_equal_runs_have_equal_hashes_wherever_they_stand() -> None:
    (wanted,) = grams("abcd")
    assert [start for start, found in enumerate(grams("xxabcdyyABCDz")) if found == wanted] == [2, 8]
    assert len(set(grams("abcdefgh"))) == 5


def test_hashes_spread_over_the_buckets() -> None:
    text = " ".join(f"{chr(97 + i % 26)}{chr(97 + i // 26 % 26)}{chr(97 + i // 676)}" for i in range(4_000))
    hashes = np.unique(fold(text).grams())
    buckets = np.unique(hashes >> np.uint32(32 - 14))
    assert len(buckets) > 0.6 * min(len(hashes), 2**14)


def test_what_is_longer_than_the_limit_is_cut() -> None:
    assert len(fold("é" * MAX_BYTES).raw) == MAX_BYTES
