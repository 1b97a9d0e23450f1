"""The fleet that serves a load at least energy, found and checked by simulation."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from selector.errors import FleetError
from selector.files.trace import TraceRequest
from selector.simulator.arrivals import ClosedLoop, OpenLoop
from selector.simulator.fleetplan import FleetLimits, FleetOption, plan_fleet, plan_fleet_size
from selector.simulator.run import SimulatedRequest, Window
from tests.profiles import PROFILE, sparse_profile

COSTS = sparse_profile()


def load(rate_per_s: float, text_type: str, target_ms: float | None, count: int = 120) -> OpenLoop:
    random, at_s, requests = Random(1), 0.0, []
    for number in range(count):
        at_s += random.expovariate(rate_per_s)
        trace = TraceRequest(request_id=f"r{number}", arrival_s=at_s, prompt_tokens=500, output_tokens=200)
        requests.append(
            SimulatedRequest(trace=trace, text_type=text_type, slo_class="default", tbt_target_ms=target_ms)
        )
    return OpenLoop(requests)


def test_the_best_fleet_needs_least_energy_of_those_tried() -> None:
    plan = plan_fleet(PROFILE, COSTS, load(4.0, "code", 25.0), 2, tried=3)
    joules = [option.result.j_per_accepted_token for option in plan.options if option.result]
    assert plan.feasible
    assert len(joules) == len(plan.options) == 3
    assert joules == sorted(joules)
    assert plan.runner_up is plan.options[1]
    assert any(len(set(option.arms)) == 1 for option in plan.options), "a single arm is always among them"
    assert all(len(option.arms) == 2 for option in plan.options)


def test_only_the_arms_named_are_used() -> None:
    plan = plan_fleet(PROFILE, COSTS, load(2.0, "code", None), 2, arms=["none", "eagle3-k1"], tried=2)
    assert {arm for option in plan.options for arm in option.arms} <= {"none", "eagle3-k1"}
    with pytest.raises((FleetError, KeyError)):
        plan_fleet(PROFILE, COSTS, load(2.0, "code", None), 1, arms=["nothing"], tried=1)


def test_a_target_that_no_arm_meets_is_infeasible() -> None:
    plan = plan_fleet(PROFILE, COSTS, load(2.0, "romansh", 0.5), 1, tried=2)
    assert not plan.feasible
    assert not plan.best.expected_within_targets
    assert plan.best.worst_attainment == 0.0


def test_it_takes_as_many_gpus_as_need_least_energy() -> None:
    light = plan_fleet_size(PROFILE, COSTS, load(1.0, "code", 25.0, 60), 4, tried=1)
    heavy = plan_fleet_size(PROFILE, COSTS, load(60.0, "romansh", 12.0, 600), 4, tried=1)
    assert light.feasible
    assert len(light.best.arms) == 1
    assert len(heavy.best.arms) > 1


def test_the_limits_are_those_of_every_backend() -> None:
    tight = FleetLimits(max_running_requests=2, max_context_tokens=1_024)
    few = plan_fleet(PROFILE, COSTS, load(6.0, "romansh", None), 1, limits=tight, tried=1)
    many = plan_fleet(PROFILE, COSTS, load(6.0, "romansh", None), 1, tried=1)
    assert few.best.result and many.best.result
    assert (few.best.result.ttft_p99_ms or 0.0) > 2.0 * (many.best.result.ttft_p99_ms or 0.0)


def test_where_no_fleet_is_within_targets_it_serves_no_worse_than_one_arm_and_needs_no_more() -> None:
    # Forty clients on two GPUs: no fleet has so many places within 5 ms for Romansh, however it is made up.
    texts = [load(4.0, text, 5.0, 400).requests for text in ("code", "romansh")]
    mixed = [request for pair in zip(*texts, strict=True) for request in pair]
    named = [
        replace(request, trace=replace(request.trace, request_id=f"r{number}")) for number, request in enumerate(mixed)
    ]
    clients = ClosedLoop(named, [(0.0, 40)])
    plan = plan_fleet(PROFILE, COSTS, clients, 2, window=Window(from_s=2.0, to_s=10.0), until_s=10.0)
    assert not plan.feasible
    assert not any(option.expected_within_targets for option in plan.options)
    singles = [option for option in plan.options if len(set(option.arms)) == 1]
    least = min(option.shortfall(0.9) for option in singles)
    assert plan.best.shortfall(0.9) <= least + 0.01
    joules = [option.result.j_per_accepted_token for option in (plan.best, *singles) if option.result]
    assert joules[0] == min(each for each in joules if each is not None)


def test_the_shortfall_is_the_mean_over_text_types() -> None:
    untried = FleetOption(arms=("none",), expected_j_per_accepted_token=1.0, expected_within_targets=True)
    assert untried.shortfall(0.9) == 1.0
    tried = plan_fleet(PROFILE, COSTS, load(2.0, "romansh", 0.5), 1, tried=1).best
    assert tried.shortfall(0.9) == pytest.approx(0.9)
    assert plan_fleet(PROFILE, COSTS, load(2.0, "code", 25.0), 1, tried=1).best.shortfall(0.9) == 0.0


def test_a_bound_on_the_first_token_holds_for_every_size() -> None:
    slow = plan_fleet_size(PROFILE, COSTS, load(4.0, "code", 25.0, 60), 2, tried=1, ttft_p99_ms=0.001)
    assert not slow.feasible
