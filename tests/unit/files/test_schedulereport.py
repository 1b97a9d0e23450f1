"""The comparison of an exported schedule: everything in a row is under the load of the row."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from selector.core.depthsurvival import accept_lengths
from selector.core.scheduleaim import rivals_of
from selector.core.schedulepace import PacedSchedule
from selector.core.sglangadaptive import DEFAULT_SCHEDULES, Schedule, Tier
from selector.files.schedulereport import SEED, schedule_report
from tests.depthtables import CLOSED_AIM as CLOSED
from tests.depthtables import CURVE, straight_table
from tests.depthtables import OPEN_AIM as OPEN

BATCHES = (1, 8, 32, 64)
RELEASE = max(DEFAULT_SCHEDULES)
ONE: Schedule = {1: Tier(candidate_steps=(1,))}


def test_under_a_closed_load_all_are_at_the_batch() -> None:
    for row in schedule_report(CLOSED, ONE, BATCHES, RELEASE).batches:
        assert row.best_fixed_batch == row.sglang_default_batch == row.one_depth_batch == row.batch
        assert row.j_per_accepted_token == pytest.approx(
            CLOSED.table.step(1, row.batch, 0.0)[1] / (row.batch * accept_lengths(CURVE)[1])
        )


def test_under_an_open_load_all_serve_what_the_tier_serves() -> None:
    report = schedule_report(OPEN, ONE, BATCHES, RELEASE)
    by_batch = {row.batch: row for row in report.batches}
    lengths = accept_lengths(CURVE)
    for batch in (8, 32):
        row = by_batch[batch]
        pace = batch * lengths[1] / OPEN.table.step(1, batch, 0.0)[0]
        rivals = rivals_of(OPEN, CURVE, batch, pace)
        fixed = rivals.by_depth[report.one_depth]
        assert row.j_per_accepted_token == pytest.approx(rivals.by_depth[1].j_per_accepted_token)
        assert row.best_fixed_j_per_accepted_token == rivals.best.j_per_accepted_token
        assert (row.best_fixed_depth, row.best_fixed_batch) == (rivals.best.depth, rivals.best.batch)
        assert (row.one_depth_batch, row.one_depth_j_per_accepted_token) == (fixed.batch, fixed.j_per_accepted_token)
    # A full batch stays: SGLang's default has depth 0 at 64.
    ms, j = OPEN.table.step(0, 64, 0.0)
    full = by_batch[64]
    assert full.sglang_default_batch == 64
    assert full.sglang_default_j_per_accepted_token == pytest.approx((j - 0.1 * ms) / 64)


def test_sglangs_default_is_where_the_load_leaves_it() -> None:
    row = schedule_report(OPEN, ONE, (8,), RELEASE).batches[0]
    default = PacedSchedule(OPEN, DEFAULT_SCHEDULES[RELEASE], (), lambda: Random(SEED))
    there = default.at_pace(8 * accept_lengths(CURVE)[1] / OPEN.table.step(1, 8, 0.0)[0])
    assert there is not None and there.batch < 8.0
    assert (row.sglang_default_batch, row.sglang_default_tbt_ms) == (there.batch, there.tbt_ms)
    assert row.sglang_default_j_per_accepted_token == there.j_per_accepted_token


def test_what_has_no_room_is_left_empty_and_is_not_the_one_depth_for_all() -> None:
    # Without drafts a step costs little, but such a server cannot serve what one at depth 3 does with 48 requests.
    table = straight_table(j_per_depth=9.0, ms_per_request=0.0)
    aim = replace(OPEN, table=table, idle_w=0.0)
    report = schedule_report(aim, {1: Tier(candidate_steps=(3,))}, (48,), RELEASE)
    assert report.one_depth != 0
    # A depth that is best where it has room is one for all, and stands for nothing where it has none.
    rows = schedule_report(aim, {1: Tier(candidate_steps=(0,)), 48: Tier(candidate_steps=(3,))}, (2, 4, 8, 48), RELEASE)
    assert rows.one_depth == 0
    assert rows.batches[0].one_depth_j_per_accepted_token is not None
    assert (rows.batches[-1].one_depth_batch, rows.batches[-1].one_depth_j_per_accepted_token) == (None, None)
    document = report.as_document()["batches"][0]
    assert "sglang_default_j_per_accepted_token" not in document
    both = schedule_report(replace(aim, open_load=False), {1: Tier(candidate_steps=(3,))}, (48,), RELEASE)
    assert both.one_depth == 0
    assert both.batches[0].sglang_default_j_per_accepted_token is not None
