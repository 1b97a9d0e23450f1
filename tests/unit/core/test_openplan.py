"""Plans for rates that are given: backends filled one after the other, what overflows, and GPUs that are shared."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from selector.core.openpools import Places
from selector.core.planner import Planner
from selector.core.poolload import Demand, PoolCurve, PoolLoad
from tests.demands import QUANTILE, demand, planner
from tests.fleets import acceptance_model, specs_of


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


def test_what_finds_no_place_by_chance_is_paid_for_like_the_rest() -> None:
    asked = demand("code", 1.0)
    load = PoolLoad(specs_of("none")[0], [(asked, 1.0)], acceptance_model(), QUANTILE)
    curve = PoolCurve(load, load.full())
    rate = 0.95 * curve.most_tokens_per_s
    plan = planner("none").solve([asked._replace(requests_per_s=rate / 250.0)])
    places = Places(curve, 1, rate)
    assert places.away_frac > 0.01
    assert plan.tokens_per_s_of == {"none": pytest.approx(rate)}
    assert plan.power_w == pytest.approx(places.power_w / (1.0 - places.away_frac))


def test_bursts_of_prefill_leave_less_room_under_a_target() -> None:
    calm = demand("romansh", 20.0, target_ms=12.0)
    bursts = [
        planner("none", "none").solve([calm._replace(prefill_dispersion_s=spread_s)]).batch_of["none"]
        for spread_s in (0.0, 0.05, 0.5)
    ]
    assert bursts[0] > bursts[1] > bursts[2] >= 1


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
    demands = [demand("code", 0.3), demand("romansh", 2.0)]
    solver = Planner(TOGETHER, acceptance_model(), QUANTILE)
    alone = solver.evaluate(demands, {each.key: "eagle3-k1" for each in demands})
    both = solver.evaluate(demands, {demands[0].key: "dspark-8", demands[1].key: "eagle3-k1"})
    assert both.score / 1.25 < 0.85 * alone.score < alone.score < both.score, "a gain that a peak takes back"
    assert solver.solve(demands).arms_of == alone.arms_of
