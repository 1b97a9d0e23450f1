"""What is read of request bodies of every shape, and that reading is bounded."""

from __future__ import annotations

from typing import Any

import pytest

from selector.core.requesttext import SYSTEM_SAMPLE_CHARS, TEXT_SAMPLE_CHARS, RequestText, extract
from selector.core.textsample import EXAMINED_ITEMS


def test_a_chat_is_read_in_order_with_its_system_prompt_apart() -> None:
    text = extract(
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "developer", "content": "Be kind."},
                {"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "this?"}]},
                {"role": "assistant", "content": "A cat."},
                {"role": "user", "content": "And that?"},
            ]
        }
    )
    assert text.system == "Be brief.\nBe kind."
    assert text.text == "What is\nthis?\nA cat.\nAnd that?"
    assert text.roles == ("system", "system", "user", "assistant", "user")
    assert text.messages == 5
    assert text.total_chars == len("Be brief.Be kind.What isthis?A cat.And that?") == text.total_bytes
    assert text.longest_chars == len("What isthis?")
    assert text.is_dialogue
    assert not text.is_empty


def test_pictures_are_passed_over() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    text = extract({"messages": [{"role": "user", "content": [picture, {"type": "text", "text": "what is it?"}]}]})
    assert text.text == "what is it?"
    assert text.total_chars == len("what is it?")


def test_tool_calls_and_results_are_counted_and_their_arguments_read() -> None:
    calls = [{"function": {"name": "ls", "arguments": '{"dir": "/"}'}}, {"function": {"name": "pwd", "arguments": {}}}]
    text = extract(
        {
            "messages": [
                {"role": "assistant", "content": None, "tool_calls": calls},
                {"role": "tool", "content": "a.txt"},
                {"role": "assistant", "content": None, "function_call": {"name": "ls", "arguments": "{}"}},
                {"role": "function", "content": "b.txt"},
            ]
        }
    )
    assert (text.tool_calls, text.tool_messages) == (3, 2)
    assert text.text == '{"dir": "/"}\n\na.txt\n{}\nb.txt'


def test_tools_are_counted_unless_the_request_switches_them_off() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}] * 3
    offered = extract({"prompt": "x", "tools": tools})
    assert offered.has_tools
    assert offered.tools == 3
    assert offered.tools_bytes == len('{"type":"function","function":{"name":"f"}}') * 3 + len("[,,]")
    switched_off = extract({"prompt": "x", "tools": tools, "tool_choice": "none"})
    assert (switched_off.tools, switched_off.tools_bytes, switched_off.has_tools) == (0, 0, False)


@pytest.mark.parametrize(
    ("body", "text", "token_ids"),
    [
        ({"prompt": "one"}, "one", None),
        ({"text": "one"}, "one", None),
        ({"prompt": ["one", "two"]}, "one\ntwo", None),
        ({"text": ["one", "two"]}, "one\ntwo", None),
        ({"input_ids": [5, 6, 7]}, "", 3),
        ({"prompt": [5, 6, 7]}, "", 3),
        ({"input_ids": [[5, 6], [7]]}, "", 3),
        ({"messages": [{"role": "user", "content": "chat"}], "prompt": "prompt"}, "chat", None),
        ({"prompt": None, "text": "one"}, "one", None),
        ({"prompt": "", "text": "one"}, "", None),
    ],
)
def test_prompts_texts_and_token_ids(body: dict[str, Any], text: str, token_ids: int | None) -> None:
    found = extract(body)
    assert (found.text, found.token_ids) == (text, token_ids)


@pytest.mark.parametrize(
    "body",
    [
        {"messages": "hello"},
        {"messages": [None, 3, "hello", {"role": 7}, {"content": {"text": "x"}}]},
        {"messages": [{"role": ["user"], "content": [None, 1, {}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [None, {"function": 3}], "function_call": "f"}]},
        {"prompt": {"text": "x"}},
        {"prompt": [None, {}, []]},
        {"tools": "all", "functions": {"f": 1}, "response_format": "json", "sampling_params": [None, 3]},
        {"tools": [float("nan"), {1, 2}]},
    ],
)
def test_what_has_the_wrong_type_is_passed_over(body: dict[str, Any]) -> None:
    assert extract(body).text.strip() == ""


def test_roles_nobody_knows_are_other_but_their_text_counts() -> None:
    text = extract({"messages": [{"role": "narrator", "content": "Once"}, {"role": None, "content": "upon"}]})
    assert text.roles == ("other", "other")
    assert text.text == "Once\nupon"


@pytest.mark.parametrize("chars", [0, 1, TEXT_SAMPLE_CHARS - 1])
def test_short_prompts_are_kept_whole(chars: int) -> None:
    assert extract({"prompt": "x" * chars}).text == "x" * chars


def test_long_prompts_are_kept_at_both_ends() -> None:
    text = extract({"prompt": "START" + "-" * 1_000_000 + "END"})
    assert text.text.startswith("START---")
    assert text.text.endswith("---END")
    assert len(text.text) == TEXT_SAMPLE_CHARS
    assert text.total_chars == text.longest_chars == 1_000_008


def test_long_chats_are_kept_at_both_ends_of_the_dialogue() -> None:
    turns = [{"role": "user", "content": f"turn {number} " + "-" * 100} for number in range(200)]
    text = extract({"messages": [{"role": "system", "content": "S" * 10_000}, *turns]})
    assert text.text.startswith("turn 0 ---")
    assert "turn 199 ---" in text.text
    assert "turn 100 ---" not in text.text
    assert len(text.text) <= TEXT_SAMPLE_CHARS
    assert text.system == "S" * 1_023 + "\n" + "S" * 512
    assert len(text.system) == SYSTEM_SAMPLE_CHARS


def test_lengths_of_lists_too_long_to_visit_are_scaled_up() -> None:
    messages = [{"role": "user", "content": "x" * 10}] * (4 * EXAMINED_ITEMS)
    text = extract({"messages": messages})
    assert text.messages == 4 * EXAMINED_ITEMS
    assert len(text.roles) == EXAMINED_ITEMS
    assert text.total_chars == 40 * EXAMINED_ITEMS
    batch = extract({"prompt": ["x" * 10] * (4 * EXAMINED_ITEMS)})
    assert batch.total_chars == 40 * EXAMINED_ITEMS
    assert batch.longest_chars == 10
    assert extract({"input_ids": [[1] * 10] * (4 * EXAMINED_ITEMS)}).token_ids == 40 * EXAMINED_ITEMS


@pytest.mark.parametrize(("character", "size"), [("a", 1), ("é", 2), ("語", 3), ("🙂", 4), ("\ud800", 3)])
@pytest.mark.parametrize("chars", [1, 4_096, 300_000])
def test_bytes_are_those_of_utf_8(character: str, size: int, chars: int) -> None:
    assert extract({"prompt": character * chars}).total_bytes == size * chars


def test_code_fences() -> None:
    assert extract({"prompt": "no code"}).code_fence_frac == 0.0
    assert extract({"prompt": "```code```"}).code_fence_frac == pytest.approx(0.4)
    assert extract({"prompt": "see ```never closed"}).code_fence_frac == pytest.approx(12 / 19)


@pytest.mark.parametrize(
    ("fields", "wants_json"),
    [({}, False), ({"response_format": {"type": "json_object"}}, True), ({"sampling_params": {"regex": "a+"}}, False)],
)
def test_json_asked_for_by_fields(fields: dict[str, Any], wants_json: bool) -> None:
    assert extract({"prompt": "x", **fields}).wants_json is wants_json


def test_empty_means_nothing_to_judge() -> None:
    assert RequestText().is_empty
    assert not extract({"tools": [{}]}).is_empty
    assert not extract({"regex": "a+"}).is_empty
    assert not extract({"messages": [{"role": "system", "content": "Be brief."}]}).is_empty
