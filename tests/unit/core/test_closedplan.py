"""Plans for clients that wait for their answers: how many backends share them, and whether they have places."""

from __future__ import annotations

import pytest

from selector.core import closedplan
from selector.core.poolload import PoolCurve, PoolLoad
from tests.demands import QUANTILE, demand, planner
from tests.fleets import acceptance_model, specs_of


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
    assert max(there.values()) <= 1.01 * places
    assert sum(there.values()) == pytest.approx(places + beyond, rel=0.01)


def test_another_arm_works_too_before_the_planned_one_is_full_where_that_costs_less() -> None:
    arms, asked = ("dspark-8", "dflash-16", "none", "none"), demand("code", 1.0)
    solver = planner(*arms)
    plan = solver.evaluate([asked], {asked.key: "dspark-8"}, population=60.0)
    assert plan.split
    assert set(plan.backends_of) == {"dspark-8", "dflash-16"}
    assert sum(plan.batch_of.values()) == pytest.approx(60.0, abs=1.0), "what is planned for each, not more"
    alone = solver.evaluate([asked], {asked.key: "dspark-8"}, usable={"dspark-8": 1}, population=60.0)
    assert not alone.split
    assert plan.score < 0.97 * alone.score


def test_one_client_is_not_split() -> None:
    plan = planner().solve([demand("code", 1.0)], population=1.0)
    assert not plan.split
    assert len(plan.backends_of) == 1


def test_clients_of_several_texts_are_not_split() -> None:
    demands = [demand("code", 1.0), demand("romansh", 1.0)]
    assert not planner().solve(demands, population=100.0).split


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


@pytest.mark.parametrize(
    ("target_ms", "population", "within", "hopeless"),
    [(50.0, 8.0, True, False), (8.0, 500.0, False, False), (1.0, 8.0, False, True), (1.0, 1.0, False, True)],
)
def test_too_few_places_are_told_from_none_at_all(
    target_ms: float, population: float, within: bool, hopeless: bool
) -> None:
    plan = planner("none").solve([demand("romansh", 1.0, target_ms=target_ms)], population=population)
    assert (plan.within_targets, plan.hopeless) == (within, hopeless)


def test_with_overflow_of_several_demands_as_many_requests_are_there_as_there_are_clients() -> None:
    """Two demands that want the same, on one arm that is too small for them: the next one is not full."""
    arms = "dspark-8", "dflash-16"
    demands = [demand("code", 1.0, target_ms=target_ms) for target_ms in (8.0, 8.0001)]
    loads = {spec.arm: PoolLoad(spec, [(demands[0], 1.0)], acceptance_model(), QUANTILE) for spec in specs_of(*arms)}
    places = loads["dspark-8"].full().batch
    arm_of = {each.key: "dspark-8" for each in demands}
    plan = planner(*arms).evaluate(demands, arm_of, population=places + 10)
    there = {arm: PoolCurve(load, load.full()).at(plan.tokens_per_s_of[arm])[0] for arm, load in loads.items()}
    assert sum(there.values()) == pytest.approx(places + 10, rel=0.01)
    assert there["dflash-16"] == pytest.approx(10.0, rel=0.1)


def test_a_plan_that_overflows_is_scored_a_little_dearer(monkeypatch: pytest.MonkeyPatch) -> None:
    demands = [demand("code", 1.0, target_ms=8.0), demand("romansh", 1.0, target_ms=30.0)]
    solver = planner("dspark-8", "none", "dflash-16")

    def scores(*arms: str) -> tuple[float, float]:
        arm_of = {each.key: arm for each, arm in zip(demands, arms, strict=True)}
        plans = []
        for frac in (0.0, 0.1):
            monkeypatch.setattr(closedplan, "_OVERFLOW_DEARER_FRAC", frac)
            plans.append(solver.evaluate(demands, arm_of, population=100.0))
        return plans[0].score, plans[1].score

    without, raised = scores("dspark-8", "dspark-8")
    assert 1.01 * without < raised < 1.1 * without
    few = {each.key: arm for each, arm in zip(demands, ("dspark-8", "none"), strict=True)}
    monkeypatch.setattr(closedplan, "_OVERFLOW_DEARER_FRAC", 0.1)
    apart = solver.evaluate(demands, few, population=10.0)
    monkeypatch.setattr(closedplan, "_OVERFLOW_DEARER_FRAC", 0.0)
    assert solver.evaluate(demands, few, population=10.0).score == apart.score, "nothing overflows"


@pytest.mark.parametrize(
    ("arms", "population", "romansh_per_s", "apart"),
    [
        (("dspark-8", "none"), 8.0, 0.01, {"dspark-8"}),
        (("dspark-8", "none"), 8.0, 0.1, set()),
        (("dspark-8", "none"), 2.0, 1.0, set()),
        (("dspark-8", "none", "dflash-16"), 8.0, 0.1, set()),
        (("dspark-8", "none"), 1.0, 0.01, set()),
    ],
)
def test_texts_with_places_are_followed_where_those_without_any_do_not_overflow(
    arms: tuple[str, ...], population: float, romansh_per_s: float, apart: set[str]
) -> None:
    demands = [demand("code", 1.0, target_ms=20.0), demand("romansh", romansh_per_s, target_ms=1.0)]
    arm_of = {demands[0].key: "dspark-8", demands[1].key: "none"}
    plan = planner(*arms).evaluate(demands, arm_of, population=population)
    assert plan.hopeless
    assert plan.apart == apart


@pytest.mark.parametrize(
    ("code", "romansh", "population", "apart"),
    [
        ("none", "eagle3-k1", 12.0, {"none"}),
        ("dspark-8", "eagle3-k1", 12.0, set()),
        ("none", "dspark-8", 12.0, set()),
        ("none", "eagle3-k1", 200.0, set()),
    ],
    ids=["to a third arm", "to the arm of the other text", "of a text without places", "with too few places for all"],
)
def test_where_the_few_places_of_one_text_overflow_the_others_are_followed_whom_that_leaves_alone(
    code: str, romansh: str, population: float, apart: set[str]
) -> None:
    """At 5 ms Romansh has five places on `eagle3-k1`, and none elsewhere."""
    demands = [demand("code", 1.0, target_ms=20.0), demand("romansh", 1.0, target_ms=5.0)]
    arm_of = {demands[0].key: code, demands[1].key: romansh}
    plan = planner("none", "eagle3-k1", "dspark-8").evaluate(demands, arm_of, population=population)
    assert plan.arms_of[demands[1].key][:2] == (romansh, "eagle3-k1" if romansh == "dspark-8" else "dspark-8")
    assert plan.hopeless
    assert plan.apart == apart
