"""The exported schedule: the depths that costs call for, and thresholds where energies meet."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from selector.core.adaptiveschedule import ScheduleGap, planned_schedule, schedule_at, schedule_gap
from selector.core.depthpace import j_at_rate
from selector.core.depthsurvival import SlowRequests, accept_lengths, geometric_survivals
from selector.core.depthtable import DepthTable
from selector.core.scheduleaim import Aim, depth_points, rivals_of
from selector.core.sglangadaptive import DepthRule, Schedule, Tier
from selector.errors import DomainError
from tests.depthtables import straight_table

SLOW = SlowRequests.at(0.5)
BATCHES = (1, 8, 32, 64)


def aim_of(
    survival: float,
    *,
    table: DepthTable | None = None,
    target_ms: float | None = None,
    band_frac: float = 0.0,
) -> Aim:
    return Aim(
        table=table or straight_table(),
        survivals=geometric_survivals(survival, 3),
        slow=SLOW,
        context_tokens=0.0,
        target_ms=target_ms,
        band_frac=band_frac,
    )


def test_without_doubt_each_tier_has_the_cheapest_depth_alone() -> None:
    aim = aim_of(0.7, table=straight_table(j_per_request=0.12))
    planned = planned_schedule(aim, BATCHES, Random(1))
    assert planned[0].tier.candidate_steps == (3,)
    assert planned[-1].tier.candidate_steps != (3,)
    for each in planned:
        cheapest = min(depth_points(aim, aim.survivals, each.batch), key=lambda point: point.j_per_accepted_token)
        assert each.tier.candidate_steps == (cheapest.depth,)
        assert each.expected.depth_shares == {each.best.depth: 1.0}


def test_neighbours_alike_are_one_tier() -> None:
    planned = planned_schedule(aim_of(0.95, table=straight_table(j_per_request=0.0)), BATCHES, Random(1))
    assert [each.batch for each in planned] == [1]


def test_a_target_keeps_depths_out_that_miss_it() -> None:
    table = straight_table(j_per_depth=6.0, ms_per_depth=0.1)
    free = planned_schedule(aim_of(0.7, table=table), (8,), Random(1))[0]
    assert free.tier.candidate_steps == (0,)
    limit_ms = depth_points(aim_of(0.7, table=table), geometric_survivals(0.7, 3), 8)[1].tbt_ms + 0.01
    bound = planned_schedule(aim_of(0.7, table=table, target_ms=limit_ms), (8,), Random(1))[0]
    assert bound.tier.candidate_steps == (1,)
    assert bound.meets_target


def test_where_no_depth_meets_the_target_the_fastest_is_listed_and_it_says_so() -> None:
    table = straight_table(j_per_depth=6.0, ms_per_depth=0.1)
    planned = planned_schedule(aim_of(0.7, table=table, target_ms=0.01), (8,), Random(1))[0]
    assert (planned.tier.candidate_steps, planned.meets_target) == ((3,), False)


def even_aim() -> Aim:
    """Depths 1 and 3 cost the same per token at the expected accept length, and clearly differ within the band."""
    lengths = accept_lengths(geometric_survivals(0.6, 3))
    shallow_j = 4.0
    deep_j = shallow_j * lengths[3] / lengths[1]
    table = DepthTable(
        {1: [[(0.0, 5.0, 0.0, shallow_j, 0.0)]], 3: [[(0.0, 6.0, 0.0, deep_j, 0.0)]]},
    )
    return aim_of(0.6, table=table, band_frac=0.3)


def test_two_depths_whose_energies_meet_within_the_band_share_a_tier() -> None:
    aim = even_aim()
    (planned,) = planned_schedule(aim, (1,), Random(1))
    assert planned.tier.candidate_steps == (1, 3)
    for factor, depth in ((0.72, 1), (1.28, 3)):
        lengths = accept_lengths(aim.with_lengths(factor))
        rule = DepthRule(planned.tier, 1 if depth == 3 else 3)
        for _ in range(2_000):
            rule.update(lengths[rule.depth] - 1.0)
        assert rule.depth == depth


def test_a_pair_is_not_worth_it_where_its_trials_cost_more_than_they_find() -> None:
    # Not drafting wins unless the text is at the very top of the band, and depth 0 is left for half of the time.
    lengths = accept_lengths(geometric_survivals(0.3, 1))
    table = DepthTable({0: [[(0.0, 5.0, 0.0, 2.0, 0.0)]], 1: [[(0.0, 5.0, 0.0, 2.0 * 1.14 * lengths[1], 0.0)]]})
    aim = Aim(table=table, survivals=(0.3,), slow=SLOW, context_tokens=0.0, target_ms=None, band_frac=0.15)
    assert planned_schedule(aim, (1,), Random(1))[0].tier.candidate_steps == (0,)


def gap_of(aim: Aim, schedule: Schedule, batch: int) -> ScheduleGap | None:
    found = schedule_at(aim, schedule, batch, (), Random(1))
    return None if found is None else schedule_gap(aim, batch, found)


def test_the_excess_of_a_schedule_is_against_the_best_fixed_depth() -> None:
    aim = aim_of(0.95, table=straight_table(j_per_request=0.0))
    best = {1: Tier(candidate_steps=(3,))}
    same = gap_of(aim, best, 8)
    assert same == ScheduleGap(excess_frac=0.0, misses=False)
    worse = gap_of(aim, {1: Tier(candidate_steps=(0,))}, 8)
    assert worse is not None and worse.excess_frac > 0.5
    assert gap_of(aim, {1: Tier(candidate_steps=(9,))}, 8) is None


def test_a_schedule_that_is_cheaper_because_it_is_too_slow_misses() -> None:
    aim = aim_of(0.7, table=straight_table(j_per_depth=6.0, ms_per_depth=0.1), target_ms=4.0)
    gap = gap_of(aim, {1: Tier(candidate_steps=(0,))}, 8)
    assert gap is not None
    assert gap.misses and gap.excess_frac < 0.0


def test_under_an_open_load_each_tier_is_the_cheapest_at_its_own_pace() -> None:
    closed = aim_of(0.7)
    aim = replace(closed, open_load=True, idle_w=100.0)
    by_load = [planned_schedule(each, BATCHES, Random(1)) for each in (closed, aim)]
    assert [each.tier.candidate_steps for each in by_load[0]] != [each.tier.candidate_steps for each in by_load[1]]
    for each in by_load[1]:
        gaps = {}
        for depth in aim.table.depths:
            gap = gap_of(aim, {1: Tier(candidate_steps=(depth,))}, each.batch)
            assert gap is not None
            gaps[depth] = gap.excess_frac
        assert each.tier.candidate_steps == (min(gaps, key=gaps.__getitem__),)
        rivals = rivals_of(aim, aim.survivals, each.batch, each.expected.tokens_per_ms)
        assert each.best == rivals.best


def even_pace_aim() -> Aim:
    """Two depths that cost the same at one pace: twice the tokens for twice the energy in the same time."""
    table = DepthTable(
        {
            0: [[(0.0, 5.0, 0.0, 2.0, 0.0)]] * 64,
            1: [[(0.0, 5.0, 0.0, 2.0, 0.0)]] * 64,
        }
    )
    return Aim(
        table=table,
        survivals=(0.5,),
        slow=SLOW,
        context_tokens=0.0,
        target_ms=None,
        band_frac=0.3,
        open_load=True,
    )


def test_steps_that_cost_the_same_are_worth_the_same_under_an_open_load() -> None:
    # Power is what counts: equal power at every depth costs the same for the same tokens a second.
    aim = even_pace_aim()
    for depth in (0, 1):
        gap = gap_of(aim, {1: Tier(candidate_steps=(depth,))}, 16)
        assert gap is not None and gap.excess_frac == pytest.approx(0.0, abs=1e-3)
    closed = gap_of(replace(aim, open_load=False), {1: Tier(candidate_steps=(0,))}, 16)
    assert closed is not None and closed.excess_frac == pytest.approx(0.5)


def test_two_depths_meet_between_the_paces_of_both() -> None:
    # Steps of one length: what a smaller batch saves at depth 3 is what that depth takes more for any batch.
    fixed_j = {1: 1.0, 3: 2.0}
    table = DepthTable(
        {depth: [[(0.0, 5.0, 0.0, j + 0.2 * batch, 0.0)] for batch in range(1, 65)] for depth, j in fixed_j.items()}
    )
    aim = replace(aim_of(0.6, table=table, band_frac=0.4), open_load=True)
    planned = planned_schedule(aim, (16,), Random(1))[0]

    def costs(factor: float) -> float:
        """Above 0 where the deeper one is cheaper, in the mean over both paces."""
        survivals = aim.with_lengths(factor)
        lengths, saved = accept_lengths(survivals), 0.0
        for depth in (1, 3):
            pace = 16 * lengths[depth] / table.step(depth, 16, 0.0)[0]
            j = {each: j_at_rate(table, each, lengths[each], pace, batch=16, context_tokens=0.0) for each in (1, 3)}
            saved += j[1] - j[3]
        return saved

    assert planned.tier.candidate_steps == (1, 3)
    up, down = planned.tier.up_hysteresis + 0.5, planned.tier.down_hysteresis + 0.5
    factors = [0.6 + 0.8 * step / 4_000 for step in range(4_001)]
    meeting = min(factors, key=lambda factor: abs(costs(factor)))
    lengths = accept_lengths(aim.with_lengths(meeting))
    assert (up, down) == pytest.approx((lengths[1] - 1.0, lengths[3] - 1.0), abs=2e-3)


def test_survivals_that_do_not_reach_the_deepest_depth_are_refused() -> None:
    with pytest.raises(DomainError):
        Aim(
            table=straight_table((0, 5)),
            survivals=(0.5, 0.3),
            slow=SLOW,
            context_tokens=0.0,
            target_ms=None,
            band_frac=0.1,
        )
