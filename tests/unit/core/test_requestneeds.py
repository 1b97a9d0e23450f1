"""Which request fields ask for which capability."""

from __future__ import annotations

from typing import Any

import pytest

from selector.core.requestneeds import needs, offered_tools, output_format
from selector.core.types import Capability

TOOL = {"type": "function", "function": {"name": "f"}}

ASKS = [
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, Capability.JSON_SCHEMA),
    ({"response_format": {"type": "json_object"}}, Capability.JSON_SCHEMA),
    ({"response_format": {"type": "structural_tag"}}, Capability.JSON_SCHEMA),
    ({"sampling_params": {"json_schema": "{}"}}, Capability.JSON_SCHEMA),
    ({"sampling_params": {"ebnf": "root ::= x"}}, Capability.JSON_SCHEMA),
    ({"regex": "[0-9]+"}, Capability.JSON_SCHEMA),
    ({"sampling_params": [{}, {"regex": "[0-9]+"}]}, Capability.JSON_SCHEMA),
    ({"tools": [TOOL]}, Capability.TOOLS),
    ({"functions": [{"name": "f"}]}, Capability.TOOLS),
    ({"tools": [TOOL], "tool_choice": "required"}, Capability.TOOLS),
    ({"logprobs": True}, Capability.LOGPROBS),
    ({"logprobs": 0}, Capability.LOGPROBS),
    ({"logprobs": 5}, Capability.LOGPROBS),
    ({"top_logprobs": 2}, Capability.LOGPROBS),
    ({"return_logprob": True}, Capability.LOGPROBS),
    ({"return_logprob": [False, True]}, Capability.LOGPROBS),
    ({"return_hidden_states": True}, Capability.HIDDEN_STATES),
    ({"repetition_penalty": 1.1}, Capability.PENALTIES),
    ({"frequency_penalty": -0.5}, Capability.PENALTIES),
    ({"sampling_params": {"presence_penalty": 1}}, Capability.PENALTIES),
    ({"sampling_params": [{}, {"repetition_penalty": 0.9}]}, Capability.PENALTIES),
]

ASKS_NOTHING = [
    {},
    {"prompt": "x", "max_tokens": 5, "temperature": 0.0},
    {"response_format": {"type": "text"}},
    {"response_format": None, "sampling_params": None},
    {"response_format": "json_schema"},
    {"sampling_params": {"json_schema": None, "regex": ""}},
    {"tools": []},
    {"tools": [TOOL], "tool_choice": "none"},
    {"tools": "all"},
    {"logprobs": False, "top_logprobs": 0, "return_logprob": False},
    {"return_logprob": [False, False], "return_hidden_states": [False]},
    {"logprobs": None},
    {"return_hidden_states": False},
    {"repetition_penalty": 1, "frequency_penalty": 0.0, "presence_penalty": 0},
    {"repetition_penalty": "1.1", "frequency_penalty": None, "presence_penalty": True},
]


@pytest.mark.parametrize(("body", "capability"), ASKS)
def test_one_field_asks_for_one_capability(body: dict[str, Any], capability: Capability) -> None:
    assert needs(body) == {capability}


@pytest.mark.parametrize("body", ASKS_NOTHING)
def test_neutral_and_malformed_fields_ask_for_nothing(body: dict[str, Any]) -> None:
    assert needs(body) == frozenset()


def test_fields_add_up() -> None:
    body: dict[str, Any] = {}
    for fields, _ in ASKS:
        body.update(fields)
    assert needs({**body, "tool_choice": "auto"}) == frozenset(Capability)


def test_the_name_of_the_output_format() -> None:
    assert output_format({"response_format": {"type": "json_object"}, "regex": "a"}) == "json_object"
    assert output_format({"sampling_params": {"ebnf": "root ::= x"}}) == "ebnf"
    assert output_format({"response_format": {"type": ["json_object"]}}) is None


def test_newer_tools_come_before_older_functions() -> None:
    assert offered_tools({"tools": [TOOL], "functions": [{"name": "g"}]}) == [TOOL]
