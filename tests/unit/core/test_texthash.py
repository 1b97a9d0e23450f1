"""Hashes of words and runs of bytes: equal where the text is equal, whatever stands around it."""

from __future__ import annotations

import numpy as np
import pytest

from selector.core.texthash import MAX_BYTES, hashed, pairs


def words(text: str) -> list[int]:
    found: list[int] = hashed(text).words.tolist()
    return found


def test_a_word_has_the_same_hash_wherever_it_stands() -> None:
    cat, dog = words("cat")[0], words("dog")[0]
    assert cat != dog
    assert words("The CAT, a dog; (cat)\n")[1::2] == [cat, dog]
    assert words("x " * 3_000 + "cat")[-1] == cat


@pytest.mark.parametrize(("text", "count"), [("", 0), (" ,.!", 0), ("a", 1), ("a-b_c", 3), ("é日 本", 2), ("1st", 1)])
def test_words_are_runs_of_letters_and_digits(text: str, count: int) -> None:
    assert len(words(text)) == count


def test_digits_and_case_do_not_matter_and_letters_do() -> None:
    assert words("Room 12") == words("rOOM 98")
    assert words("room 12") != words("roon 12")
    assert words("it’s “so”") == words("it's \"so\"")


def test_runs_of_bytes_are_found_again() -> None:
    once, twice = hashed("abcd").ngrams(4), hashed("xxabcdyyABCD").ngrams(4)
    assert len(once) == 1
    assert (twice == once[0]).nonzero()[0].tolist() == [2, 8]
    assert len(hashed("abc").ngrams(4)) == 0
    assert len(hashed("").ngrams(4)) == 0


def test_pairs_know_the_order_of_their_words() -> None:
    assert pairs(hashed("how many").words).tolist() == pairs(hashed("HOW, many").words).tolist()
    assert pairs(hashed("how many").words).tolist() != pairs(hashed("many how").words).tolist()
    assert len(pairs(hashed("one").words)) == len(pairs(hashed("").words)) == 0


def test_hashes_spread_over_the_buckets() -> None:
    text = " ".join(f"{chr(97 + i % 26)}{chr(97 + i // 26 % 26)}{chr(97 + i // 676)}" for i in range(5_000))
    buckets = hashed(text[:MAX_BYTES]).ngrams(4) >> np.uint32(32 - 15)
    filled = len(np.unique(buckets)) / len(np.unique(hashed(text).ngrams(4)))
    assert filled > 0.75


def test_what_is_longer_than_the_tables_is_cut() -> None:
    assert len(hashed("é" * MAX_BYTES).raw) == MAX_BYTES


def test_surrogates_and_nuls_are_read() -> None:
    assert len(words("a\ud800\x00b")) == 2
