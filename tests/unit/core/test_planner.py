"""The planner: near the exhaustive optimum, out of the trap, and around what is in force."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from selector.core.plan import Plan
from tests.demands import demand, demand_rows, exhaustive, planner
from tests.fleets import ARMS


@given(demand_rows(12.0, 1))
@settings(max_examples=25)
def test_the_search_is_within_two_percent_of_the_exhaustive_optimum(
    rows: list[tuple[str, float, float | None]],
) -> None:
    demands = [demand(text, rate, target_ms=target) for text, rate, target in rows]
    solver = planner()
    assert solver.solve(demands).score <= exhaustive(solver, demands) * 1.02


@given(demand_rows(40.0, 2))
@example([("romansh", 5.0, None), ("code", 21.0, None), ("code", 32.0, 8.0)])
@example([("code", 16.2, 25.0), ("romansh", 33.9, None), ("romansh", 33.2, 8.0)])
@settings(max_examples=12)
def test_it_is_so_under_loads_that_need_several_backends(rows: list[tuple[str, float, float | None]]) -> None:
    """There all on one arm, or each demand on its own cheapest, is up to a third off: moves are what finds it."""
    demands = [demand(text, rate, target_ms=target) for text, rate, target in rows]
    solver = planner(*ARMS, *ARMS)
    assert solver.solve(demands).score <= exhaustive(solver, demands) * 1.02


def test_it_avoids_the_trap() -> None:
    """At low load the block drafter may win; at high load on badly accepted text it must not be where traffic ends."""
    busy = planner().solve([demand("romansh", 10.0)])
    assert busy.arms_of["romansh", None][0] in {"none", "eagle3-k1"}


def test_a_tight_target_is_met_by_drafting() -> None:
    plan = planner().solve([demand("code", 1.0, target_ms=3.0)])
    assert plan.arms_of["code", 3.0][0] in {"dspark-8", "dflash-16"}


def test_the_best_assignment_is_one_of_those_evaluated() -> None:
    solver, demands = planner(), [demand("code", 4.0), demand("romansh", 4.0)]
    best = solver.solve(demands)
    assert solver.evaluate(demands, {key: arms[0] for key, arms in best.arms_of.items()}) == best
    with pytest.raises(KeyError):
        solver.evaluate(demands, {demands[0].key: "none"})


def test_of_many_demands_those_that_every_arm_serves_alike_are_planned_together() -> None:
    """`code` and `math` are accepted alike here; apart, the lighter one could be elsewhere."""
    demands = [demand(text, 4.0, target_ms=target) for target in (None, 9.0) for text in ("code", "romansh", "math")]
    plan = planner(*ARMS, *ARMS).solve(demands)
    for target in (None, 9.0):
        assert plan.arms_of["math", target] == plan.arms_of["code", target]
    assert sum(plan.tokens_per_s_of.values()) == pytest.approx(6 * 4.0 * 250.0, rel=1e-6)


def test_of_very_many_demands_the_small_ones_follow_the_likest_large_one() -> None:
    tight = [demand("romansh", 3.0 + 0.1 * number, target_ms=5.2 + 0.01 * number) for number in range(5)]
    loose = [demand("romansh", 3.0 + 0.1 * number, target_ms=40.0 + number) for number in range(5)]
    small = [demand("romansh", 0.01, target_ms=5.5 + 0.01 * number) for number in range(40)]
    other = demand("code", 0.01, target_ms=3.5)
    demands = [*small, *loose, other, *tight]
    plan = planner(*ARMS, *ARMS, *ARMS).solve(demands)
    assert set(plan.arms_of) == {each.key for each in demands}
    assert plan.arms_of[tight[4].key] != plan.arms_of[loose[0].key]
    assert {plan.arms_of[each.key] for each in small} == {plan.arms_of[tight[4].key]}
    # Alone, drafting serves it best; too small to be planned for, it goes where its target is not far off.
    assert plan.arms_of[other.key] in {plan.arms_of[each.key] for each in tight}
    assert planner(*ARMS, *ARMS, *ARMS).solve([other]).arms_of[other.key] not in plan.arms_of.values()
    total = sum(each.tokens_per_s for each in demands)
    assert sum(plan.tokens_per_s_of.values()) == pytest.approx(total, rel=1e-6)


def test_unusable_arms_are_not_planned() -> None:
    usable = {"none": 1, "dspark-8": 0}
    plan = planner().solve([demand("code", 1.0)], usable=usable)
    assert plan.arms_of["code", None] == ("none",)
    assert planner().evaluate([demand("code", 1.0)], {("code", None): "none"}, usable=usable) == plan
    assert planner().solve([demand("code", 1.0)], usable={}).arms_of == {}
    assert planner().solve([]).power_w == 0.0


def test_an_impossible_target_still_gets_a_plan() -> None:
    plan = planner().solve([demand("romansh", 1.0, target_ms=0.5)])
    arm = plan.arms_of["romansh", 0.5][0]
    assert plan.batch_of[arm] <= 2, "one request, and one more that comes by chance"


def test_a_plan_is_kept_unless_another_is_clearly_better() -> None:
    solver, demands = planner(), [demand("code", 4.0)]
    best = solver.solve(demands)
    other = next(arm for arm in ARMS if arm != best.arms_of["code", None][0])
    forced = Plan(arms_of={("code", None): (other,)}, batch_of={}, power_w=0.0, score=0.0)
    assert solver.solve(demands, current=forced, keep_within_frac=10.0).arms_of["code", None][0] == other
    assert solver.solve(demands, current=forced, keep_within_frac=0.0).score == best.score


@given(demand_rows(12.0, 1), st.sampled_from([1.0, 4.0, 16.0, 60.0, 120.0]))
@settings(max_examples=15)
def test_with_a_population_too_the_search_is_near_the_exhaustive_optimum(
    rows: list[tuple[str, float, float | None]], population: float
) -> None:
    demands = [demand(text, rate, target_ms=target) for text, rate, target in rows]
    solver = planner(*ARMS, *ARMS)
    found = solver.solve(demands, population=population).score
    assert found <= exhaustive(solver, demands, population=population) * 1.03


def test_a_demand_that_comes_later_joins_what_runs_where_that_costs_less() -> None:
    """Alone a trickle of maths would wake a backend that nobody else needs."""
    solver = planner()
    running, trickle = demand("code", 2.0), demand("math", 0.1)
    plan = solver.evaluate([running], {running.key: "dspark-8"})
    assert solver.solve([trickle]).arms_of[trickle.key][0] != "dspark-8"
    extended = solver.extended(plan, [running, trickle], trickle.key)
    assert extended.arms_of[trickle.key][0] == "dspark-8"
    assert extended.arms_of[running.key] == plan.arms_of[running.key]
    scores = [solver.evaluate([running, trickle], {running.key: "dspark-8", trickle.key: arm}).score for arm in ARMS]
    assert extended.score == min(scores)


def test_a_demand_that_comes_later_has_an_arm_of_its_own_where_the_load_asks_for_it() -> None:
    solver = planner(*ARMS, *ARMS)
    running, flood = demand("code", 12.0), demand("romansh", 20.0)
    plan = solver.evaluate([running], {running.key: "dspark-8"})
    assert solver.extended(plan, [running, flood], flood.key).arms_of[flood.key][0] in {"none", "eagle3-k1"}


def test_a_plan_is_extended_around_demands_and_backends_that_are_gone() -> None:
    solver = planner()
    lost, unplanned, new = demand("code", 1.0), demand("news", 1.0), demand("math", 1.0)
    plan = solver.evaluate([lost], {lost.key: "dspark-8"})
    usable = {"none": 1, "eagle3-k1": 1}
    extended = solver.extended(plan, [lost, unplanned, new], new.key, usable=usable)
    assert extended.arms_of[new.key][0] in usable
    assert unplanned.key not in extended.arms_of
    assert solver.extended(plan, [lost, new], new.key, usable={}) == plan
