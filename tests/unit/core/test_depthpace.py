"""What a depth costs at the same tokens per second."""

from __future__ import annotations

from math import inf

import pytest

from selector.core.depthpace import MOST_FILLED, batch_at_rate, j_at_rate, most_requests, step_between
from selector.core.depthtable import DepthTable


def flat_table(ms: dict[int, tuple[float, float]], j: dict[int, tuple[float, float]], batches: int = 64) -> DepthTable:
    """By depth: time and energy of a step, and what each request adds to both."""
    return DepthTable(
        {
            depth: [
                [(0.0, ms[depth][0] + ms[depth][1] * batch, 0.0, j[depth][0] + j[depth][1] * batch, 0.0)]
                for batch in range(1, batches + 1)
            ]
            for depth in ms
        }
    )


TABLE = flat_table({0: (4.0, 0.05), 1: (5.0, 0.1)}, {0: (2.0, 0.01), 1: (2.5, 0.02)})


def test_the_batch_is_that_at_which_tokens_come_at_the_rate() -> None:
    # b = rate · (5 + 0.1 b) / 2, so b = 20 at a rate of 40 / 7.
    j = j_at_rate(TABLE, 1, 2.0, 40.0 / 7.0, batch=20, context_tokens=0.0)
    assert j == pytest.approx((2.5 + 0.02 * 20) / 40)
    elsewhere = j_at_rate(TABLE, 1, 2.0, 40.0 / 7.0, batch=30, context_tokens=0.0)
    assert elsewhere == pytest.approx(j, rel=0.001), "wherever it starts from"


def test_what_is_cheaper_at_a_batch_may_be_dearer_at_a_rate() -> None:
    # A depth that serves at twice the pace for 1.6 times the energy of a step has half of the batch to share it.
    table = flat_table({0: (4.0, 0.0), 1: (4.0, 0.0)}, {0: (2.0, 0.0), 1: (3.2, 0.0)})
    at_batch = [table.step(depth, 16, 0.0)[1] / (16 * tokens) for depth, tokens in ((0, 1.0), (1, 2.0))]
    rate = 16 * 1.0 / 4.0
    at_rate = [
        j_at_rate(table, depth, tokens, rate, batch=16, context_tokens=0.0) for depth, tokens in ((0, 1.0), (1, 2.0))
    ]
    assert at_batch[1] < at_batch[0]
    assert at_rate[1] == pytest.approx(1.6 * at_rate[0])


def test_alone_a_request_is_charged_what_a_step_takes_above_idle() -> None:
    rate = 0.1  # one request at depth 1 gives 2 tokens in 5.1 ms: it idles most of the time
    j = j_at_rate(TABLE, 1, 2.0, rate, batch=1, context_tokens=0.0, idle_w=100.0)
    assert j == pytest.approx((2.52 - 0.51) / 2)


def test_a_depth_without_room_for_the_rate_costs_no_end() -> None:
    most = MOST_FILLED * 64
    rate = most * 1.0 / (4.0 + 0.05 * most)
    assert j_at_rate(TABLE, 0, 1.0, 0.99 * rate, batch=50, context_tokens=0.0) < inf
    assert j_at_rate(TABLE, 0, 1.0, 1.01 * rate, batch=50, context_tokens=0.0) == inf
    assert j_at_rate(TABLE, 0, 1.0, 30.0, batch=50, context_tokens=0.0) == inf


def test_the_batch_that_a_rate_leads_to_is_told() -> None:
    assert batch_at_rate(TABLE, 1, 2.0, 40.0 / 7.0, batch=30, context_tokens=0.0) == pytest.approx(20.0, rel=0.002)
    assert batch_at_rate(TABLE, 1, 2.0, 0.1, batch=30, context_tokens=0.0) == 1.0
    assert batch_at_rate(TABLE, 0, 1.0, 30.0, batch=50, context_tokens=0.0) == inf
    assert most_requests(TABLE) == pytest.approx(0.9 * 64)


def test_between_two_batches_steps_lie_on_a_line() -> None:
    assert step_between(TABLE, 1, 20.5, 0.0) == pytest.approx((5.0 + 2.05, 2.5 + 0.41))
    assert step_between(TABLE, 1, 20.0, 0.0) == TABLE.step(1, 20, 0.0)
