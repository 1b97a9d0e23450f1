"""A schedule under a load: the batch that it is left with, and what it costs there."""

from __future__ import annotations

from random import Random

import pytest

from selector.core.depthpace import batch_at_rate, j_at_rate
from selector.core.depthsurvival import accept_lengths
from selector.core.schedulepace import PacedSchedule
from selector.core.sglangadaptive import Schedule, Tier
from tests.depthtables import CURVE
from tests.depthtables import OPEN_AIM as AIM

DEEP_THEN_NONE: Schedule = {1: Tier(candidate_steps=(3,)), 16: Tier(candidate_steps=(0,))}


def paced(schedule: Schedule, graph_batches: tuple[int, ...] = ()) -> PacedSchedule:
    return PacedSchedule(AIM, schedule, graph_batches, lambda: Random(1))


@pytest.mark.parametrize("batch", [4.0, 20.0, 20.5])
def test_one_depth_throughout_is_what_that_depth_is(batch: float) -> None:
    length = accept_lengths(CURVE)[3]
    ms = [AIM.table.step(3, each, 0.0)[0] for each in (int(batch), int(batch) + 1)]
    pace = batch * length / (ms[0] + (batch - int(batch)) * (ms[1] - ms[0]))
    found = paced({1: Tier(candidate_steps=(3,))}).at_pace(pace)
    assert found is not None
    assert found.batch == pytest.approx(
        batch_at_rate(AIM.table, 3, length, pace, batch=16, context_tokens=0.0), rel=0.01
    )
    j = j_at_rate(AIM.table, 3, length, pace, batch=16, context_tokens=0.0, idle_w=100.0)
    assert found.j_per_accepted_token == pytest.approx(j, rel=0.005)
    assert found.tbt_ms == pytest.approx(found.batch / pace, rel=0.005)


def test_a_load_below_one_request_is_served_by_one() -> None:
    found = paced(DEEP_THEN_NONE).at_pace(1e-3)
    alone = paced(DEEP_THEN_NONE).at_batch(1)
    assert found is not None and alone is not None
    assert (found.batch, found.tbt_ms) == (1.0, alone.tbt_ms)
    assert found.j_per_accepted_token == AIM.j_of(alone)


def test_a_load_that_a_slower_tier_cannot_serve_grows_through_it() -> None:
    schedule = paced(DEEP_THEN_NONE)
    deep, slower = schedule.at_batch(15), schedule.at_batch(16)
    assert deep is not None and slower is not None and slower.tokens_per_ms < deep.tokens_per_ms
    below = schedule.at_pace(0.999 * deep.tokens_per_ms)
    beyond = schedule.at_pace(1.001 * deep.tokens_per_ms)
    assert below is not None and below.batch < 15.0
    assert beyond is not None and beyond.batch > 29.0, "the next batch that serves as much without drafts"


def test_between_two_tiers_power_is_shared_by_time() -> None:
    schedule = paced({1: Tier(candidate_steps=(0,)), 16: Tier(candidate_steps=(3,))})
    low, high = schedule.at_batch(15), schedule.at_batch(16)
    assert low is not None and high is not None
    pace = 0.25 * low.tokens_per_ms + 0.75 * high.tokens_per_ms
    found = schedule.at_pace(pace)
    assert found is not None
    assert found.batch == pytest.approx(15.75)
    low_w, high_w = (AIM.j_of(each) * each.tokens_per_ms for each in (low, high))
    assert found.j_per_accepted_token == pytest.approx((0.25 * low_w + 0.75 * high_w) / pace)


def test_graphs_decide_the_tier() -> None:
    padded = paced(DEEP_THEN_NONE, (8, 16)).at_batch(9)
    assert padded is not None and padded.depth_shares == {0: 1.0}


def test_nothing_is_said_of_a_load_without_room_or_a_tier_without_a_cost() -> None:
    assert paced({1: Tier(candidate_steps=(0,))}).at_pace(100.0) is None
    unpriced = paced({1: Tier(candidate_steps=(3,)), 8: Tier(candidate_steps=(7,))})
    assert unpriced.at_batch(8) is None
    served = unpriced.at_batch(7)
    assert served is not None
    assert unpriced.at_pace(served.tokens_per_ms) is not None
    assert unpriced.at_pace(1.01 * served.tokens_per_ms) is None
