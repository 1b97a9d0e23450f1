"""How request bodies are read."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import pytest

from selector.core.enginefields import TARGET_FIELD, TEXT_FIELD
from selector.emulator.asks import Api, Ask, Limits, drawn_answer_tokens, parse_body, read_ask
from selector.emulator.refusals import Refusal

LIMITS = Limits(context_tokens=1_000, kv_tokens=100_000, mean_output_tokens=50.0)


TOLD = {TARGET_FIELD: 12.5, TEXT_FIELD: "romansh"}


def no_header(name: str) -> None:
    return None


def headers(**values: str) -> Callable[[str], str | None]:
    return lambda name: values.get(name.replace("-", "_"))


def read(api: Api, body: dict[str, Any], header: Callable[[str], str | None] = no_header, **changed: Any) -> Ask:
    return read_ask(api, body, header, changed.get("limits", LIMITS), drafts=changed.get("drafts", True))


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hello there, who are you?"}], **fields}


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (Api.CHAT, chat(custom_params=TOLD)),
        (Api.COMPLETION, {"prompt": "a" * 40, "custom_params": TOLD}),
        (Api.NATIVE, {"text": "a" * 40, "sampling_params": {"custom_params": TOLD}}),
    ],
)
def test_a_target_is_found_where_the_router_puts_it(api: Api, body: dict[str, Any]) -> None:
    ask = read(api, body)
    assert (ask.tbt_target_ms, ask.told_text_type) == (12.5, "romansh")
    assert read(Api.NATIVE, {"text": "a", "custom_params": {TARGET_FIELD: 12.5}}).tbt_target_ms is None


@pytest.mark.parametrize(
    ("api", "body", "tokens"),
    [
        (Api.CHAT, chat(max_tokens=7), 7),
        (Api.CHAT, chat(max_tokens=7, max_completion_tokens=9), 9),
        (Api.CHAT, chat(max_completion_tokens=0), 0),
        (Api.CHAT, chat(), 1_000 - 1 - 15 - 1),  # what the context leaves
        (Api.COMPLETION, {"prompt": "a" * 40, "max_tokens": 12}, 12),
        (Api.NATIVE, {"text": "a" * 40, "sampling_params": {"max_new_tokens": 12}}, 12),
        (Api.NATIVE, {"text": "a" * 40}, 128),
        (Api.NATIVE, {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": None}}, 1_000 - 1 - 3 - 1),
    ],
)
def test_an_answer_that_ignores_its_end_is_as_long_as_allowed(api: Api, body: dict[str, Any], tokens: int) -> None:
    options = body.setdefault("sampling_params", {}) if api is Api.NATIVE else body
    options["ignore_eos"] = True
    ask = read(api, body)
    assert (ask.answer_tokens, ask.ends_itself) == (tokens, False)


def test_an_answer_ends_itself_when_its_drawn_length_is_within_the_limit() -> None:
    key = headers(x_emulated_draw_key="3")
    drawn = drawn_answer_tokens(3, 50.0)
    assert 2 < drawn < 500
    assert read(Api.CHAT, chat(), key).answer_tokens == drawn
    assert read(Api.CHAT, chat(), key).ends_itself
    exactly = read(Api.CHAT, chat(max_tokens=drawn), key)
    assert (exactly.answer_tokens, exactly.ends_itself) == (drawn, True)
    cut = read(Api.CHAT, chat(max_tokens=drawn - 1), key)
    assert (cut.answer_tokens, cut.ends_itself) == (drawn - 1, False)


def test_drawn_lengths_have_the_mean_asked_for() -> None:
    lengths = [drawn_answer_tokens(key, 200.0) for key in range(-2_000, 2_000)]
    assert statistics.mean(lengths) == pytest.approx(200.0, rel=0.05)
    assert min(lengths) >= 2
    assert statistics.stdev(math.log(length) for length in lengths) == pytest.approx(0.6, rel=0.05)


def test_the_same_prompt_draws_the_same_whatever_else_the_body_says() -> None:
    plain = read(Api.CHAT, chat())
    assert read(Api.CHAT, chat(stream=True, rid="x", stream_options={"include_usage": True})).draw_key == plain.draw_key
    other = read(Api.CHAT, {"messages": [{"role": "user", "content": "Hello"}]})
    assert other.draw_key != plain.draw_key


@pytest.mark.parametrize(("given", "key"), [("17", 17), ("-4", -4), ("x", None), ("1.5", None), ("9" * 40, None)])
def test_a_draw_key_is_an_integer_or_ignored(given: str, key: int | None) -> None:
    hashed = read(Api.CHAT, chat()).draw_key
    assert read(Api.CHAT, chat(), headers(x_emulated_draw_key=given)).draw_key == (hashed if key is None else key)


def test_a_text_type_is_given_or_classified_or_of_no_use() -> None:
    code = chat(messages=[{"role": "user", "content": "Fix this:\n```python\ndef f(x):\n    return x+\n```"}])
    assert read(Api.CHAT, code).text_type == "code"
    assert read(Api.CHAT, code, headers(x_emulated_text_type="romansh")).text_type == "romansh"
    assert read(Api.CHAT, code, headers(x_emulated_text_type="poetry")).text_type == "code"
    assert read(Api.CHAT, code, headers(x_emulated_text_type="romansh"), drafts=False).text_type == "unknown"


def test_token_ids_count_exactly() -> None:
    assert read(Api.NATIVE, {"input_ids": list(range(321))}).prompt_tokens == 321
    assert read(Api.COMPLETION, {"prompt": list(range(123))}).prompt_tokens == 123


def test_ids_and_names_are_repeated_or_made_up() -> None:
    assert read(Api.CHAT, chat(rid="mine", model="m")).rid == "mine"
    assert read(Api.CHAT, chat(rid="mine", model="m")).model == "m"
    first, second = read(Api.CHAT, chat()), read(Api.CHAT, chat())
    assert first.rid != second.rid and len(first.rid) == 32
    assert first.model == "default"


@pytest.mark.parametrize(
    ("api", "body", "schema", "words"),
    [
        (Api.CHAT, {}, True, "'messages'"),
        (Api.CHAT, {"messages": "hi"}, True, "valid list"),
        (Api.CHAT, {"messages": []}, False, "Messages cannot be empty."),
        (Api.CHAT, chat(max_tokens=-1), False, "max_new_tokens must be at least 0, got -1."),
        (Api.CHAT, chat(max_tokens=5_000), False, "max_completion_tokens is too large: 5000."),
        (Api.CHAT, chat(max_tokens="x"), True, "valid integer"),
        (Api.CHAT, chat(max_tokens=1.5), True, "valid integer"),
        (Api.CHAT, chat(max_tokens=990), False, "You requested a total of 1005 tokens: 15 tokens"),
        (Api.CHAT, chat(temperature=-1), False, "got -1.0."),
        (Api.CHAT, chat(temperature="hot"), True, "valid number"),
        (Api.CHAT, chat(top_p=0), False, "top_p must be in (0, 1], got 0.0."),
        (Api.CHAT, chat(n=2), False, "one choice per request, got n = 2"),
        (Api.CHAT, chat(stream_options=[]), True, "valid dictionary"),
        (Api.CHAT, chat(return_meta_info=True, stream=True), False, "not supported with streaming"),
        (Api.COMPLETION, {}, True, "'prompt'"),
        (Api.COMPLETION, {"prompt": ""}, False, "Prompt cannot be empty"),
        (Api.COMPLETION, {"prompt": ["a", "b"]}, False, "one prompt per request, got 2"),
        (Api.COMPLETION, {"prompt": "a", "max_tokens": 0}, True, "must be positive"),
        (Api.NATIVE, {}, False, "Either text, input_ids"),
        (Api.NATIVE, {"text": ["a", "b"]}, False, "one prompt per request, got 2"),
        (Api.NATIVE, {"text": "a", "sampling_params": 5}, True, "valid dictionary"),
        (Api.NATIVE, {"text": "a", "sampling_params": {"temperature": -1}}, False, "got -1."),
        (Api.NATIVE, {"text": "a", "sampling_params": {"n": 3}}, False, "got n = 3"),
        (Api.NATIVE, {"text": "a", "sampling_params": {"max_new_tokens": "x"}}, False, "an integer, got 'x'"),
        (Api.NATIVE, {"text": "a" * 4_000}, False, "The input (1000 tokens) is longer than the model's context length"),
        (Api.NATIVE, {"text": "a" * 3_980, "sampling_params": {"max_new_tokens": 1}}, False, "Input length (995 tok"),
    ],
)
def test_what_sglang_refuses_is_refused_in_its_words(api: Api, body: dict[str, Any], schema: bool, words: str) -> None:
    with pytest.raises(Refusal) as refused:
        read(api, body)
    assert refused.value.schema is schema
    assert words in refused.value.message


@pytest.mark.parametrize("data", [b"{oops", b"", b"[1]", b'"x"'])
def test_a_body_that_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(Refusal, match="1 validation error"):
        parse_body(data)


def test_a_small_kv_cache_limits_a_request_too() -> None:
    ask = read(
        Api.CHAT, chat(ignore_eos=True), limits=Limits(context_tokens=1_000, kv_tokens=200, mean_output_tokens=50.0)
    )
    assert ask.prompt_tokens + ask.answer_tokens == 198
