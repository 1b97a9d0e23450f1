"""`affinity` sends each text type to its arm."""

from __future__ import annotations

import pytest

from selector.core.policy import PolicyContext
from selector.core.types import TEXT_TYPES, UNKNOWN_TEXT_TYPE
from selector.errors import PolicyError
from selector.files.policy import load_policy_file
from tests.fleets import ARMS, BADLY_ACCEPTED_TYPES, fleet_view, policy_context, request_view, specs_of, without


@pytest.fixture
def context() -> PolicyContext:
    return policy_context(specs_of(*ARMS))


def arm_of(context: PolicyContext, text_type: str, **params: object) -> str:
    policy = load_policy_file("affinity").make(params, context)
    backend = policy.decide(request_view(text_type=text_type), fleet_view(context.backends)).backend
    return context.spec(str(backend)).arm


def test_by_default_a_text_type_gets_the_arm_with_the_fewest_joules_per_accepted_token(context: PolicyContext) -> None:
    # At batch 16: 3.1/1 (none), 3.8/1.85 or 1.5 (eagle3-k1), 6.2/4.5 or 1.6 (dspark-8), 7.4/5.5 or 2 (dflash-16).
    for text_type in TEXT_TYPES:
        cheapest = "eagle3-k1" if text_type in BADLY_ACCEPTED_TYPES else "dflash-16"
        assert arm_of(context, text_type) == cheapest


def test_the_typical_batch_decides(context: PolicyContext) -> None:
    # At batch 64: 6.4/1.85 (eagle3-k1) against 15.0/4.5 (dspark-8), 22.2/5.5 (dflash-16) and 5.2 (none).
    assert arm_of(context, "code", batch=64) == "dspark-8"
    assert arm_of(context, "romansh", batch=1) == "dflash-16"


def test_an_arm_given_for_a_type_overrides_that_type_only(context: PolicyContext) -> None:
    assert arm_of(context, "code", arms={"code": "none"}) == "none"
    assert arm_of(context, "math", arms={"code": "none"}) == "dflash-16"


def test_a_type_that_is_unknown_or_nobody_heard_of_has_an_arm_too(context: PolicyContext) -> None:
    arms = {UNKNOWN_TEXT_TYPE: "dspark-8"}
    assert arm_of(context, UNKNOWN_TEXT_TYPE, arms=arms) == "dspark-8"
    assert arm_of(context, "klingon", arms=arms) == "dspark-8"


def test_within_the_arm_the_least_loaded_serves_and_without_it_any() -> None:
    context = policy_context(specs_of("none", "dspark-8", "dspark-8"))
    policy = load_policy_file("affinity").make({"arms": {"code": "dspark-8"}}, context)
    fleet = fleet_view(context.backends, [0, 9, 8])
    decision = policy.decide(request_view(text_type="code"), fleet)
    assert (decision.backend, decision.reason) == ("b2", "for code, least loaded of dspark-8: 8 requests")
    decision = policy.decide(request_view(text_type="code"), without(fleet, "b1", "b2"))
    assert (decision.backend, decision.reason) == (
        "b0",
        "no backend of dspark-8 can serve it, least loaded: 0 requests",
    )


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"arms": {"klingon": "none"}}, "policy affinity: arms: has 'klingon', which is no text type"),
        ({"arms": {"code": "mtp-k1"}}, "policy affinity: arms.code: is 'mtp-k1', which no backend runs"),
        ({"batch": 0}, "policy affinity: batch: is 0; must be ≥ 1"),
        ({"context_tokens": -1}, "policy affinity: context_tokens: is -1.0; must be ≥ 0"),
        ({"context_tokens": float("nan")}, "policy affinity: context_tokens: is nan; must be ≥ 0"),
    ],
)
def test_parameters_that_cannot_be_are_refused(params: dict[str, object], message: str, context: PolicyContext) -> None:
    with pytest.raises(PolicyError) as refused:
        load_policy_file("affinity").make(params, context)
    assert str(refused.value).startswith(message)
