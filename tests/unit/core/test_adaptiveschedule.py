"""The exported schedule: the depths that costs call for, and thresholds where energies meet."""

from __future__ import annotations

from random import Random

import pytest

from selector.core.adaptiveschedule import Aim, ScheduleGap, best_point, depth_points, planned_schedule, schedule_gap
from selector.core.depthsurvival import SlowRequests, accept_lengths, geometric_survivals
from selector.core.depthtable import DepthTable
from selector.core.sglangadaptive import DepthRule, Tier
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
        assert each.tier.candidate_steps == (best_point(aim, aim.survivals, each.batch).depth,)
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


def test_the_excess_of_a_schedule_is_against_the_best_fixed_depth() -> None:
    aim = aim_of(0.95, table=straight_table(j_per_request=0.0))
    best = {1: Tier(candidate_steps=(3,))}
    same = schedule_gap(aim, best, 8, (), Random(1))
    assert same == ScheduleGap(excess_frac=0.0, misses=False)
    worse = schedule_gap(aim, {1: Tier(candidate_steps=(0,))}, 8, (), Random(1))
    assert worse is not None and worse.excess_frac > 0.5
    assert schedule_gap(aim, {1: Tier(candidate_steps=(9,))}, 8, (), Random(1)) is None


def test_a_schedule_that_is_cheaper_because_it_is_too_slow_misses() -> None:
    aim = aim_of(0.7, table=straight_table(j_per_depth=6.0, ms_per_depth=0.1), target_ms=4.0)
    gap = schedule_gap(aim, {1: Tier(candidate_steps=(0,))}, 8, (), Random(1))
    assert gap is not None
    assert gap.misses and gap.excess_frac < 0.0


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
