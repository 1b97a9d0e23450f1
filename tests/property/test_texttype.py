"""What holds for every request body, however malformed or long."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from selector.core.requesttext import SYSTEM_SAMPLE_CHARS, TEXT_HEAD_CHARS, TEXT_SAMPLE_CHARS, TEXT_TAIL_CHARS
from selector.core.texttype import (
    RequestText,
    ascii_chars_for_prompt_tokens,
    classify,
    estimate_prompt_tokens,
    explain,
    extract,
    needs,
    session_key,
)
from selector.core.types import TEXT_TYPES, Capability
from selector.files.textmodel import shipped_text_model

TEXTS = st.text(st.characters(exclude_categories=()), max_size=40)  # lone surrogates too: JSON can carry them
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
FIELDS = (
    "messages", "prompt", "text", "input_ids", "tools", "functions", "tool_choice", "response_format",
    "sampling_params",
    "json_schema", "regex", "logprobs", "return_logprob", "repetition_penalty", "prompt_cache_key",
)  # fmt: skip
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(ROLES) | ANY_JSON,
        "content": TEXTS
        | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}) | ANY_JSON)
        | ANY_JSON,
        "tool_calls": ANY_JSON,
        "function_call": ANY_JSON,
    },
)
BODIES = st.dictionaries(st.sampled_from(FIELDS) | TEXTS, ANY_JSON, max_size=6) | st.fixed_dictionaries(
    {"messages": st.lists(MESSAGES | ANY_JSON, max_size=6)}, optional={field: ANY_JSON for field in FIELDS[4:]}
)


@given(BODIES)
def test_no_body_is_too_malformed(body: dict[str, Any]) -> None:
    text = extract(body)
    estimate = classify(text, shipped_text_model())
    assert math.isclose(math.fsum(estimate.probabilities), 1.0, abs_tol=1e-9)
    assert all(0.0 <= probability <= 1.0 for probability in estimate.probabilities)
    assert len(estimate.probabilities) == len(TEXT_TYPES)
    explanation = explain(text, shipped_text_model(), estimate.text_type)
    assert explanation.reasons
    assert not estimate.reasons or explanation.reasons == estimate.reasons
    if text.is_empty:
        assert estimate.text_type == "unknown"
    else:
        assert estimate.probabilities[TEXT_TYPES.index(estimate.text_type)] == max(estimate.probabilities)
    assert needs(body) <= frozenset(Capability)
    assert estimate_prompt_tokens(text) >= 1
    key = session_key(body)
    assert key is None or len(key) == 16


@given(st.lists(st.tuples(st.sampled_from(ROLES), TEXTS, st.integers(0, 4_000)), max_size=12))
def test_samples_are_bounded_and_begin_and_end_as_the_dialogue_does(turns: list[tuple[str, str, int]]) -> None:
    messages = [{"role": role, "content": content * repeats} for role, content, repeats in turns]
    text = extract({"messages": messages})
    assert len(text.text) <= TEXT_SAMPLE_CHARS
    assert len(text.system) <= SYSTEM_SAMPLE_CHARS
    dialogue = "\n".join(m["content"] for m in messages if m["role"] not in ("system", "developer"))
    assert dialogue.startswith(text.text[: TEXT_HEAD_CHARS - 1])
    assert dialogue.endswith(text.text[-TEXT_TAIL_CHARS:])
    assert text.total_chars == sum(len(message["content"]) for message in messages)


@given(st.text(st.characters(max_codepoint=127)), st.booleans())
def test_every_longer_prompt_counts_at_least_as_many_tokens(prompt: str, chat: bool) -> None:
    def counted(content: str) -> int:
        return estimate_prompt_tokens(
            extract({"messages": [{"role": "user", "content": content}]} if chat else {"prompt": content})
        )

    assert counted(prompt) <= counted(prompt + "x") <= counted(prompt) + 1


@given(st.integers(1, 50_000), st.booleans())
def test_length_and_characters_are_inverse(tokens: int, chat: bool) -> None:
    content = "x" * ascii_chars_for_prompt_tokens(tokens, chat)
    text = extract({"messages": [{"role": "user", "content": content}]} if chat else {"prompt": content})
    assert estimate_prompt_tokens(text) == max(tokens, 9 if chat else 1)


@given(TEXTS)
def test_classifying_is_deterministic(prompt: str) -> None:
    text = RequestText(text=prompt, total_chars=len(prompt), longest_chars=len(prompt))
    assert classify(text, shipped_text_model()) == classify(text, shipped_text_model())
