"""Text rules: what the words and signs of a request say about its text type, without any trained model.

A rule looks at one thing and answers with `Evidence`: a text type, a weight in nats that is added to the type's
log-score, and the reason in words. Rules grow with what they see and saturate; none decides alone, because a request
can be code and prose at once. Their constants were set by hand: a share that is typical of the type gives the full
weight, a share that is usual in other texts gives none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from selector.core import textlexicon as lexicon
from selector.core.requesttext import RequestText
from selector.core.textwords import Words, cut

_NON_LATIN = re.compile("[\u0370-\u1dff\u2e80-\ud7ff\uf900-\ufaff\ufb1d-\ufdff\ufe70-\ufefc\uff66-\uffdc]+")
_INTO_LANGUAGE = re.compile(
    r"\b(?:in|into|to|auf|ins|en|nach) (?:the |das |die |simple |plain |formal )?(?P<language>[^\W\d_]+)"
)
_ROMANSH_PASSAGE = re.compile(r"\b(?:following|folgenden?|quest|suandant) (?P<language>[^\W\d_]+)")
# Patterns that begin with a literal, because searching for one is what `re` does fast.
_FORMULAS = (
    re.compile(r"\$[^$\n]{1,200}\$"),
    re.compile(r"\\[a-zA-Z]{2,}"),
    re.compile(r"\^[\w({-]"),
    re.compile(r"\([a-z](?:, ?[a-z])?\)"),
    re.compile(r"=(?:(?<=\b[a-z]=)|(?<=\b[a-z] =)) ?-?\d"),
)
_MATH_SIGNS = "∑∫√≤≥∈∀∃∞±×÷∂∇"
_CODE_LINE = re.compile(
    r"\n[ \t>]*(?:def \w|class \w|import \w|from [\w.]+ import|#include|#!/|using \w|package \w|public |private "
    r"|func |fn |function\b|assert\b|return\b|(?:const|let|var) \w|@\w+\(|for ?\(|if ?\(|while ?\(|>>> |\$ \w"
    r"|\w+ = |SELECT\b|INSERT\b)"
)
_CODE_SIGNS = "{};=<>[]_"
_TOOL_LIST = re.compile(r'"(?:parameters|arguments|inputs|input_schema)"\s*:\s*[{\[]')
_TOOL_TURN = re.compile(
    r"^(?:/[a-z]+(?= |$)|observation:|action:|<<<<<<< search|@@ |exit code|traceback \(most)"
    r"|^.{0,20}\b(?:(?:tool|command|terminal|shell|console|program|execution) (?:output|result)|output of )",
    re.MULTILINE,
)
_JSON_ORDERS = (
    "json only",
    "only json",
    "valid json",
    "json object",
    "json document",
    "json array",
    "json format",
    "json response",
    "json schema",
    "json with",
    "in json",
    "as json",
    "following schema",
    "schema below",
    "this schema",
)
_NUMBER_QUESTIONS = (
    "how many",
    "how much",
    "how long",
    "how far",
    "how old",
    "how fast",
    "how tall",
    "what is",
    "what's",
    "what was",
    "when do",
    "calculate",
    "compute",
    "find the",
    "determine the",
)
_NEWS_NAMES = (
    "following article",
    "this article",
    "news item",
    "news report",
    "news story",
    "headline",
    "press release",
)
_PROGRAMMING_SIGNS = ("c++", "c#", ".js", ".py", "node.js", ".net ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One thing that speaks for a text type."""

    text_type: str
    weight: float
    """Nats added to the type's log-score; negative speaks against it."""
    reason: str


def text_evidence(request: RequestText) -> tuple[Evidence, ...]:
    """What the sampled text of a request says; empty when it holds nothing to read."""
    words = cut(request.text)
    code_lines = len(_CODE_LINE.findall(f"\n{words.text}"))
    return (
        *_tools_in_text(words, request),
        *_dialogue_with_tools(words, request),
        *_json_in_text(words, request),
        *_language(words),
        *_answer_language(words),
        *_length(request),
        *_code(words, request, code_lines),
        *_math(words, has_code=code_lines > 0 or request.code_fence_frac > 0),
        *_news(words),
        *_conversation(words),
    )


def _tools_in_text(words: Words, request: RequestText) -> Iterator[Evidence]:
    text = f"{request.system}\n{words.text}" if request.system else words.text
    if '"name"' in text and words.topic_words[lexicon.TOOLS]:
        described = len(_TOOL_LIST.findall(text))
        if described:
            yield Evidence(text_type="tool_call", weight=16.0, reason=f"tools listed in the text ({described})")


def _dialogue_with_tools(words: Words, request: RequestText) -> Iterator[Evidence]:
    if not request.is_dialogue and "observation:" not in words.lowered:
        return
    turns = len(_TOOL_TURN.findall(words.lowered))
    if turns:
        reason = f"commands or their output in the turns ({turns})"
        yield Evidence(text_type="agentic", weight=min(13.0 + 2.0 * turns, 18.0), reason=reason)


def _json_in_text(words: Words, request: RequestText) -> Iterator[Evidence]:
    lowered = f"{request.system.lower()}\n{words.lowered}" if request.system else words.lowered
    if "json" in lowered or "schema" in lowered:
        orders = sum(map(lowered.count, _JSON_ORDERS))
        if orders:
            yield Evidence(
                text_type="structured_output", weight=min(2.5 + orders, 5.0), reason="JSON is asked for in the text"
            )
    if '"$schema"' in lowered or ('"properties"' in lowered and '"type"' in lowered):
        yield Evidence(text_type="structured_output", weight=11.0, reason="a JSON Schema in the text")


def _language(words: Words) -> Iterator[Evidence]:
    english, romansh, *others = words.language_share
    other = max(others)
    name = lexicon.LANGUAGES[2 + others.index(other)]
    foreign = max(romansh, other)
    if foreign > 0.04:
        weight = 12.0 * _ramp(foreign / (foreign + english), 0.2, 0.5) * _ramp(foreign, 0.04, 0.16)
        # Romance languages share words: the list that covers more of the text is the language.
        romansh_part = _ramp((romansh - other) / foreign, -0.15, 0.15)
        if weight * romansh_part > 0:
            yield Evidence(
                text_type="romansh", weight=weight * romansh_part, reason=f"Romansh function words {romansh:.0%}"
            )
        if weight * (1 - romansh_part) > 0:
            reason = f"{name} function words {other:.0%}"
            yield Evidence(text_type="multilingual", weight=weight * (1 - romansh_part), reason=reason)
    surplus_bytes = 0 if words.text.isascii() else len(words.text.encode("utf-8", "replace")) - len(words.text)
    if surplus_bytes > 0.03 * len(words.text):  # accents and quotation marks alone are not worth a closer look
        non_latin = sum(map(len, _NON_LATIN.findall(words.text))) / len(words.text)
        if non_latin > 0.03:
            weight = 12.0 * _ramp(non_latin, 0.03, 0.2)
            yield Evidence(text_type="multilingual", weight=weight, reason=f"non-Latin script {non_latin:.0%}")


def _answer_language(words: Words) -> Iterator[Evidence]:
    if words.topic_words[lexicon.ROMANSH_NAMES]:
        mentioned = _INTO_LANGUAGE.findall(words.ends) + _ROMANSH_PASSAGE.findall(words.ends)
        if not lexicon.TOPIC_WORDS[lexicon.ROMANSH_NAMES].isdisjoint(mentioned):
            yield Evidence(text_type="romansh", weight=14.0, reason="Romansh is asked for")
    elif words.topic_words[lexicon.LANGUAGE_NAMES] and words.topic_words[lexicon.WRITING_VERBS]:
        wanted = _INTO_LANGUAGE.findall(words.ends)
        if not lexicon.TOPIC_WORDS[lexicon.LANGUAGE_NAMES].isdisjoint(wanted):
            yield Evidence(text_type="multilingual", weight=5.0, reason="an answer in another language is asked for")


def _length(request: RequestText) -> Iterator[Evidence]:
    weight = 11.0 * _ramp(request.longest_chars, 7_500, 9_500)
    if weight > 0:
        yield Evidence(
            text_type="long_document", weight=weight, reason=f"a text of {request.longest_chars:,} characters"
        )


def _code(words: Words, request: RequestText, code_lines: int) -> Iterator[Evidence]:
    variety = words.variety(lexicon.CODE)
    if variety > 0.02:
        yield Evidence(
            text_type="code", weight=4.5 * _ramp(variety, 0.02, 0.14), reason=f"programming words {variety:.0%}"
        )
    names = words.topic_words[lexicon.PROGRAMMING] + sum(sign in words.lowered for sign in _PROGRAMMING_SIGNS)
    if names:
        weight = min(2.0 + names, 4.5) * _ramp(-words.total, -800, -100)
        yield Evidence(text_type="code", weight=weight, reason=f"names of programming tools ({names})")
    signs = sum(map(words.text.count, _CODE_SIGNS)) / max(1, len(words.text))
    if signs > 0.01:
        yield Evidence(text_type="code", weight=2.5 * _ramp(signs, 0.01, 0.05), reason=f"programming signs {signs:.0%}")
    if code_lines:
        yield Evidence(text_type="code", weight=min(1.5 * code_lines, 4.0), reason=f"lines of code ({code_lines})")
    if request.code_fence_frac > 0.05:
        weight = 4.0 * _ramp(request.code_fence_frac, 0.05, 0.4)
        yield Evidence(text_type="code", weight=weight, reason="a code block")


def _math(words: Words, *, has_code: bool) -> Iterator[Evidence]:
    variety = words.variety(lexicon.MATH)
    if variety > 0.02:
        yield Evidence(
            text_type="math", weight=5.0 * _ramp(variety, 0.02, 0.10), reason=f"words of mathematics {variety:.0%}"
        )
    formulas = sum(len(pattern.findall(words.text)) for pattern in _FORMULAS)
    if not words.text.isascii():
        formulas += sum(map(words.text.count, _MATH_SIGNS))
    if formulas:
        yield Evidence(text_type="math", weight=min(1.5 + 0.7 * formulas, 4.0), reason=f"formulas ({formulas})")
    if not has_code and any(question in words.ends for question in _NUMBER_QUESTIONS):
        quantities = words.numbers + words.topic_words[lexicon.QUANTITY]
        density = quantities / (words.total + 8)
        if density > 0.03:
            yield Evidence(
                text_type="math", weight=6.0 * _ramp(density, 0.03, 0.11), reason="a question about quantities"
            )


def _news(words: Words) -> Iterator[Evidence]:
    if words.total < 12:
        return
    long_enough = _ramp(words.total, 12, 30)
    variety = words.variety(lexicon.NEWS)
    if variety > 0.02:
        weight = 4.5 * long_enough * _ramp(variety, 0.02, 0.09)
        yield Evidence(text_type="news", weight=weight, reason=f"words of reporting {variety:.0%}")
    if any(name in words.ends for name in _NEWS_NAMES):
        yield Evidence(text_type="news", weight=2.5 * long_enough, reason="a request about an article")
    asking = words.variety(lexicon.REQUEST)
    if asking < 0.09:
        yield Evidence(
            text_type="news", weight=2.0 * long_enough * (1 - asking / 0.09), reason="a report rather than a request"
        )


def _conversation(words: Words) -> Iterator[Evidence]:
    asking = words.variety(lexicon.REQUEST)
    if asking > 0:
        yield Evidence(
            text_type="conversation", weight=2.5 * _ramp(asking, 0.02, 0.13), reason=f"words of asking {asking:.0%}"
        )


def _ramp(value: float, low: float, high: float) -> float:
    """0 at or below `low`, 1 at or above `high`, linear between."""
    return min(1.0, max(0.0, (value - low) / (high - low)))
