"""How a text is cut into words and counted against the word lists."""

from __future__ import annotations

import pytest

from selector.core import textlexicon as lexicon
from selector.core.textwords import BYTE_KINDS, END_CHARS, TOPIC_AT, Words, cut, topics_in


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


def test_pairs_of_words_count_in_their_order_and_across_signs() -> None:
    topic = lexicon.NUMBER_QUESTIONS
    assert cut("How many, and how MANY?").topic_words[topic] == 1
    assert cut("many how").topic_words[topic] == 0
    assert cut("how (many)").topic_words[topic] == 1


def test_words_of_a_list_are_told_from_words_like_them() -> None:
    assert cut("pythons pytho ython").topic_words[lexicon.PROGRAMMING] == 0


def test_kinds_of_bytes_are_shares_of_the_text() -> None:
    words = cut("A1?é")
    assert {kind: round(words.share_of(kind) * 5) for kind in BYTE_KINDS if words.share_of(kind)} == {
        "capitals": 1,
        "digits": 1,
        "question marks": 1,
        "accented letters": 1,
    }
    assert sum(cut("").byte_kinds) == 0


def test_topics_of_a_text_alone() -> None:
    text = "Answer in valid JSON, as JSON."
    assert topics_in(text) == cut(text).topics
    assert topics_in(text)[TOPIC_AT[lexicon.JSON_ORDERS]] == 2
