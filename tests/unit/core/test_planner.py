"""The planner: near the exhaustive optimum, out of the trap, and within targets where that can be."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from selector.core.planner import Demand, Plan, Planner
from selector.core.poolload import PoolCurve, PoolLoad
from tests.fleets import ARMS, acceptance_model, specs_of

QUANTILE = 0.9


def demand(text_type: str, requests_per_s: float, *, target_ms: float | None = None, output: float = 250.0) -> Demand:
    return Demand(
        text_type=text_type,
        tbt_target_ms=target_ms,
        requests_per_s=requests_per_s,
        prompt_tokens=500.0,
        output_tokens=output,
    )


def planner(*arms: str) -> Planner:
    return Planner(specs_of(*(arms or ARMS)), acceptance_model(), QUANTILE)


def exhaustive(solver: Planner, demands: list[Demand], arms: tuple[str, ...]) -> float:
    """The best score over all assignments of demands to arms."""
    keys = [each.key for each in demands]
    return min(
        solver.evaluate(demands, dict(zip(keys, choice, strict=True))).score
        for choice in product(arms, repeat=len(demands))
    )


def demand_rows(most_per_s: float, fewest: int) -> st.SearchStrategy[list[tuple[str, float, float | None]]]:
    """(text type, requests per second, target) of up to three demands."""
    row = st.tuples(
        st.sampled_from(["code", "romansh", "math"]), st.floats(0.1, most_per_s), st.sampled_from([None, 8.0, 25.0])
    )
    return st.lists(row, min_size=fewest, max_size=3, unique_by=lambda each: (each[0], each[2]))


@given(demand_rows(12.0, 1))
@settings(max_examples=25)
def test_the_search_is_within_two_percent_of_the_exhaustive_optimum(
    rows: list[tuple[str, float, float | None]],
) -> None:
    demands = [demand(text, rate, target_ms=target) for text, rate, target in rows]
    solver = planner()
    assert solver.solve(demands).score <= exhaustive(solver, demands, ARMS) * 1.02


@given(demand_rows(40.0, 2))
@example([("romansh", 5.0, None), ("code", 21.0, None), ("code", 32.0, 8.0)])
@example([("code", 16.2, 25.0), ("romansh", 33.9, None), ("romansh", 33.2, 8.0)])
@settings(max_examples=12)
def test_it_is_so_under_loads_that_need_several_backends(rows: list[tuple[str, float, float | None]]) -> None:
    """There all on one arm, or each demand on its own cheapest, is up to a third off: moves are what finds it."""
    demands = [demand(text, rate, target_ms=target) for text, rate, target in rows]
    solver = planner(*ARMS, *ARMS)
    assert solver.solve(demands).score <= exhaustive(solver, demands, ARMS) * 1.02


def test_it_avoids_the_trap() -> None:
    """At low load the block drafter may win; at high load on badly accepted text it must not be where traffic ends."""
    busy = planner().solve([demand("romansh", 10.0)])
    assert busy.arms_of["romansh", None][0] in {"none", "eagle3-k1"}


def test_a_tight_target_is_met_by_drafting() -> None:
    plan = planner().solve([demand("code", 1.0, target_ms=3.0)])
    assert plan.arms_of["code", 3.0][0] in {"dspark-8", "dflash-16"}


def test_batches_stay_within_the_target() -> None:
    loose, tight = (planner().solve([demand("romansh", 20.0, target_ms=t)]) for t in (50.0, 7.0))
    arm = tight.arms_of["romansh", 7.0][0]
    assert tight.batch_of[arm] < 64
    assert max(loose.batch_of.values()) == 64


def test_more_demand_never_needs_less_power() -> None:
    powers = [planner().solve([demand("code", rate)]).power_w for rate in (0.1, 1.0, 5.0, 20.0, 60.0)]
    assert powers == sorted(powers)


def test_what_one_pool_cannot_hold_flows_to_the_next() -> None:
    plan = planner().solve([demand("code", 60.0)])
    assert len(plan.tokens_per_s_of) >= 2
    assert sum(plan.tokens_per_s_of.values()) == pytest.approx(60.0 * 250.0, rel=1e-6)


def test_demands_that_share_a_full_arm_overflow_alike() -> None:
    """Requests come mixed: the larger demand does not get its places first."""
    demands = [demand("code", 60.0), demand("romansh", 30.0)]
    solver = planner("dspark-8", "eagle3-k1", "eagle3-k1")
    shared = solver.evaluate(demands, dict.fromkeys([each.key for each in demands], "dspark-8"))
    room = shared.tokens_per_s_of["dspark-8"]
    curve = PoolLoad(
        solver._pools["dspark-8"].spec, [(each, each.tokens_per_s) for each in demands], acceptance_model(), QUANTILE
    )
    assert room == pytest.approx(curve.full().tokens_per_s, rel=0.02)
    apart = solver.solve(demands)
    assert apart.arms_of["code", None][0] == "dspark-8"
    assert apart.arms_of["romansh", None][0] == "eagle3-k1"


def test_one_arm_is_woken_for_the_overflow_of_several_where_that_costs_less() -> None:
    """Alone, what `none` cannot hold of the code would go to `dflash-16`, and each arm would be awake for a little."""
    demands = [demand("code", 24.0), demand("romansh", 24.0)]
    plan = planner().evaluate(demands, {demands[0].key: "none", demands[1].key: "dspark-8"})
    assert {arms[1] for arms in plan.arms_of.values()} == {"eagle3-k1"}
    alone = planner("none", "dspark-8", "dflash-16", "eagle3-k1").evaluate(demands[:1], {demands[0].key: "none"})
    assert alone.arms_of[demands[0].key][1] == "dflash-16"


def test_a_pool_without_room_for_chance_costs_more_beside_an_arm_that_it_wakes() -> None:
    """Within its places in the mean, beyond them time and again."""
    curve = PoolCurve(
        load := PoolLoad(specs_of("none")[0], [(demand("code", 1.0), 1.0)], acceptance_model(), QUANTILE), load.full()
    )
    extra_w = []
    for fill in (0.3, 0.95):
        asked = demand("code", fill * curve.most_tokens_per_s / 250.0)
        beside, alone = (
            planner(*arms).evaluate([asked], {asked.key: "none"}) for arms in (("none", "dflash-16"), ("none",))
        )
        assert beside.tokens_per_s_of == alone.tokens_per_s_of, "nothing of it is planned to overflow"
        extra_w.append(beside.power_w - alone.power_w)
    assert abs(extra_w[0]) < 1.0
    assert extra_w[1] > 20.0


def test_bursts_of_prefill_leave_less_room_under_a_target() -> None:
    calm = demand("romansh", 20.0, target_ms=12.0)
    bursts = [
        planner("none", "none").solve([calm._replace(prefill_dispersion_s=spread_s)]).batch_of["none"]
        for spread_s in (0.0, 0.05, 0.5)
    ]
    assert bursts[0] > bursts[1] > bursts[2] >= 1


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


# ---- a population that waits for its answers


def exhaustive_joules(solver: Planner, demands: list[Demand], population: float) -> float:
    keys = [each.key for each in demands]
    return min(
        solver.evaluate(demands, dict(zip(keys, choice, strict=True)), population=population).score
        for choice in product(ARMS, repeat=len(demands))
    )


@given(demand_rows(12.0, 1), st.sampled_from([1.0, 4.0, 16.0, 60.0, 120.0]))
@settings(max_examples=15)
def test_with_a_population_too_the_search_is_near_the_exhaustive_optimum(
    rows: list[tuple[str, float, float | None]], population: float
) -> None:
    demands = [demand(text, rate, target_ms=target) for text, rate, target in rows]
    solver = planner(*ARMS, *ARMS)
    found = solver.solve(demands, population=population).score
    assert found <= exhaustive_joules(solver, demands, population) * 1.03


@pytest.mark.parametrize("population", [1.0, 5.0, 30.0, 100.0, 200.0])
def test_the_backends_that_share_hold_the_population(population: float) -> None:
    """Batch times backends, by Little's law from the planned rate: as many as are there."""
    plan = planner("none", "none", "none", "none").solve([demand("romansh", 3.0)], population=population)
    backends = plan.backends_of["none"]
    load = PoolLoad(specs_of("none")[0], [(demand("romansh", 3.0), 1.0)], acceptance_model(), QUANTILE)
    at_batch = load.point(population / backends)
    assert plan.tokens_per_s_of["none"] == pytest.approx(backends * at_batch.tokens_per_s, rel=0.02)
    assert plan.batch_of["none"] >= population / backends


@pytest.mark.parametrize("beyond", [2, 10, 30])
def test_with_overflow_too_as_many_requests_are_there_as_there_are_clients(beyond: int) -> None:
    arms, asked = ("dspark-8", "dflash-16"), demand("code", 1.0, target_ms=8.0)
    loads = {spec.arm: PoolLoad(spec, [(asked, 1.0)], acceptance_model(), QUANTILE) for spec in specs_of(*arms)}
    places = loads["dspark-8"].full().batch
    plan = planner(*arms).evaluate([asked], {asked.key: "dspark-8"}, population=places + beyond)
    assert plan.within_targets
    there = {arm: PoolCurve(load, load.full()).at(plan.tokens_per_s_of[arm])[0] for arm, load in loads.items()}
    assert there["dspark-8"] == pytest.approx(places, rel=0.01)
    assert sum(there.values()) == pytest.approx(places + beyond, rel=0.01)


def test_overflow_goes_where_so_much_of_it_costs_least() -> None:
    asked = demand("conversation", 1.0, target_ms=8.0)
    solver = planner("dspark-8", "eagle3-k1", "dflash-16", "none")
    few, many = (
        solver.evaluate([asked], {asked.key: "dspark-8"}, population=population).arms_of[asked.key][1]
        for population in (60.0, 106.0)
    )
    # A block drafter is the cheaper the emptier its backend, and the dearer the fuller.
    assert (few, many) == ("dflash-16", "eagle3-k1")


def test_the_score_is_joules_per_token_with_the_idle_power_of_the_fleet() -> None:
    solver = planner("none", "none", "none")
    plan = solver.solve([demand("code", 1.0)], population=20.0)
    assert solver.idle_w == 3 * 95.0
    joules = (plan.power_w + solver.idle_w) / plan.tokens_per_s_of["none"]
    assert plan.score == pytest.approx(joules)


def test_that_pools_come_and_go_is_counted_where_clients_wait() -> None:
    """Two arms for two texts: with 16 clients the mean parts alone promise less than what comes of it."""
    demands = [demand("code", 1.0), demand("conversation", 1.0)]
    arm_of = {demands[0].key: "dflash-16", demands[1].key: "dspark-8"}
    solver = planner("none", "none", "dspark-8", "dflash-16")
    plan = solver.evaluate(demands, arm_of, population=16.0)
    curves = {
        arm_of[each.key]: PoolCurve(load, load.full())
        for each in demands
        for load in [PoolLoad(specs_of(arm_of[each.key])[0], [(each, 1.0)], acceptance_model(), QUANTILE)]
    }
    rate = next(
        rate / 2.0 for rate in range(1, 10_000) if sum(curve.at(rate / 2.0)[0] for curve in curves.values()) >= 16.0
    )
    steady = (solver.idle_w + sum(curve.at(rate)[1] for curve in curves.values())) / (2.0 * rate)
    assert 1.002 * steady < plan.score < 1.05 * steady


def test_idle_gpus_make_sharing_pay_where_clients_wait() -> None:
    """One full backend needs least power for its rate; while its clients wait, the other GPUs idle all the longer."""
    small, large = (
        planner(*["dspark-8"] * gpus).solve([demand("code", 1.0)], population=48.0).backends_of["dspark-8"]
        for gpus in (2, 16)
    )
    assert small < large


def test_rates_tell_only_shares_where_a_population_is_given() -> None:
    once, tenfold = (
        planner().solve([demand("code", scale), demand("romansh", scale)], population=16.0) for scale in (1.0, 10.0)
    )
    assert once.arms_of == tenfold.arms_of
    assert once.score == pytest.approx(tenfold.score, rel=1e-3)


def test_a_population_beyond_the_places_fills_them() -> None:
    plan = planner("none", "eagle3-k1").solve([demand("romansh", 1.0)], population=500.0)
    assert plan.backends_of == {"none": 1, "eagle3-k1": 1}
    assert min(plan.batch_of.values()) == 64


def test_more_clients_than_places_within_their_target_are_said_to_miss_it() -> None:
    few, many = (planner("none").solve([demand("code", 1.0, target_ms=10.0)], population=n) for n in (4.0, 60.0))
    assert few.within_targets
    assert not many.within_targets
    assert planner("none").solve([demand("code", 1.0)], population=500.0).within_targets, "nobody asks for a pace"


def test_an_impossible_target_is_said_to_be_missed_with_a_population_too() -> None:
    plan = planner().solve([demand("romansh", 1.0, target_ms=0.5)], population=8.0)
    assert not plan.within_targets
    assert planner().solve([demand("romansh", 1.0, target_ms=50.0)], population=8.0).within_targets


# ---- shared GPUs


def test_arms_of_one_gpu_take_turns_in_the_plan() -> None:
    """Alone on its GPU each could be used beside the other; together they slow each other below the target."""
    apart = specs_of("none", "dspark-8")
    together = [replace(spec, gpus=("g",)) for spec in apart]
    demands = [demand("romansh", 4.0, target_ms=11.0), demand("code", 4.0, target_ms=11.0)]
    split = {demands[0].key: "none", demands[1].key: "dspark-8"}
    free, shared = (
        Planner(specs, acceptance_model(), QUANTILE).evaluate(demands, split) for specs in (apart, together)
    )
    assert shared.batch_of["none"] < free.batch_of["none"]
    assert Planner(together, acceptance_model(), QUANTILE).idle_w == 95.0


TOGETHER = [replace(spec, gpus=("g",)) for spec in specs_of("none", "eagle3-k1", "dspark-8")]


def late(demands: list[Demand], arm_of: dict[str, str]) -> float:
    """Tokens per second outside their targets on servers of one GPU; arms by text type."""
    in_all = 0.0
    for spec in TOGETHER:
        mix = [(each, each.tokens_per_s) for each in demands if arm_of[each.text_type] == spec.arm]
        if mix:
            load = PoolLoad(spec, mix, acceptance_model(), QUANTILE, len(set(arm_of.values())))
            in_all += load.overrun(sum(rate for _, rate in mix))
    return in_all


def on_one_gpu(demands: list[Demand]) -> dict[str, str]:
    """The planned arm by text type."""
    plan = Planner(TOGETHER, acceptance_model(), QUANTILE).solve(demands)
    return {text_type: arms[0] for (text_type, _), arms in plan.arms_of.items()}


@pytest.mark.parametrize(("code_per_s", "romansh_per_s", "output"), [(2.0, 1.0, 250.0), (5.0, 3.0, 100.0)])
def test_a_full_gpu_is_left_to_the_server_on_which_least_is_late(
    code_per_s: float, romansh_per_s: float, output: float
) -> None:
    """Two servers have places for more within the target than one; of all that come less is late on one."""
    rates = {"code": code_per_s, "romansh": romansh_per_s}
    demands = [
        demand(text, rate, target_ms=5.0, output=output)._replace(prompt_tokens=1500.0 if rate < 3 else 500.0)
        for text, rate in rates.items()
    ]
    choices = [{"code": a, "romansh": b} for a, b in product(["none", "eagle3-k1", "dspark-8"], repeat=2)]
    found = on_one_gpu(demands)
    assert late(demands, found) == min(late(demands, choice) for choice in choices) > 0.0


def test_servers_of_one_gpu_work_together_only_for_a_clear_gain() -> None:
    demands = [demand("code", 2.0), demand("romansh", 1.0)]
    solver = Planner(TOGETHER, acceptance_model(), QUANTILE)
    alone = solver.evaluate(demands, {each.key: "eagle3-k1" for each in demands})
    both = solver.evaluate(demands, {demands[0].key: "dspark-8", demands[1].key: "eagle3-k1"})
    assert both.score / 1.03 < alone.score < both.score, "a gain that a peak takes back"
    assert solver.solve(demands).arms_of == alone.arms_of


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


@pytest.mark.parametrize(
    ("target_ms", "population", "within", "hopeless"),
    [(50.0, 8.0, True, False), (8.0, 500.0, False, False), (1.0, 8.0, False, True)],
)
def test_too_few_places_are_told_from_none_at_all(
    target_ms: float, population: float, within: bool, hopeless: bool
) -> None:
    plan = planner("none").solve([demand("romansh", 1.0, target_ms=target_ms)], population=population)
    assert (plan.within_targets, plan.hopeless) == (within, hopeless)
