"""When a plan that wakes a server beside another that works is followed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from selector.core.handover import Handover
from selector.core.plan import Plan
from selector.core.types import FleetView
from tests.fleets import backend_view, specs_of

ON_ONE_GPU = Handover({"none": [0], "dspark-8": [1], "eagle3-k1": [2]}, [(1,), (0,), ()], holds_s=10.0)
SPECS = specs_of("none", "dspark-8", "eagle3-k1")
TARGET_MS = 10.0


def plan(arm: str, score_w: float, *, target_ms: float | None = TARGET_MS, within: bool = True) -> Plan:
    return Plan(
        arms_of={("code", target_ms): (arm,)},
        batch_of={arm: 8},
        power_w=score_w,
        score=score_w,
        tokens_per_s_of={arm: 500.0},
        within_targets=within,
    )


def fleet(*batches: int) -> FleetView:
    views = [backend_view(spec, batch=batch) for spec, batch in zip(SPECS, batches, strict=True)]
    return FleetView(now_s=0.0, backends=tuple(views))


def due(wanted: Plan, in_force: Plan, there: FleetView, *, in_time: bool = False, prefill_frac: float = 0.05) -> bool:
    """Answers of 100 tokens; those who run meet their targets slowed, or do not."""
    return ON_ONE_GPU.is_due(
        wanted,
        in_force,
        there,
        output_tokens=100.0,
        prefill_frac=prefill_frac,
        keeps_targets=lambda index: in_time,
    )


def test_only_an_arm_beside_another_on_its_gpu_has_to_wait() -> None:
    assert ON_ONE_GPU.wakes(plan("none", 90.0), plan("dspark-8", 100.0)) == {1}
    assert not ON_ONE_GPU.wakes(plan("eagle3-k1", 90.0), plan("dspark-8", 100.0)), "a GPU of its own"
    assert not ON_ONE_GPU.wakes(plan("none", 90.0), plan("none", 100.0)), "it works already"


def test_it_is_due_at_once_where_the_neighbour_has_nothing_to_do() -> None:
    assert due(plan("none", 99.9), plan("dspark-8", 100.0), fleet(0, 0, 30))


# 4 requests of 100 tokens: 600 tokens at 10 J each, over 10 s, are 600 W.
@pytest.mark.parametrize(("saved_w", "followed"), [(590.0, False), (610.0, True)])
def test_targets_that_break_meanwhile_are_weighed_against_what_it_saves(saved_w: float, followed: bool) -> None:
    in_force = plan("dspark-8", 1_000.0)
    assert due(plan("none", 1_000.0 - saved_w), in_force, fleet(0, 4, 0)) is followed


def test_where_the_plan_in_force_has_no_place_for_all_nobody_who_runs_is_slowed_down() -> None:
    short = plan("dspark-8", 50_000.0, within=False)
    assert not due(plan("none", 10_000.0), short, fleet(0, 4, 0))
    assert due(plan("none", 10_000.0), short, fleet(0, 0, 0)), "nobody is there"
    assert due(plan("none", 10_000.0), short, fleet(0, 4, 0), in_time=True), "they stay in time"


@pytest.mark.parametrize("running", [0, 4])
def test_between_two_plans_that_are_late_a_quarter_is_worth_it(running: int) -> None:
    short, there = plan("dspark-8", 10_000.0, within=False), fleet(0, running, 0)
    assert not due(plan("none", 7_600.0, within=False), short, there, in_time=True)
    assert due(plan("none", 7_400.0, within=False), short, there, in_time=True)
    assert due(plan("none", 8_900.0), short, there, in_time=True), "all are in time then"


# Two servers taking turns prefill 2.18 times as long each.
@pytest.mark.parametrize(("prefill_frac", "followed"), [(0.11, True), (0.12, False)])
def test_in_a_peak_of_prompts_nothing_is_handed_over(prefill_frac: float, followed: bool) -> None:
    wanted, in_force = plan("none", 100.0), plan("dspark-8", 1_000.0)
    assert due(wanted, in_force, fleet(0, 4, 0), in_time=True, prefill_frac=prefill_frac) is followed
    assert due(wanted, in_force, fleet(0, 0, 0), prefill_frac=prefill_frac), "nobody is there"
    waiting = replace(in_force, score=10.0, backends_of={"dspark-8": 1})
    saves = replace(wanted, score=1.0, backends_of={"none": 1})
    assert due(saves, waiting, fleet(0, 4, 0), in_time=True, prefill_frac=prefill_frac), "clients wait: no more comes"


def test_a_plan_leaves_the_servers_beside_its_own() -> None:
    def left(plan: Plan, *, down: int | None = None) -> frozenset[int]:
        return ON_ONE_GPU.left(plan, [index != down for index in range(3)])

    assert left(plan("none", 1.0)) == {1}
    assert left(plan("dspark-8", 1.0)) == {0}
    assert left(plan("eagle3-k1", 1.0)) == set(), "a GPU of its own"
    assert left(replace(plan("none", 1.0), batch_of={"none": 4, "dspark-8": 4})) == set()
    assert left(plan("none", 1.0), down=0) == set(), "nobody is there to leave it to"


@pytest.mark.parametrize(("saved_w", "followed"), [(90.0, False), (110.0, True)])
def test_where_nobody_misses_a_target_meanwhile_a_tenth_is_worth_it(saved_w: float, followed: bool) -> None:
    in_force = plan("dspark-8", 1_000.0)
    assert due(plan("none", 1_000.0 - saved_w), in_force, fleet(0, 4, 0), in_time=True) is followed
    assert not due(plan("none", 1_000.0 - saved_w), in_force, fleet(0, 4, 0), in_time=False)
    # 600 tokens of 20 requests at 3.6 % of 2 J cost 216 J: more than 110 W save in 10 s when there are 600 of them.
    assert not due(plan("none", 1_000.0 - saved_w), in_force, fleet(0, 600, 0), in_time=True)


def test_those_who_run_are_asked_about_where_they_run() -> None:
    asked = []

    def in_time(index: int) -> bool:
        asked.append(index)
        return True

    wanted, in_force = plan("none", 500.0), plan("dspark-8", 1_000.0)
    there = fleet(0, 4, 7)
    ON_ONE_GPU.is_due(wanted, in_force, there, output_tokens=100.0, prefill_frac=0.0, keeps_targets=in_time)
    assert asked == [1]


def test_without_targets_only_the_turns_cost_something() -> None:
    in_force = plan("dspark-8", 1_000.0, target_ms=None)
    # 600 tokens at 3.6 % of 2 J: 4.3 W over 10 s.
    assert due(plan("none", 995.0, target_ms=None), in_force, fleet(0, 4, 0))
    assert not due(plan("none", 996.0, target_ms=None), in_force, fleet(0, 4, 0))


def test_where_clients_wait_plans_are_compared_by_joules_per_token() -> None:
    in_force = replace(plan("dspark-8", 1_000.0, target_ms=None), score=2.0, backends_of={"dspark-8": 1})
    saves = replace(plan("none", 1_000.0, target_ms=None), backends_of={"none": 1})
    assert due(replace(saves, score=1.99), in_force, fleet(0, 4, 0)), "5 W"
    assert not due(replace(saves, score=1.999), in_force, fleet(0, 4, 0)), "0.5 W"
