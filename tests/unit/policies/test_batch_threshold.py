"""`batch_threshold` speculates at low load, does not at high load, and does not flap between."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from selector.core.policy import Policy, PolicyContext
from selector.core.types import Capability
from selector.errors import PolicyError
from selector.files.policy import load_policy_file
from tests.fleets import backend_spec, fleet_view, policy_context, request_view, specs_of, without


@pytest.fixture
def context() -> PolicyContext:
    return policy_context(specs_of("none", "dspark-8"))


def arms_chosen(policy: Policy, context: PolicyContext, loads: Sequence[int]) -> list[str]:
    """The arm chosen at each load, all of which lies where the last decision sent it."""
    arms: list[str] = []
    for load in loads:
        on_plain = load if arms and arms[-1] == "none" else 0
        fleet = fleet_view(context.backends, [on_plain, load - on_plain])
        backend = policy.decide(request_view(), fleet).backend
        arms.append(context.spec(str(backend)).arm)
    return arms


def switches(arms: Sequence[str]) -> int:
    return sum(before != after for before, after in pairwise(arms))


def test_load_that_rises_and_falls_switches_once_each_way(context: PolicyContext) -> None:
    policy = load_policy_file("batch_threshold").make({"threshold": 8}, context)
    rising = arms_chosen(policy, context, range(1, 33))
    falling = arms_chosen(policy, context, range(32, 0, -1))
    assert (rising[0], rising[-1], switches(rising)) == ("dspark-8", "none", 1)
    assert (falling[0], falling[-1], switches(falling)) == ("none", "dspark-8", 1)
    assert rising.index("none") + 1 == 8
    assert 32 - falling.index("dspark-8") == 5, "on again only below three quarters of the threshold"


def test_load_that_sits_at_the_threshold_switches_once(context: PolicyContext) -> None:
    policy = load_policy_file("batch_threshold").make({"threshold": 8}, context)
    assert switches(arms_chosen(policy, context, [7, 8, 7, 8, 9, 7, 8, 6, 8, 7])) == 1


def test_the_load_is_per_available_drafting_backend() -> None:
    context = policy_context(specs_of("none", "dspark-8", "dspark-8", "dflash-16"))
    params = {"speculating_arm": "dspark-8", "threshold": 8}
    fleet = fleet_view(context.backends, [0, 6, 6, 50])
    decision = load_policy_file("batch_threshold").make(params, context).decide(request_view(), fleet)
    assert (decision.backend, decision.reason) == ("b1", "load 6.0, speculating, least loaded of dspark-8: 6 requests")
    decision = load_policy_file("batch_threshold").make(params, context).decide(request_view(), without(fleet, "b2"))
    assert (decision.backend, decision.reason) == (
        "b0",
        "load 12.0, not speculating, least loaded of none: 0 requests",
    )


def test_the_drafting_arm_is_the_one_with_the_highest_accept_length_unless_named() -> None:
    context = policy_context(specs_of("none", "eagle3-k1", "dflash-16", "dspark-8"))
    idle = fleet_view(context.backends)
    assert load_policy_file("batch_threshold").make({}, context).decide(request_view(), idle).backend == "b2"
    named = load_policy_file("batch_threshold").make({"speculating_arm": "eagle3-k1"}, context)
    assert named.decide(request_view(), idle).backend == "b1"


def test_a_request_that_the_arm_in_force_cannot_serve_goes_to_the_other() -> None:
    specs = [
        backend_spec("other", "eagle3-k1"),
        backend_spec("plain", "none"),
        backend_spec("drafting", "dspark-8", cannot_serve=[Capability.TOOLS]),
    ]
    context = policy_context(specs)
    policy = load_policy_file("batch_threshold").make({}, context)
    fleet = fleet_view(specs, [0, 3, 0])
    decision = policy.decide(request_view(needs=[Capability.TOOLS]), fleet)
    assert decision.backend == "plain"
    assert decision.reason == "no backend of dspark-8 can serve it, least loaded of none: 3 requests"
    assert policy.decide(request_view(), fleet).backend == "drafting"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"threshold": 0}, "threshold: is 0; must be ≥ 1"),
        ({"resume_frac": 0.0}, "resume_frac: is 0.0; must be above 0 and at most 1"),
        ({"resume_frac": 1.5}, "resume_frac: is 1.5; must be above 0 and at most 1"),
        ({"plain_arm": "ngram-8"}, "plain_arm: is 'ngram-8', which no backend runs"),
        ({"speculating_arm": "ngram-8"}, "speculating_arm: is 'ngram-8', which no backend runs"),
        ({"speculating_arm": "none"}, "speculating_arm: is 'none', as is plain_arm"),
    ],
)
def test_parameters_that_cannot_be_are_refused(params: dict[str, object], message: str, context: PolicyContext) -> None:
    with pytest.raises(PolicyError) as refused:
        load_policy_file("batch_threshold").make(params, context)
    assert str(refused.value).startswith(f"policy batch_threshold: {message}")


def test_a_fleet_that_cannot_draft_is_refused() -> None:
    with pytest.raises(PolicyError, match="speculating_arm: is not given and no backend runs an arm that drafts"):
        load_policy_file("batch_threshold").make({}, policy_context(specs_of("none", "none")))
