"""What an engine is told of a request, where it goes in a body, and where it cannot go."""

from __future__ import annotations

from typing import Any

import pytest

from selector.core.enginefields import TARGET_FIELD, TEXT_FIELD, target_in, text_type_in
from selector.core.types import TEXT_TYPES
from selector.router.enginefields import engine_fields, fields_with
from selector.router.routes import ROUTES
from tests.fleets import request_view

TOLD = {TARGET_FIELD: 5.0}
CHAT, GENERATE = ROUTES["/v1/chat/completions"], ROUTES["/generate"]


def test_what_the_router_writes_the_plugin_reads() -> None:
    told = engine_fields(request_view(text_type="romansh", tbt_target_ms=12.5))
    chat = fields_with(CHAT, {}, told)["custom_params"]
    generate = fields_with(GENERATE, {}, told)["sampling_params"]["custom_params"]
    assert [(target_in(params), text_type_in(params)) for params in (chat, generate)] == [(12.5, "romansh")] * 2


@pytest.mark.parametrize(
    ("text_type", "probable", "told"), [("code", None, True), ("code", 0.6, True), ("code", 0.4, False)]
)
def test_a_text_type_is_told_when_it_is_likely(text_type: str, probable: float | None, told: bool) -> None:
    others = len(TEXT_TYPES) - 1
    probabilities = None if probable is None else (probable, *[(1.0 - probable) / others] * others)
    view = request_view(text_type=text_type, text_probabilities=probabilities, tbt_target_ms=None)
    assert engine_fields(view) == ({TEXT_FIELD: text_type} if told else {})


def test_of_a_request_of_which_nothing_is_known_nothing_is_told() -> None:
    assert engine_fields(request_view(text_type="unknown", tbt_target_ms=None)) == {}


def test_each_prompt_of_a_native_batch_is_told() -> None:
    fields = {"sampling_params": [{"n": 1}, {"custom_params": {"a": 1}}]}
    assert fields_with(GENERATE, fields, TOLD)["sampling_params"] == [
        {"n": 1, "custom_params": {TARGET_FIELD: 5.0}},
        {"custom_params": {"a": 1, TARGET_FIELD: 5.0}},
    ]


def test_the_clients_own_body_is_left_as_it_is() -> None:
    fields: dict[str, Any] = {"sampling_params": {"custom_params": {"a": 1}}, "custom_params": {"b": 2}}
    fields_with(GENERATE, fields, TOLD)
    fields_with(CHAT, fields, TOLD)
    assert fields == {"sampling_params": {"custom_params": {"a": 1}}, "custom_params": {"b": 2}}


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        (CHAT, {"custom_params": "text"}),
        (GENERATE, {"sampling_params": "text"}),
        (GENERATE, {"sampling_params": {"custom_params": [1]}}),
        (GENERATE, {"sampling_params": [{}, 7]}),
    ],
)
def test_what_is_of_a_wrong_type_is_for_the_server_to_refuse(route: Any, fields: dict[str, Any]) -> None:
    assert fields_with(route, fields, TOLD) == {}


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_routes_without_such_a_field_are_told_nothing(path: str) -> None:
    assert fields_with(ROUTES[path], {}, TOLD) == {}
