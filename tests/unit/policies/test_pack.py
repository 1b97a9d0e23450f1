"""`pack` fills one backend before the next, as far as places and targets allow."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from selector.core.controller import Controller
from selector.core.policy import BackendSpec, PolicyContext
from selector.core.types import FleetView, LoadGroup
from selector.errors import PolicyError
from selector.files.policy import load_policy_file
from tests.fleets import backend_spec, backend_view, fleet_view, policy_context, request_view, specs_of, without


def packed(context: PolicyContext, count: int, *, label: str = "pack", tbt_target_ms: float | None = None) -> list[str]:
    """Where `count` requests go that all stay."""
    controller = Controller(context, load_policy_file(label).make({}, context))
    chosen = []
    for number in range(count):
        # A prompt of one token, so that prefill takes no time, and a mean context of 1 + 1398 / 2 = 700.
        request = request_view(
            f"r{number}", prompt_tokens=1, expected_output_tokens=1_398.0, tbt_target_ms=tbt_target_ms
        )
        chosen.append(str(controller.decide(request, 0.0).backend))
    return chosen


def test_one_backend_is_filled_to_its_places_before_the_next() -> None:
    context = policy_context([backend_spec(f"b{i}", "none", max_running_requests=8) for i in range(3)])
    assert packed(context, 20) == ["b0"] * 8 + ["b1"] * 8 + ["b2"] * 4


def test_a_fleet_with_one_arm_needs_no_name() -> None:
    assert packed(policy_context(specs_of("dspark-8", "dspark-8")), 3) == ["b0"] * 3


def test_when_all_are_full_the_least_loaded_serves() -> None:
    context = policy_context([backend_spec(f"b{i}", "none", max_running_requests=2) for i in range(2)])
    assert packed(context, 8) == ["b0"] * 2 + ["b1"] * 2 + ["b0", "b1"] * 2


def test_the_kv_cache_is_a_limit() -> None:
    context = policy_context([backend_spec(f"b{i}", "none", max_kv_tokens=3 * 700) for i in range(2)])
    assert packed(context, 6) == ["b0"] * 3 + ["b1"] * 3


def test_a_backend_is_full_when_the_next_request_would_miss_its_target() -> None:
    # `none` steps in 6.2 ms at batch 32 and 7.6 ms at 64, and a step is one token.
    placed = Counter(packed(policy_context(specs_of("none", "none")), 60, tbt_target_ms=6.5))
    assert 32 < placed["b0"] < 48
    assert placed["b0"] + placed["b1"] == 60


def test_a_backend_is_full_when_the_next_request_would_break_a_running_target() -> None:
    context = policy_context(specs_of("none", "none"))
    policy = load_policy_file("pack").make({}, context)

    def fleet(target_ms: float) -> FleetView:
        groups = [LoadGroup(text_type="code", tbt_target_ms=target_ms, requests=40)]
        first, second = context.backends
        return FleetView(now_s=0.0, backends=(backend_view(first, batch=40, groups=groups), backend_view(second)))

    assert policy.decide(request_view(), fleet(20.0)).backend == "b0"
    # A step takes 6.42 ms with the 40 that run, and 6.46 with one more.
    decision = policy.decide(request_view(), fleet(6.44))
    assert decision.backend == "b1"
    assert [candidate.note for candidate in decision.candidates] == ["breaks a running target", ""]


def test_the_first_backend_is_filled_up_again_when_it_has_room() -> None:
    context = policy_context(specs_of("none", "none"))
    decision = load_policy_file("pack").make({}, context).decide(request_view(), fleet_view(context.backends, [3, 20]))
    assert (decision.backend, decision.reason) == ("b0", "filling it: request 4")


@pytest.fixture
def two_arms() -> tuple[BackendSpec, ...]:
    return specs_of("dspark-8", "none", "none")


def test_only_the_named_arm_is_filled(two_arms: tuple[BackendSpec, ...]) -> None:
    assert set(packed(policy_context(two_arms), 30, label="pack:none")) == {"b1"}


def test_max_batch_bounds_what_is_filled_and_then_the_load_is_spread(two_arms: tuple[BackendSpec, ...]) -> None:
    context = policy_context(two_arms)
    controller = Controller(context, load_policy_file("pack:none").make({"max_batch": 2}, context))
    decisions = [controller.decide(request_view(f"r{i}"), 0.0) for i in range(6)]
    assert [decision.backend for decision in decisions] == ["b1", "b1", "b2", "b2", "b1", "b2"]
    assert decisions[-1].reason == "all of none at max_batch, least loaded: 2 requests"


def test_another_arm_serves_only_when_none_of_the_arm_can(two_arms: tuple[BackendSpec, ...]) -> None:
    policy = load_policy_file("pack:none").make({}, policy_context(two_arms))
    decision = policy.decide(request_view(), without(fleet_view(two_arms), "b1", "b2"))
    assert decision.backend == "b0"
    assert decision.reason == "no backend of none can serve it, least loaded: 0 requests"


def test_an_impossible_target_gets_the_fastest_place() -> None:
    specs = specs_of("none", "none")
    policy = load_policy_file("pack").make({}, policy_context(specs))
    decision = policy.decide(replace(request_view(), tbt_target_ms=1.0), fleet_view(specs, [40, 20]))
    assert decision.backend == "b1"
    assert decision.reason.startswith("no place within target, least violation: ")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "policy pack: arm: is not given and the fleet has 2 arms; choose one of dspark-8, none"),
        ({"arm": "mtp-k1"}, "policy pack: arm: is 'mtp-k1', which no backend runs; choose one of dspark-8, none"),
        ({"arm": "none", "max_batch": 0}, "policy pack: max_batch: is 0; must be ≥ 1"),
    ],
)
def test_parameters_that_cannot_be_are_refused(
    params: dict[str, object], message: str, two_arms: tuple[BackendSpec, ...]
) -> None:
    with pytest.raises(PolicyError) as refused:
        load_policy_file("pack").make(params, policy_context(two_arms))
    assert str(refused.value).startswith(message)
