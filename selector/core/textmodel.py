"""The text type's log-odds: rules written by hand, corrected by weights that were learned around them.

    score(type) = prior + structure + rules + Σ signs · W_signs + Σ W_grams[gram] / (grams + GRAM_DAMPING)
    probabilities = softmax(score / temperature of the type whose score is highest)

The learned part is a softmax regression with the rules as a fixed offset and a penalty on every weight, so it stays at
nothing where the sources it was trained on say nothing in common. Training is in bench/train_texttype.py; the arrays
ship as data and come in as arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from selector.core.requesttext import RequestText
from selector.core.textfeatures import BUCKETS, SIGNS, Floats, grams_of, signs_of
from selector.core.texthash import GRAM_BYTES, MAX_BYTES, Hashes
from selector.core.textrules import Evidence, evidence_in
from selector.core.textwords import Words, cut
from selector.core.types import TEXT_TYPES
from selector.errors import DomainError

GRAM_DAMPING = 100.0
"""Grams at which those of a text weigh half of what those of a long text do: a few grams say little."""
PRIOR_NATS = {"conversation": 1.5}
"""Conversation is what a request is when nothing speaks for anything else."""

_RULING_SYSTEM_CHARS = 600
"""A system prompt of this length beside offered tools lays down how to proceed over several steps."""
_POSITION = {text_type: position for position, text_type in enumerate(TEXT_TYPES)}
_ONES = np.ones(MAX_BYTES, np.float32)
_PRIORS = tuple(PRIOR_NATS.get(text_type, 0.0) for text_type in TEXT_TYPES)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextModel:
    """Learned weights in nats, all over `TEXT_TYPES` in the last dimension. Raises `DomainError` for other shapes."""

    gram_weights: Floats
    """(`BUCKETS`, text types)"""
    sign_weights: Floats
    """(`SIGNS`, text types)"""
    temperatures: tuple[float, ...]
    """By text type: what scores are divided by before the softmax where that type's is the highest, so that
    probabilities are the shares that come true. One for each, because rules are surer of some types than of others."""

    def __post_init__(self) -> None:
        for name, weights, rows in (
            ("gram_weights", self.gram_weights, BUCKETS),
            ("sign_weights", self.sign_weights, len(SIGNS)),
        ):
            if weights.shape != (rows, len(TEXT_TYPES)) or not np.isfinite(weights).all():
                raise DomainError(f"{name} {weights.shape}: must be finite, of shape {(rows, len(TEXT_TYPES))}")
        if len(self.temperatures) != len(TEXT_TYPES) or not all(0 < each < math.inf for each in self.temperatures):
            raise DomainError(f"temperatures {self.temperatures}: must be a positive number for each text type")


def untrained() -> TextModel:
    """A model without learned weights: the rules alone."""
    types = len(TEXT_TYPES)
    return TextModel(
        gram_weights=np.zeros((BUCKETS, types), np.float32),
        sign_weights=np.zeros((len(SIGNS), types), np.float32),
        temperatures=(1.0,) * types,
    )


def scores(request: RequestText, model: TextModel) -> tuple[list[float], list[Evidence]]:
    """Log-odds by text type, before the temperatures, and what was found by rule."""
    words = cut(request.text)
    grams = grams_of(words)
    by_signs = signs_of(words, request).dot(model.sign_weights).tolist()
    by_grams, scale = gram_sum(grams, model.gram_weights).tolist(), gram_scale(len(grams))
    evidence = evidence_of(words, request)
    ruled = zip(rule_scores(evidence), by_signs, by_grams, strict=True)
    return [rule + sign + gram * scale for rule, sign, gram in ruled], evidence


def rule_scores(evidence: Iterable[Evidence]) -> list[float]:
    """Prior, structure and rules: the part of `scores` that is not learned."""
    totals = list(_PRIORS)
    for item in evidence:
        totals[_POSITION[item.text_type]] += item.weight
    return totals


def evidence_of(words: Words, request: RequestText) -> list[Evidence]:
    """What the request's fields and its text say by rule."""
    return _structure(request) + evidence_in(words, request)


def gram_sum(grams: Hashes, weights: Floats) -> Floats:
    """Sum of the rows of the grams. As a product with ones, which is several times as fast as a sum over rows."""
    total: Floats = _ONES[: len(grams)].dot(weights.take(grams, axis=0))
    return total


def gram_scale(grams: int) -> float:
    """What one gram counts in a text of `grams`."""
    return 1.0 / (grams + GRAM_DAMPING)


def probabilities(scores: list[float], temperatures: tuple[float, ...]) -> tuple[float, ...]:
    """Softmax of scores divided by the temperature of the highest; sums to 1."""
    top = max(scores)
    temperature = temperatures[scores.index(top)]
    exp = math.exp
    weights = [exp((score - top) / temperature) for score in scores]
    total = math.fsum(weights)
    return tuple([weight / total for weight in weights])


def gram_evidence(request: RequestText, model: TextModel, text_type: str, count: int) -> list[tuple[str, float]]:
    """The grams of a request that spoke most for a text type, with their nats, strongest first."""
    words = cut(request.text)
    grams = grams_of(words)
    found, first_at, times = np.unique(grams, return_index=True, return_counts=True)
    nats = model.gram_weights[found, _POSITION[text_type]] * times * gram_scale(len(grams))
    named = []
    for place in np.argsort(-nats, kind="stable")[:count].tolist():
        start = int(first_at[place])
        gram = words.bytes.folded[start : start + GRAM_BYTES].decode("utf-8", "replace")
        named.append((gram, float(nats[place])))
    return [(gram, weight) for gram, weight in named if weight > 0]


def sign_evidence(request: RequestText, model: TextModel, text_type: str, count: int) -> list[tuple[str, float]]:
    """The signs of a request that spoke most for a text type by learned weight, with their nats, strongest first."""
    nats = signs_of(cut(request.text), request) * model.sign_weights[:, _POSITION[text_type]]
    strongest = np.argsort(-nats, kind="stable")[:count].tolist()
    return [(SIGNS[place], float(nats[place])) for place in strongest if nats[place] > 0]


def _structure(text: RequestText) -> list[Evidence]:
    """What the request's fields say. The weights outdo what text rules usually add up to, in order of precedence."""
    found: list[Evidence] = []
    if text.tools:
        found.append(Evidence("tool_call", 22.0, "tools offered ({:.0f})", text.tools))
        if text.is_dialogue or text.roles.count("user") > 1:
            found.append(Evidence("agentic", 26.0, "a dialogue with tools at hand"))
        elif text.system:
            ruling_frac = min(1.0, len(text.system) / _RULING_SYSTEM_CHARS)
            found.append(Evidence("agentic", 26.0 * ruling_frac, "a system prompt that rules how tools are used"))
    if text.tool_calls or "tool" in text.roles:
        found.append(Evidence("agentic", 28.0, "tool results so far ({:.0f})", text.tool_messages))
    if text.output_format:
        found.append(Evidence("structured_output", 18.0, f"answer bound to {text.output_format}"))
    return found
