"""`static` keeps to its arm, and says so when it cannot."""

from __future__ import annotations

import pytest

from selector.core.policy import PolicyContext
from selector.core.types import Capability
from selector.errors import PolicyError
from selector.files.policy import load_policy_file
from tests.fleets import backend_spec, fleet_view, policy_context, request_view, specs_of, without


@pytest.fixture
def context() -> PolicyContext:
    return policy_context(specs_of("none", "dspark-8", "none", "dspark-8"))


def test_the_arm_is_none_unless_named(context: PolicyContext) -> None:
    fleet = fleet_view(context.backends, [9, 0, 9, 0])
    assert load_policy_file("static").make({}, context).decide(request_view(), fleet).backend == "b0"
    named = load_policy_file("static:dspark-8").make({}, context)
    assert named.decide(request_view(), fleet).backend == "b1"


def test_the_least_loaded_of_the_arm_is_chosen_and_the_first_of_equals(context: PolicyContext) -> None:
    policy = load_policy_file("static").make({"arm": "dspark-8"}, context)
    decision = policy.decide(request_view(), fleet_view(context.backends, [0, 4, 0, 3]))
    assert (decision.backend, decision.reason) == ("b3", "least loaded of dspark-8: 3 requests")
    assert policy.decide(request_view(), fleet_view(context.backends, [0, 1, 0, 1])).backend == "b1"


def test_another_arm_serves_only_when_none_of_the_arm_can_and_the_reason_says_so(context: PolicyContext) -> None:
    policy = load_policy_file("static:dspark-8").make({}, context)
    fleet = fleet_view(context.backends, [1, 0, 2, 0])
    assert policy.decide(request_view(), without(fleet, "b1")).backend == "b3"
    decision = policy.decide(request_view(), without(fleet, "b1", "b3"))
    assert decision.backend == "b0"
    assert decision.reason == "no backend of dspark-8 can serve it, least loaded: 1 request"


def test_an_arm_that_lacks_a_capability_counts_as_unable() -> None:
    context = policy_context(
        [backend_spec("b0", "dspark-8", cannot_serve=[Capability.LOGPROBS]), backend_spec("b1", "none")]
    )
    policy = load_policy_file("static:dspark-8").make({}, context)
    fleet = fleet_view(context.backends, [0, 20])
    assert policy.decide(request_view(needs=[Capability.LOGPROBS]), fleet).backend == "b1"
    assert policy.decide(request_view(), fleet).backend == "b0"


def test_an_arm_that_no_backend_runs_is_refused_with_those_there_are(context: PolicyContext) -> None:
    with pytest.raises(PolicyError, match=r"policy static: arm: is 'mtp-k1'.*choose one of none, dspark-8$"):
        load_policy_file("static:mtp-k1").make({}, context)
