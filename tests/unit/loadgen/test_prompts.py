"""Real prompts of a wanted type and length: what is kept, what is fitted, and that the choice can be repeated."""

from __future__ import annotations

import json
from typing import Any

import pytest

from selector import data
from selector.core.prompttokens import estimate_prompt_tokens
from selector.core.requesttext import extract
from selector.core.types import TEXT_TYPES, UNKNOWN_TEXT_TYPE
from selector.errors import TraceError
from selector.loadgen.prompts import PromptSource

SHIPPED: list[dict[str, Any]] = [json.loads(line) for line in data.read_text(data.PROMPTS).splitlines()]
PLAIN_TYPES = tuple(
    name for name in TEXT_TYPES if all("prompt" in record for record in SHIPPED if record["text_type"] == name)
)
"""Types whose prompts are all one user message: nothing around it that could not be cut."""
LENGTHS = (9, 50, 399, 1_000)
TEMPLATE_TOKENS = 8
"""What the chat template adds to one message."""


def user_text(fields: Any) -> str:
    (message,) = fields["messages"]
    assert message["role"] == "user"
    return str(message["content"])


def starts_of(text_type: str) -> tuple[str, ...]:
    return tuple(record["prompt"][:40] for record in SHIPPED if record["text_type"] == text_type)


def test_most_types_are_plain() -> None:
    assert {"code", "math", "news", "romansh", "multilingual", "long_document"} <= set(PLAIN_TYPES)


@pytest.mark.parametrize("text_type", TEXT_TYPES)
def test_every_type_has_prompts_of_every_length(text_type: str) -> None:
    source = PromptSource()
    for number, prompt_tokens in enumerate((1, 20, 700, 6_000)):
        body = source.body(text_type, prompt_tokens, number)
        assert body.prompt_tokens == estimate_prompt_tokens(extract(body.fields))
        assert body.prompt_tokens >= 0.5 * prompt_tokens
        assert set(body.fields) <= {"messages", "tools", "response_format"}
        assert all(message["content"] or message.get("tool_calls") for message in body.fields["messages"])
        json.dumps(body.fields)


@pytest.mark.parametrize("text_type", PLAIN_TYPES)
def test_a_plain_prompt_is_of_its_type_and_exactly_as_long_as_asked(text_type: str) -> None:
    source = PromptSource()
    for number in range(8):
        for prompt_tokens in LENGTHS:
            body = source.body(text_type, prompt_tokens, number)
            assert body.prompt_tokens == prompt_tokens
            text = user_text(body.fields)
            assert any(start.startswith(text[:40]) or text.startswith(start) for start in starts_of(text_type))


@pytest.mark.parametrize("text_type", PLAIN_TYPES)
def test_a_long_prompt_continues_with_others_of_its_type(text_type: str) -> None:
    text = user_text(PromptSource().body(text_type, 7_000, 1).fields)
    assert -(-len(text.encode()) // 4) + TEMPLATE_TOKENS == 7_000
    parts = [start for start in starts_of(text_type) if start in text]
    longest = max(len(record["prompt"].encode()) for record in SHIPPED if record["text_type"] == text_type)
    assert len(parts) > 1 or longest >= 4 * 6_992


def test_a_prompt_shorter_than_the_template_is_as_short_as_can_be() -> None:
    body = PromptSource().body("code", 1, 0)
    assert (body.prompt_tokens, len(user_text(body.fields))) == (9, 4)


def test_a_cut_in_the_middle_of_a_character_leaves_no_broken_one() -> None:
    source = PromptSource()
    for number in range(24):
        for prompt_tokens in range(20, 60):
            assert "�" not in user_text(source.body("multilingual", prompt_tokens, number).fields)


@pytest.mark.parametrize("prompt_tokens", [300, 5_000])
def test_tools_and_formats_and_the_other_messages_are_kept(prompt_tokens: int) -> None:
    source, seen = PromptSource(), set()
    for text_type in ("tool_call", "structured_output", "agentic"):
        records = [record for record in SHIPPED if record["text_type"] == text_type]
        for number in range(40):
            fields = source.body(text_type, prompt_tokens, number).fields
            made_of = [record for record in records if _same_but_the_last_user_message(record, fields)]
            assert made_of, f"{text_type} {number}"
            seen |= {key for key in ("tools", "response_format") if key in fields}
    assert seen == {"tools", "response_format"}


def _same_but_the_last_user_message(record: dict[str, Any], fields: Any) -> bool:
    messages = record.get("messages") or [{"role": "user", "content": record["prompt"]}]
    users = [index for index, message in enumerate(messages) if message["role"] == "user"]
    kept = [message for index, message in enumerate(messages) if index != users[-1]]
    return (
        [message for index, message in enumerate(fields["messages"]) if index != users[-1]] == kept
        and len(fields["messages"]) == len(messages)
        and all(fields.get(key) == record.get(key) for key in ("tools", "response_format"))
    )


def test_shipped_prompts_are_not_changed_by_fitting() -> None:
    source = PromptSource()
    asks = [(text_type, number) for text_type in ("agentic", "conversation", "tool_call") for number in range(20)]
    before = [source.body(text_type, 3_000, number) for text_type, number in asks]
    for text_type, number in asks:
        source.body(text_type, 10, number)
    assert [source.body(text_type, 3_000, number) for text_type, number in asks] == before


def test_the_choice_depends_on_seed_and_number_alone() -> None:
    first, again, other = PromptSource(1), PromptSource(1), PromptSource(2)
    bodies = [first.body("news", 100, number) for number in range(24)]
    assert [again.body("news", 100, number) for number in reversed(range(24))] == bodies[::-1]
    assert [other.body("news", 100, number) for number in range(24)] != bodies
    assert len({user_text(body.fields) for body in bodies}) > 8, "not the same prompt for everybody"


def test_a_type_without_prompts_is_refused_in_one_line() -> None:
    with pytest.raises(TraceError, match="there is no shipped prompt of type 'unknown'; choose another text mix"):
        PromptSource().body(UNKNOWN_TEXT_TYPE, 10, 0)
