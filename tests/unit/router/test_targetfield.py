"""Where the target goes in a body, and where it cannot go."""

from __future__ import annotations

from typing import Any

import pytest

from selector.core.targetfield import TARGET_FIELD, target_in
from selector.router.routes import ROUTES
from selector.router.targetfield import fields_with_target

CHAT, GENERATE = ROUTES["/v1/chat/completions"], ROUTES["/generate"]


def test_what_the_router_writes_the_plugin_reads() -> None:
    assert target_in(fields_with_target(CHAT, {}, 12.5)["custom_params"]) == 12.5
    assert target_in(fields_with_target(GENERATE, {}, 9)["sampling_params"]["custom_params"]) == 9.0


def test_each_prompt_of_a_native_batch_is_told() -> None:
    fields = {"sampling_params": [{"n": 1}, {"custom_params": {"a": 1}}]}
    assert fields_with_target(GENERATE, fields, 5.0)["sampling_params"] == [
        {"n": 1, "custom_params": {TARGET_FIELD: 5.0}},
        {"custom_params": {"a": 1, TARGET_FIELD: 5.0}},
    ]


def test_the_clients_own_body_is_left_as_it_is() -> None:
    fields: dict[str, Any] = {"sampling_params": {"custom_params": {"a": 1}}, "custom_params": {"b": 2}}
    fields_with_target(GENERATE, fields, 5.0)
    fields_with_target(CHAT, fields, 5.0)
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
    assert fields_with_target(route, fields, 5.0) == {}


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_routes_without_such_a_field_are_told_nothing(path: str) -> None:
    assert fields_with_target(ROUTES[path], {}, 5.0) == {}
