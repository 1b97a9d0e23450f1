"""Text rules: what the words and signs of a request say about its text type, without any trained model.

A rule looks at one thing and answers with `Evidence`: a text type, a weight in nats that is added to the type's
log-score, and the reason in words. Rules grow with what they see and saturate; none decides alone, because a request
can be code and prose at once. Their constants were set by hand: a share that is typical of the type gives the full
weight, a share that is usual in other texts gives none.
"""

from __future__ import annotations

import re
from operator import add
from typing import NamedTuple, TypeAlias

from selector.core import textlexicon as lexicon
from selector.core.requesttext import RequestText
from selector.core.textwords import TOPIC_AT as _AT
from selector.core.textwords import Words, cut, topics_in

_INTO_LANGUAGE = re.compile(
    r"\b(?:in|into|to|auf|ins|en|nach) (?:the |das |die |simple |plain |formal )?(?P<language>[^\W\d_]+)"
)
_ROMANSH_PASSAGE = re.compile(r"\b(?:following|folgenden?|quest|suandant) (?P<language>[^\W\d_]+)")
# Patterns that begin with a literal, because searching for one is what `re` does fast.
_FORMULAS = (
    ("$", re.compile(r"\$(?!\d[\d.,]* [a-z])[^$\n]{1,200}\$")),
    ("\\", re.compile(r"\\[a-zA-Z]{2,}")),
    ("^", re.compile(r"\^[\w({-]")),
    ("(", re.compile(r"\([a-z](?:, ?[a-z])?\)")),
    ("=", re.compile(r"=(?:(?<=\b[a-z]=)|(?<=\b[a-z] =)) ?-?\d")),
)
"""Patterns with a sign that each needs, so that a text without it is not searched."""
_NUMBER_ORDERS = ("calculate", "compute", "find ", "determine ", "how m")
_MATH_SIGNS = re.compile("[∑∫√≤≥∈∀∃∞±×÷∂∇]")
_MATH_SIGN_BYTES = (0xE2, 0xB1, 0x97, 0xB7)
"""One of these is in the UTF-8 of each of those signs; looking for a byte is many times as fast as for the signs."""
_CODE_LINE = re.compile(
    # Indentation is not given back (`*+`), so that a line of prose is left at once; `>>> ` itself looks like some.
    r"\n(?:[ \t>]*>>> |[ \t>]*+(?:def \w|class \w|import \w|from [\w.]+ import|#include|#!/|using \w|package \w"
    r"|public |private |func |fn |function\b|assert\b|return\b|(?:const|let|var) \w|@\w+\(|for ?\(|if ?\("
    r"|while ?\(|\$ \w|\w+ = |SELECT\b|INSERT\b))"
)
_TOOL_LIST = re.compile(r"""["'](?:parameters|arguments|inputs|input_schema)["']\s*:\s*[{\[]""")
_SIGNATURE = re.compile(r"\n[ \d.*-]*(?P<name>[A-Za-z]\w+)\([^()\n]*\) ?(?:->|:|-|\n)")
_TOOL_TURN = re.compile(
    r"^(?:/[a-z]+(?= |$)|observation\b.{0,4}:|action\b.{0,4}:|<<<<<<< search|@@ |exit code|traceback \(most|bash-\$)"
    r"|^.{0,20}\b(?:(?:tool|command|terminal|shell|console|program|execution) (?:output|result)|output of )"
    r"|<tool_response>",
    re.MULTILINE,
)
_JSON_FORM = re.compile(r"""\{\s*["'][\w -]+["']\s*:""")
_FORM_WORDS = ("format", "schema", "form", "fields", "keys", "structure", "object", "reply with", "respond with")
_LONG_CHARS = (7_500, 9_500)
"""A text this long may be a document, and one that long is."""
_PROGRAMMING_SIGNS = ("c++", "c#", ".js", ".py", "node.js", ".net ")
_MAYBE_PROGRAMMING = re.compile(r"\.(?:js|py|net )")
"""Found where one of the signs with a stop is, in one pass."""


class Evidence(NamedTuple):
    """One thing that speaks for a text type. A tuple, since several are made per request and are made fast."""

    text_type: str
    weight: float
    """Nats added to the type's log-score; negative speaks against it."""
    form: str
    """The reason in words, with a place for what was seen."""
    seen: float = 0.0
    """Put into words only where somebody reads them."""

    @property
    def reason(self) -> str:
        """Why, in words."""
        return self.form.format(self.seen)


Found: TypeAlias = list[Evidence]
"""What rules have found so far: each adds to it."""


def text_evidence(request: RequestText) -> list[Evidence]:
    """What the sampled text of a request says; empty when it holds nothing to read."""
    return evidence_in(cut(request.text), request)


def evidence_in(words: Words, request: RequestText) -> list[Evidence]:
    """`text_evidence` of a request whose text is cut already."""
    code_lines = len(_CODE_LINE.findall(f"\n{words.text}")) if words.total < 40 or "\n" in words.text else 0
    found: Found = []
    _orders(words, request, found)
    _dialogue_with_tools(words, request, found)
    _language(words, found)
    _answer_language(words, found)
    if request.longest_chars > _LONG_CHARS[0]:
        _length(request, found)
    _code(words, request, code_lines, found)
    _math(words, found, has_code=code_lines > 0 or request.code_fence_frac > 0)
    _news(words, found)
    _conversation(words, found)
    return found


def _orders(words: Words, request: RequestText, found: Found) -> None:
    """How to answer: with tools, over several steps, as JSON. System prompts say so as often as users do."""
    text, lowered, topics = words.text, words.lowered, words.topics
    if request.system:
        topics = tuple(map(add, topics, topics_in(request.system)))
        text, lowered = f"{request.system}\n{text}", f"{request.system.lower()}\n{lowered}"
    if topics[_AT[lexicon.TOOLS]]:
        _tools_in_text(text, lowered, topics[_AT[lexicon.TOOL_OFFERS]], found, is_dialogue=request.is_dialogue)
        orders = topics[_AT[lexicon.STEP_ORDERS]]
        if orders:
            found.append(Evidence("agentic", min(6.0 * orders, 20.0), "orders for several steps ({})", orders))
    if "{" in lowered or "json" in lowered:
        _json_in_text(lowered, topics[_AT[lexicon.JSON_ORDERS]], found)


def _tools_in_text(text: str, lowered: str, offers: int, found: Found, *, is_dialogue: bool) -> None:
    text_type = "agentic" if is_dialogue else "tool_call"
    described = len(_TOOL_LIST.findall(text)) if "name" in lowered else 0
    if described:
        found.append(Evidence(text_type, 16.0, "tools listed in the text ({})", described))
    elif offers:
        signatures = len(_SIGNATURE.findall(text))
        weight = min(2.0 + 2.0 * offers + 2.0 * signatures, 12.0)
        found.append(Evidence(text_type, weight, "tools offered in the text ({})", offers))


def _dialogue_with_tools(words: Words, request: RequestText, found: Found) -> None:
    if not request.is_dialogue and "observation" not in words.lowered:
        return
    turns = len(_TOOL_TURN.findall(words.lowered))
    if turns:
        found.append(
            Evidence("agentic", min(15.0 + 2.0 * turns, 21.0), "commands or their output in the turns ({})", turns)
        )


def _json_in_text(lowered: str, orders: int, found: Found) -> None:
    if orders and ("json" in lowered or "schema" in lowered):
        found.append(Evidence("structured_output", min(2.5 + orders, 5.0), "JSON is asked for in the text"))
    if '"$schema"' in lowered or (_quoted("properties", lowered) and _quoted("type", lowered)):
        found.append(Evidence("structured_output", 11.0, "a JSON Schema in the text"))
    elif "{" in lowered and any(word in lowered for word in _FORM_WORDS) and _JSON_FORM.search(lowered):
        found.append(Evidence("structured_output", 4.0, "the form of a JSON object in the text"))


def _quoted(name: str, text: str) -> bool:
    return f'"{name}"' in text or f"'{name}'" in text


def _language(words: Words, found: Found) -> None:
    english, romansh, *others = words.language_share
    other = max(others)
    foreign = max(romansh, other)
    if foreign > 0.04:
        weight = 12.0 * _ramp(foreign / (foreign + english), 0.2, 0.5) * _ramp(foreign, 0.04, 0.16)
        # A single short word may be a name or a variable.
        weight *= _ramp(words.foreign_words, 0, 2)
        # Romance languages share words: Romansh has to cover more of the text than any other.
        romansh_part = _ramp((romansh - other) / foreign, -0.05, 0.2)
        if weight * romansh_part > 0:
            found.append(Evidence("romansh", weight * romansh_part, "Romansh function words {:.0%}", romansh))
        if weight * (1 - romansh_part) > 0:
            name = lexicon.LANGUAGES[2 + others.index(other)]
            found.append(Evidence("multilingual", weight * (1 - romansh_part), name + " function words {:.0%}", other))
    if english < 0.1 and not words.topics[_AT[lexicon.PROGRAMMING]]:
        accented = 0.0 if words.text.isascii() else words.share_of("accented letters")
        # Romansh has accents too, so they say little beside its words.
        weight = (1.0 - english / 0.1) * (4.5 * _ramp(words.total, 2, 7) + 3.0 * _ramp(accented, 0.0, 0.04))
        weight *= (1.0 - _ramp(romansh, 0.0, 0.1)) * (1.0 - _ramp(_programming_signs(words), 0.005, 0.03))
        if weight > 0:
            found.append(Evidence("multilingual", weight, "hardly any English function words"))
    non_latin = 0.0 if words.text.isascii() else words.share_of("letters beyond Western Europe")
    if non_latin > 0.02:
        found.append(Evidence("multilingual", 12.0 * _ramp(non_latin, 0.02, 0.1), "non-Latin script {:.0%}", non_latin))


def _answer_language(words: Words, found: Found) -> None:
    if words.topics[_AT[lexicon.ROMANSH_NAMES]]:
        mentioned = _INTO_LANGUAGE.findall(words.ends) + _ROMANSH_PASSAGE.findall(words.ends)
        if not lexicon.TOPIC_WORDS[lexicon.ROMANSH_NAMES].isdisjoint(mentioned):
            found.append(Evidence("romansh", 14.0, "Romansh is asked for"))
    elif words.topics[_AT[lexicon.LANGUAGE_NAMES]] and words.topics[_AT[lexicon.WRITING_VERBS]]:
        wanted = _INTO_LANGUAGE.findall(words.ends)
        if not lexicon.TOPIC_WORDS[lexicon.LANGUAGE_NAMES].isdisjoint(wanted):
            found.append(Evidence("multilingual", 5.0, "an answer in another language is asked for"))


def _length(request: RequestText, found: Found) -> None:
    weight = 11.0 * _ramp(request.longest_chars, *_LONG_CHARS)
    if weight > 0:
        found.append(Evidence("long_document", weight, "a text of {:,} characters", request.longest_chars))


def _code(words: Words, request: RequestText, code_lines: int, found: Found) -> None:
    variety = words.variety(lexicon.CODE)
    if variety > 0.02:
        found.append(Evidence("code", 4.5 * _ramp(variety, 0.02, 0.14), "programming words {:.0%}", variety))
    tasks = words.topics[_AT[lexicon.PROGRAMMING_TASKS]]
    if tasks:
        weight = 4.0 * _ramp(tasks / (words.distinct + 8), 0.0, 0.06)
        found.append(Evidence("code", weight, "phrases of programming tasks ({})", tasks))
    names = words.topics[_AT[lexicon.PROGRAMMING]] + _programming_names(words.lowered)
    if names:
        weight = min(3.0 + names, 5.5) * _ramp(-words.total, -300, -30)
        found.append(Evidence("code", weight, "names of programming tools ({})", names))
    signs = _programming_signs(words)
    if signs > 0.01:
        found.append(Evidence("code", 2.5 * _ramp(signs, 0.01, 0.05), "programming signs {:.0%}", signs))
    if code_lines:
        found.append(Evidence("code", min(1.5 * code_lines, 4.0), "lines of code ({})", code_lines))
    if request.code_fence_frac > 0.05:
        found.append(Evidence("code", 4.0 * _ramp(request.code_fence_frac, 0.05, 0.4), "a code block"))


def _programming_names(lowered: str) -> int:
    """How many of `_PROGRAMMING_SIGNS` occur. Most texts hold none, and that is seen fast."""
    if "+" in lowered or "#" in lowered or _MAYBE_PROGRAMMING.search(lowered):
        return sum(sign in lowered for sign in _PROGRAMMING_SIGNS)
    return 0


def _programming_signs(words: Words) -> float:
    return words.share_of("brackets and braces") + words.share_of("equals and underscores")


def _math(words: Words, found: Found, *, has_code: bool) -> None:
    variety = words.variety(lexicon.MATH)
    if variety > 0.02:
        found.append(Evidence("math", 5.0 * _ramp(variety, 0.02, 0.10), "words of mathematics {:.0%}", variety))
    formulas = sum(len(pattern.findall(words.text)) for sign, pattern in _FORMULAS if sign in words.text)
    if not words.text.isascii() and any(byte in words.bytes.raw for byte in _MATH_SIGN_BYTES):
        formulas += len(_MATH_SIGNS.findall(words.text))
    if formulas:
        found.append(Evidence("math", min(1.5 + 0.7 * formulas, 4.0), "formulas ({})", formulas))
    if not has_code and _asks_for_a_number(words):
        quantities = words.numbers + words.topics[_AT[lexicon.QUANTITY]]
        density = quantities / (words.total + 8)
        if density > 0.03:
            found.append(Evidence("math", 6.0 * _ramp(density, 0.03, 0.11), "a question about quantities"))


def _asks_for_a_number(words: Words) -> bool:
    if not words.topics[_AT[lexicon.NUMBER_QUESTIONS]]:
        return False
    return "?" in words.text or any(order in words.lowered for order in _NUMBER_ORDERS)


def _news(words: Words, found: Found) -> None:
    if words.total < 10:
        return
    long_enough = _ramp(words.total, 8, 24)
    variety = words.variety(lexicon.NEWS)
    if variety > 0.02:
        weight = 4.5 * long_enough * _ramp(variety, 0.02, 0.09)
        found.append(Evidence("news", weight, "words of reporting {:.0%}", variety))
    if words.topics[_AT[lexicon.ARTICLES]]:
        found.append(Evidence("news", 2.5 * long_enough, "a request about an article"))
    asking = words.variety(lexicon.REQUEST)
    if asking < 0.09:
        # News passages tell; they do not ask.
        weight = (2.5 if "?" not in words.text else 1.5) * long_enough * (1 - asking / 0.09)
        found.append(Evidence("news", weight, "a report rather than a request"))


def _conversation(words: Words, found: Found) -> None:
    asking = words.variety(lexicon.REQUEST)
    if asking > 0:
        found.append(Evidence("conversation", 2.5 * _ramp(asking, 0.02, 0.13), "words of asking {:.0%}", asking))


def _ramp(value: float, low: float, high: float) -> float:
    """0 at or below `low`, 1 at or above `high`, linear between."""
    if value <= low:
        return 0.0
    return 1.0 if value >= high else (value - low) / (high - low)
