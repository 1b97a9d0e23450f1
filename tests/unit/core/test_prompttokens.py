"""Prompt lengths without a tokenizer, and prompts of a wanted length."""

from __future__ import annotations

from typing import Any

import pytest

from selector.core.prompttokens import ascii_chars_for_prompt_tokens, estimate_prompt_tokens
from selector.core.requesttext import extract
from selector.errors import DomainError


def tokens(body: dict[str, Any]) -> int:
    return estimate_prompt_tokens(extract(body))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, 1),
        ({"prompt": ""}, 1),
        ({"prompt": "abc"}, 1),
        ({"prompt": "abcd"}, 1),
        ({"prompt": "abcde"}, 2),
        ({"prompt": "x" * 4_000_000}, 1_000_000),
        ({"text": "ab" * 50}, 25),
        ({"prompt": ["x" * 40, "x" * 40]}, 20),
        ({"prompt": "語" * 8}, 6),
        ({"input_ids": list(range(77))}, 77),
        ({"input_ids": [[1, 2], [3]]}, 3),
        ({"messages": []}, 1),
        ({"messages": [{"role": "user", "content": "x" * 40}]}, 10 + 5 + 3),
        (
            {"messages": [{"role": "system", "content": "x" * 40}, {"role": "user", "content": "x" * 40}]},
            20 + 2 * 5 + 3,
        ),
        ({"prompt": "abcd", "tools": [1]}, 2),
        ({"prompt": "abcd", "tools": [1], "tool_choice": "none"}, 1),
    ],
)
def test_lengths(body: dict[str, Any], expected: int) -> None:
    assert tokens(body) == expected


@pytest.mark.parametrize("wanted", [1, 2, 9, 10, 1_000, 128_000])
def test_a_prompt_of_a_wanted_length(wanted: int) -> None:
    assert tokens({"prompt": "x" * ascii_chars_for_prompt_tokens(wanted, chat=False)}) == wanted


@pytest.mark.parametrize(("wanted", "built"), [(1, 9), (8, 9), (9, 9), (10, 10), (1_000, 1_000), (128_000, 128_000)])
def test_a_chat_of_a_wanted_length_above_what_its_template_adds(wanted: int, built: int) -> None:
    content = "x" * ascii_chars_for_prompt_tokens(wanted, chat=True)
    assert tokens({"messages": [{"role": "user", "content": content}]}) == built


@pytest.mark.parametrize("wanted", [0, -1])
def test_there_are_no_prompts_without_tokens(wanted: int) -> None:
    with pytest.raises(DomainError, match="ask for at least 1"):
        ascii_chars_for_prompt_tokens(wanted, chat=False)
