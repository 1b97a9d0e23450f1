"""The text type of a request, from its structure first and its text second.

    extract(body)  ->  RequestText  ->  classify(text, model)  ->  TextEstimate

Evidence is added up per type and a softmax makes probabilities of it: strong structure (tools, a response format, tool
results) decides, weak signs leave a mixture. Definitions, the first that applies wins:

    tool_call          the request offers tools, by field or listed in the text, and is a single request
    agentic            a dialogue in which tools or commands have been, or have to be, used over several steps
    structured_output  the answer has to follow a JSON Schema or a stated JSON layout
    romansh            the text, or the answer asked for, is Romansh
    multilingual       any other language than English, whatever the topic
    long_document      a long English text (from about 9,000 characters) with a question or a request about it
    code, math, news   English requests or passages of that kind
    conversation       the rest

How the evidence is found: selector.core.textrules (by rule) and selector.core.textmodel (rules and learned weights).
The weights are data: selector.files.textmodel reads them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from selector.core.prompttokens import ascii_chars_for_prompt_tokens, estimate_prompt_tokens
from selector.core.quickinit import quick_init, quick_maker
from selector.core.requestneeds import needs
from selector.core.requesttext import RequestText, extract
from selector.core.sessionkey import session_key
from selector.core.textmodel import (
    TextModel,
    evidence_of,
    gram_evidence,
    probabilities,
    scores,
    sign_evidence,
    untrained,
)
from selector.core.textrules import Evidence
from selector.core.textwords import cut
from selector.core.types import TEXT_TYPES, UNKNOWN_TEXT_TYPE

__all__ = [
    "Evidence",
    "Explanation",
    "RequestText",
    "TextEstimate",
    "TextModel",
    "ascii_chars_for_prompt_tokens",
    "classify",
    "estimate_prompt_tokens",
    "explain",
    "extract",
    "needs",
    "session_key",
    "untrained",
]

_REASONS = 4
_GRAMS = 6
_SIGNS = 3
_UNIFORM = (1.0 / len(TEXT_TYPES),) * len(TEXT_TYPES)


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class TextEstimate:
    """What a request's text type is taken to be."""

    text_type: str
    """The most probable of `TEXT_TYPES`; `unknown` for an empty request only."""
    probabilities: tuple[float, ...]
    """Over `TEXT_TYPES`, summing to 1; all equal when the type is unknown."""
    evidence: tuple[Evidence, ...] = ()
    """What was found by structure and rule, for this type and for others."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """What of it spoke for the type, in words, strongest first; nothing of the text itself."""
        return _reasons_for(self.text_type, self.evidence)


_make_estimate = quick_maker(TextEstimate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What spoke for the estimated type, strongest first."""

    reasons: tuple[str, ...]
    """In words: structure and rules; never empty."""
    signs: tuple[tuple[str, float], ...]
    """Named signs with their learned nats."""
    grams: tuple[tuple[str, float], ...]
    """Runs of bytes of the text, folded (lower case, digits 0), with their learned nats."""


def classify(text: RequestText, model: TextModel) -> TextEstimate:
    """The text type of a request, with its probabilities."""
    if text.is_empty:
        return TextEstimate(text_type=UNKNOWN_TEXT_TYPE, probabilities=_UNIFORM)
    scored, evidence = scores(text, model)
    found = probabilities(scored, model.temperatures)
    text_type = TEXT_TYPES[found.index(max(found))]
    return _make_estimate(text_type=text_type, probabilities=found, evidence=tuple(evidence))


def _reasons_for(text_type: str, evidence: Iterable[Evidence]) -> tuple[str, ...]:
    spoke = [item for item in evidence if item.text_type == text_type and item.weight > 0]
    if len(spoke) > 1:
        spoke.sort(key=attrgetter("weight"), reverse=True)
    return tuple([item.reason for item in spoke[:_REASONS]])


def explain(text: RequestText, model: TextModel, text_type: str) -> Explanation:
    """What spoke for `text_type`, as `classify` found it. Costs several times as much as `classify`."""
    if text_type == UNKNOWN_TEXT_TYPE:
        return Explanation(reasons=("nothing to read",), signs=(), grams=())
    return Explanation(
        reasons=_reasons_for(text_type, evidence_of(cut(text.text), text)) or ("nothing speaks for another type",),
        signs=tuple(sign_evidence(text, model, text_type, _SIGNS)),
        grams=tuple(gram_evidence(text, model, text_type, _GRAMS)),
    )
