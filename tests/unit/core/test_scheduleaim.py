"""What fixed depths give in the place of a tier: at its pace under an open load, at its batch under a closed one."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from selector.core.depthpace import batch_at_rate
from selector.core.depthsurvival import accept_lengths
from selector.core.depthtable import DepthTable
from selector.core.scheduleaim import depth_points, rivals_of
from selector.core.sglangadaptive import Tier, expected
from selector.errors import DomainError
from tests.depthtables import CLOSED_AIM as CLOSED
from tests.depthtables import CURVE, straight_table
from tests.depthtables import OPEN_AIM as OPEN


def pace_of(depth: int, batch: int, table: DepthTable = CLOSED.table) -> float:
    return batch * accept_lengths(CURVE)[depth] / table.step(depth, batch, 0.0)[0]


def test_under_a_closed_load_depths_are_priced_at_the_batch() -> None:
    rivals = rivals_of(CLOSED, CURVE, 16, pace_of(1, 16))
    for point in depth_points(CLOSED, CURVE, 16):
        rival = rivals.by_depth[point.depth]
        assert (rival.batch, rival.tbt_ms, rival.has_room) == (16.0, point.tbt_ms, True)
        assert rival.j_per_accepted_token == point.j_per_accepted_token


def test_under_an_open_load_each_depth_is_left_with_its_own_batch() -> None:
    pace = pace_of(1, 16)
    rivals = rivals_of(OPEN, CURVE, 16, pace)
    lengths = accept_lengths(CURVE)
    for depth, rival in rivals.by_depth.items():
        assert rival.batch == batch_at_rate(OPEN.table, depth, lengths[depth], pace, batch=16, context_tokens=0.0)
        assert rival.tbt_ms == pytest.approx(rival.batch / pace, rel=1e-3), "at one pace batch and time go together"
    assert rivals.by_depth[1].batch == pytest.approx(16.0)
    assert rivals.by_depth[3].batch < 16.0 < rivals.by_depth[0].batch
    ms, j = OPEN.table.step(1, 16, 0.0)
    assert rivals.by_depth[1].j_per_accepted_token == pytest.approx((j - 0.1 * ms) / (16 * lengths[1]))


def test_a_tier_and_the_depth_that_it_runs_at_are_priced_alike() -> None:
    for aim in (OPEN, CLOSED):
        found = expected(
            Tier(candidate_steps=(3,)), aim.table, CURVE, aim.slow, batch=16, context_tokens=0.0, draws=Random(1)
        )
        rivals = rivals_of(aim, CURVE, 16, found.tokens_per_ms)
        assert aim.j_of(found) == pytest.approx(rivals.by_depth[3].j_per_accepted_token)


def test_what_is_cheaper_at_the_batch_may_be_dearer_at_the_pace() -> None:
    # All of a step's cost is shared by the batch, so a depth that leaves half of it pays twice as much a token.
    aim = replace(OPEN, table=straight_table((0, 1), ms_per_depth=0.0, ms_per_request=0.0, j_per_request=0.0))
    aim = replace(aim, idle_w=0.0)
    pace = pace_of(0, 32, aim.table)
    assert rivals_of(replace(aim, open_load=False), CURVE, 32, pace).best.depth == 1
    assert rivals_of(aim, CURVE, 32, pace).best.depth == 0


def test_a_depth_without_room_is_last_and_keeps_the_price_of_the_batch() -> None:
    cheap_but_slow = DepthTable(
        {
            0: [[(0.0, 20.0, 0.0, 0.1, 0.0)]] * 20,
            1: [[(0.0, 5.0, 0.0, 5.0, 0.0)]] * 20,
        }
    )
    aim = replace(OPEN, table=cheap_but_slow, idle_w=0.0)
    rivals = rivals_of(aim, CURVE, 10, pace_of(1, 10, cheap_but_slow))
    assert not rivals.by_depth[0].has_room
    assert rivals.by_depth[0].j_per_accepted_token == pytest.approx(0.1 / 10)
    assert rivals.best.depth == 1


def test_a_full_batch_stays_as_it_is() -> None:
    # 57 of 64 are not full, 58 are.
    assert [OPEN.stays(batch) for batch in (57, 58)] == [False, True]
    assert CLOSED.stays(1)
    rivals = rivals_of(OPEN, CURVE, 58, pace_of(0, 58))
    assert {rival.batch for rival in rivals.by_depth.values()} == {58.0}
    ms, j = OPEN.table.step(3, 58, 0.0)
    length = accept_lengths(CURVE)[3]
    assert rivals.by_depth[3].j_per_accepted_token == pytest.approx((j - 0.1 * ms) / (58 * length))


def test_targets_are_judged_at_the_batch_that_is_there() -> None:
    # Without drafts a step is cheap and slow: at the pace of depth 3 it would be left with a batch that misses.
    aim = replace(OPEN, table=straight_table(j_per_depth=3.0), idle_w=0.0)
    pace = pace_of(3, 16, aim.table)
    points = {point.depth: point.tbt_ms for point in depth_points(aim, CURVE, 16)}
    free = rivals_of(aim, CURVE, 16, pace)
    assert free.best.depth == 0
    assert points[0] < free.best.tbt_ms
    between = replace(aim, target_ms=(points[0] + free.best.tbt_ms) / 2)
    assert rivals_of(between, CURVE, 16, pace).best.depth == 0
    late = rivals_of(replace(aim, target_ms=points[0] - 0.01), CURVE, 16, pace)
    assert late.any_within and late.best.depth != 0
    nobody = rivals_of(replace(aim, target_ms=0.01), CURVE, 16, pace)
    assert not nobody.any_within
    assert nobody.best.depth == min(points, key=points.__getitem__)


def test_an_idle_power_below_0_is_refused() -> None:
    with pytest.raises(DomainError):
        replace(OPEN, idle_w=-1.0)
