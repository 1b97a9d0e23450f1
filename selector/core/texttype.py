"""The text type of a request, from its structure first and its text second.

    extract(body)  ->  RequestText  ->  classify(...)  ->  TextEstimate

Evidence is added up per type, on top of a prior, and a softmax makes probabilities of it: strong structure (tools, a
response format, tool results) decides, weak signs leave a mixture. Definitions, the first that applies wins:

    tool_call          the request offers tools, by field or listed in the text, and is a single request
    agentic            a dialogue in which tools or commands have been, or have to be, used over several steps
    structured_output  the answer has to follow a JSON Schema or a stated JSON layout
    romansh            the text, or the answer asked for, is Romansh
    multilingual       any other language than English, whatever the topic
    long_document      a long English text (from about 9,000 characters) with a question or a request about it
    code, math, news   English requests or passages of that kind
    conversation       the rest

What reads the text is an argument of `classify`. The default is the rules of `selector.core.textrules`; a trained model
is another function of the same signature, whose evidence is one weight a type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from selector.core.prompttokens import ascii_chars_for_prompt_tokens, estimate_prompt_tokens
from selector.core.requestneeds import needs
from selector.core.requesttext import RequestText, extract
from selector.core.sessionkey import session_key
from selector.core.textrules import Evidence, text_evidence
from selector.core.types import TEXT_TYPES, UNKNOWN_TEXT_TYPE

__all__ = [
    "Evidence",
    "RequestText",
    "TextEstimate",
    "TextModel",
    "ascii_chars_for_prompt_tokens",
    "classify",
    "estimate_prompt_tokens",
    "extract",
    "needs",
    "session_key",
]

TextModel = Callable[[RequestText], tuple[Evidence, ...]]
"""Reads the sampled text of a request. Must be pure; the request's structure is judged here, not by the model."""

_PRIOR_NATS = {"conversation": 1.5}
"""Conversation is what a request is when nothing speaks for anything else."""
_RULING_SYSTEM_CHARS = 600
"""A system prompt of this length beside offered tools lays down how to proceed over several steps."""
_REASONS = 4
_POSITION = {text_type: position for position, text_type in enumerate(TEXT_TYPES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEstimate:
    """What a request's text type is taken to be."""

    text_type: str
    """The most probable of `TEXT_TYPES`; `unknown` for an empty request only."""
    probabilities: tuple[float, ...]
    """Over `TEXT_TYPES`, summing to 1; all equal when the type is unknown."""
    reasons: tuple[str, ...]
    """What spoke for `text_type`, strongest first."""


def classify(text: RequestText, text_model: TextModel = text_evidence) -> TextEstimate:
    """The text type of a request, with its probabilities and reasons."""
    if text.is_empty:
        uniform = (1.0 / len(TEXT_TYPES),) * len(TEXT_TYPES)
        return TextEstimate(text_type=UNKNOWN_TEXT_TYPE, probabilities=uniform, reasons=("nothing to read",))
    evidence = (*_structure_evidence(text), *text_model(text))
    scores = [_PRIOR_NATS.get(text_type, 0.0) for text_type in TEXT_TYPES]
    for item in evidence:
        scores[_POSITION[item.text_type]] += item.weight
    probabilities = _softmax(scores)
    text_type = TEXT_TYPES[probabilities.index(max(probabilities))]
    spoke = sorted((item for item in evidence if item.text_type == text_type), key=lambda item: -item.weight)
    reasons = tuple(item.reason for item in spoke[:_REASONS] if item.weight > 0)
    return TextEstimate(
        text_type=text_type,
        probabilities=probabilities,
        reasons=reasons or ("nothing speaks for another type",),
    )


def _structure_evidence(text: RequestText) -> Iterator[Evidence]:
    """What the request's fields say. The weights outdo what text rules usually add up to, in order of precedence."""
    if text.has_tools:
        yield Evidence(text_type="tool_call", weight=22.0, reason=f"tools offered ({text.tools})")
        if text.is_dialogue or text.roles.count("user") > 1:
            yield Evidence(text_type="agentic", weight=26.0, reason="a dialogue with tools at hand")
        elif text.system:
            ruling_frac = min(1.0, len(text.system) / _RULING_SYSTEM_CHARS)
            reason = "a system prompt that rules how tools are used"
            yield Evidence(text_type="agentic", weight=26.0 * ruling_frac, reason=reason)
    if text.tool_messages or text.tool_calls:
        yield Evidence(text_type="agentic", weight=28.0, reason=f"tool results so far ({text.tool_messages})")
    if text.output_format:
        yield Evidence(text_type="structured_output", weight=18.0, reason=f"answer bound to {text.output_format}")


def _softmax(scores: list[float]) -> tuple[float, ...]:
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)
