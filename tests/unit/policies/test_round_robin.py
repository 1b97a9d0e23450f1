"""`round_robin` gives every backend its turn."""

from __future__ import annotations

from selector.core.types import Capability
from selector.files.policy import load_policy_file
from tests.fleets import backend_spec, fleet_view, policy_context, request_view, specs_of, without


def test_backends_take_turns_whatever_their_load() -> None:
    context = policy_context(specs_of("none", "dflash-16", "dspark-8"))
    policy = load_policy_file("round_robin").make({}, context)
    fleet = fleet_view(context.backends, [50, 0, 3])
    decisions = [policy.decide(request_view(), fleet) for _ in range(5)]
    assert [decision.backend for decision in decisions] == ["b0", "b1", "b2", "b0", "b1"]
    assert decisions[1].reason == "next in turn: 2 of 3"


def test_a_backend_that_is_down_loses_its_turn_and_no_other_gets_two() -> None:
    context = policy_context(specs_of("none", "none", "none"))
    policy = load_policy_file("round_robin").make({}, context)
    fleet = fleet_view(context.backends)
    chosen = [policy.decide(request_view(), without(fleet, "b1")).backend for _ in range(4)]
    assert chosen == ["b0", "b2", "b0", "b2"]
    assert policy.decide(request_view(), without(fleet, "b2")).backend == "b0"
    assert policy.decide(request_view(), fleet).backend == "b1"


def test_a_refused_request_takes_no_turn() -> None:
    specs = [backend_spec(f"b{index}", "none", cannot_serve=[Capability.TOOLS]) for index in range(2)]
    context = policy_context(specs)
    policy = load_policy_file("round_robin").make({}, context)
    fleet = fleet_view(specs)
    assert policy.decide(request_view(), fleet).backend == "b0"
    assert policy.decide(request_view(needs=[Capability.TOOLS]), fleet).backend is None
    assert policy.decide(request_view(), fleet).backend == "b1"
