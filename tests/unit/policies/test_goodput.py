"""`goodput` maximises the accepted tokens per second of the fleet."""

from __future__ import annotations

import pytest

from selector.core.types import FleetView, LoadGroup
from selector.files.policy import load_policy_file
from tests.fleets import ARMS, arm_cost, backend_view, fleet_view, policy_context, request_view, specs_of


def test_at_an_empty_fleet_the_fastest_arm_of_the_text_wins() -> None:
    context = policy_context(specs_of(*ARMS))
    policy = load_policy_file("goodput").make({}, context)
    idle = fleet_view(context.backends)
    # Accept length over step time at batch 1: dflash-16 5.5 / 6.6 on code and 2 / 6.6 on romansh.
    assert policy.decide(request_view(text_type="code"), idle).backend == "b3"
    assert policy.decide(request_view(text_type="romansh"), idle).backend == "b3"
    assert policy.decide(request_view(tbt_target_ms=1e3), idle).reason == "most goodput: +833 tokens/s"


def test_an_idle_backend_beats_a_busy_one_of_the_same_arm() -> None:
    context = policy_context(specs_of("dspark-8", "dspark-8"))
    policy = load_policy_file("goodput").make({}, context)
    assert policy.decide(request_view(), fleet_view(context.backends, [16, 0])).backend == "b1"


def test_what_the_others_lose_counts() -> None:
    context = policy_context(specs_of("dflash-16", "none"))
    policy = load_policy_file("goodput").make({}, context)
    crowd = [LoadGroup(text_type="code", tbt_target_ms=None, requests=40)]
    dflash, none = context.backends
    fleet = FleetView(now_s=0.0, backends=(backend_view(dflash, batch=40, groups=crowd), backend_view(none)))
    # On romansh the request gets 2 tokens per step beside the crowd, and slows its 5.5 tokens per step each.
    at_40, at_41 = (arm_cost("dflash-16").step.step(batch, 625.0)[0] for batch in (40, 41))
    gain = 1e3 * ((40 * 5.5 + 2.0) / at_41 - 40 * 5.5 / at_40)
    assert gain < 1e3 / 5.1
    assert policy.decide(request_view(text_type="romansh"), fleet).backend == "b1"


def test_a_feasible_backend_comes_before_a_faster_one_that_misses_the_target() -> None:
    context = policy_context(specs_of("none", "dflash-16"))
    policy = load_policy_file("goodput").make({}, context)

    def fleet(target_ms: float | None) -> FleetView:
        crowd = [LoadGroup(text_type="romansh", tbt_target_ms=target_ms, requests=20)]
        none, dflash = context.backends
        views = (backend_view(none, batch=62), backend_view(dflash, batch=20, groups=crowd))
        return FleetView(now_s=0.0, backends=views)

    # For romansh beside 20 others dflash-16 is slower than 6.5 ms a token; for code it gives most tokens.
    assert policy.decide(request_view(text_type="code"), fleet(None)).backend == "b1"
    decision = policy.decide(request_view(text_type="code"), fleet(6.5))
    assert decision.backend == "b0"
    assert [candidate.feasible for candidate in decision.candidates] == [True, False]


@pytest.mark.parametrize(
    ("batches", "backend", "reason"),
    [
        ([40, 20], "b1", "no place within target, least violation: "),
        ([80, 70], "b1", "no free place, soonest through: 70 requests"),
    ],
)
def test_without_a_feasible_backend_the_least_violation_wins(batches: list[int], backend: str, reason: str) -> None:
    context = policy_context(specs_of("none", "none"))
    policy = load_policy_file("goodput").make({}, context)
    decision = policy.decide(request_view(tbt_target_ms=1.0), fleet_view(context.backends, batches))
    assert decision.backend == backend
    assert decision.reason.startswith(reason)
