"""What of a request's custom parameters is a target, and what a text type."""

from __future__ import annotations

import pytest

from selector.core.enginefields import TARGET_FIELD, TEXT_FIELD, target_in, text_type_in


def test_a_number_of_milliseconds_is_a_target_beside_whatever_else_is_there() -> None:
    assert target_in({"thinking_budget": 5, TARGET_FIELD: 25}) == 25.0


@pytest.mark.parametrize("value", ["25", True, 0, -3, float("nan"), float("inf"), [25], None])
def test_what_is_no_number_of_milliseconds_is_no_target(value: object) -> None:
    assert target_in({TARGET_FIELD: value}) is None


def test_custom_params_that_are_the_clients_alone_have_no_target() -> None:
    assert target_in({"thinking_budget": 5}) is None
    assert target_in("text") is None


@pytest.mark.parametrize(
    ("params", "text_type"),
    [
        ({TEXT_FIELD: "romansh", TARGET_FIELD: 5}, "romansh"),
        ({TEXT_FIELD: "klingon"}, ""),
        ({TEXT_FIELD: ["code"]}, ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_only_a_known_text_type_is_one(params: object, text_type: str) -> None:
    assert text_type_in(params) == text_type
