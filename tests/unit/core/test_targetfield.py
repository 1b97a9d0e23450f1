"""What of a request's custom parameters is a target."""

from __future__ import annotations

import pytest

from selector.core.targetfield import TARGET_FIELD, target_in


def test_a_number_of_milliseconds_is_a_target_beside_whatever_else_is_there() -> None:
    assert target_in({"thinking_budget": 5, TARGET_FIELD: 25}) == 25.0


@pytest.mark.parametrize("value", ["25", True, 0, -3, float("nan"), float("inf"), [25], None])
def test_what_is_no_number_of_milliseconds_is_no_target(value: object) -> None:
    assert target_in({TARGET_FIELD: value}) is None


def test_custom_params_that_are_the_clients_alone_have_no_target() -> None:
    assert target_in({"thinking_budget": 5}) is None
    assert target_in("text") is None
