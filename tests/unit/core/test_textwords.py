"""How a text is cut into words and counted against the word lists."""

from __future__ import annotations

import pytest

from selector.core import textlexicon as lexicon
from selector.core.textwords import END_CHARS, Words, cut


def share(words: Words, language: str) -> float:
    return words.language_share[lexicon.LANGUAGES.index(language)]


def test_words_are_counted_with_their_repetitions_and_numbers_apart() -> None:
    words = cut("The cat and the dog: 2 tails, 08 legs_total!")
    assert words.total == 8
    assert words.numbers == 2
    assert words.distinct == 9
    assert share(words, lexicon.ENGLISH) == 3 / 8


@pytest.mark.parametrize("text", ["“Où” est-elle", "«Où» est–elle…", "Où—est\u2018elle’", "Où.est'elle"])
def test_typographic_signs_part_words_as_ascii_signs_do(text: str) -> None:
    assert share(cut(text), "French") == 1.0


def test_topic_words_count_once_each() -> None:
    words = cut("Python python PYTHON, git.")
    assert words.topic_words[lexicon.PROGRAMMING] == 2
    assert words.variety(lexicon.PROGRAMMING) == 2 / (2 + 8)


def test_an_empty_text_has_no_share_of_anything() -> None:
    words = cut("")
    assert words.total == 1
    assert set(words.language_share) == {0.0}
    assert words.variety(lexicon.CODE) == 0.0


def test_the_ends_of_a_long_text() -> None:
    assert cut("Short").ends == "short"
    assert cut("A" * 1_000 + "B" * 1_000).ends == "a" * END_CHARS + "\n" + "b" * END_CHARS


def test_characters_that_utf_8_cannot_hold() -> None:
    assert cut("the \ud800 cat").total == 2


def test_other_languages_hold_no_english_words_and_no_single_letters() -> None:
    english = lexicon.LANGUAGE_WORDS[lexicon.ENGLISH]
    assert lexicon.LANGUAGES[:2] == (lexicon.ENGLISH, lexicon.ROMANSH)
    for language, words in lexicon.LANGUAGE_WORDS.items():
        assert len(words) > 20
        if language != lexicon.ENGLISH:
            assert not words & english
            assert not {word for word in words if len(word) == 1 and word.isascii()}
