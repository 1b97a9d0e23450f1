"""`least_loaded` counts requests and nothing else."""

from __future__ import annotations

from selector.files.policy import load_policy_file
from tests.fleets import fleet_view, policy_context, request_view, specs_of, without


def test_the_fewest_requests_win_and_the_first_of_equals() -> None:
    context = policy_context(specs_of("none", "dflash-16", "dspark-8"))
    policy = load_policy_file("least_loaded").make({}, context)
    decision = policy.decide(request_view(), fleet_view(context.backends, [5, 3, 4]))
    assert (decision.backend, decision.reason) == ("b1", "least loaded: 3 requests")
    assert policy.decide(request_view(), fleet_view(context.backends, [2, 1, 1])).backend == "b1"
    assert policy.decide(request_view(), fleet_view(context.backends, [0, 0, 0])).backend == "b0"


def test_a_backend_that_is_down_does_not_count_as_empty() -> None:
    context = policy_context(specs_of("none", "none"))
    policy = load_policy_file("least_loaded").make({}, context)
    assert policy.decide(request_view(), without(fleet_view(context.backends, [0, 7]), "b0")).backend == "b1"
