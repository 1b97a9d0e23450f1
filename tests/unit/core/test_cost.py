"""The step cost at chosen points, where the right answer can be worked out by hand."""

from __future__ import annotations

import pytest

from selector.core.cost import ArmCost, ContextSlope, IdlePower, StepCost, StepPoint
from selector.core.prefillcost import PrefillCost
from selector.errors import DomainError

KV = ContextSlope(ms_per_token=1e-3, j_per_token=2e-3)


def cell(batch: int, context_tokens: float, step_ms: float, step_j: float) -> StepPoint:
    return StepPoint(batch=batch, context_tokens=context_tokens, step_ms=step_ms, step_j=step_j)


GRID = StepCost([cell(1, 1000, 5, 2), cell(1, 3000, 6, 3), cell(4, 1000, 8, 4), cell(4, 3000, 12, 8)], KV)
"""Two batches at two contexts, far enough apart for a slope of their own."""

ONE_CONTEXT = StepCost([cell(1, 1000, 5, 3), cell(4, 1000, 8, 12)], KV)
"""Two batches at one context: beyond it only the derived slope is known."""


def test_measured_cells_are_returned_as_they_are() -> None:
    assert GRID.step(1, 1000) == (5, 2)
    assert GRID.step(1, 3000) == (6, 3)
    assert GRID.step(4, 1000) == pytest.approx((8, 4))
    assert GRID.step(4, 3000) == pytest.approx((12, 8))


def test_contexts_are_interpolated_linearly() -> None:
    assert GRID.step(1, 2000) == pytest.approx((5.5, 2.5))
    assert GRID.step(4, 2500) == pytest.approx((11, 7))


def test_a_batch_between_measured_ones_costs_something_between() -> None:
    ms, j = GRID.step(2, 1000)
    assert 5 < ms < 8
    assert 2 < j < 4


def test_a_fractional_batch_is_the_mean_of_its_neighbours() -> None:
    (low_ms, low_j), (high_ms, high_j) = GRID.step(2, 1500), GRID.step(3, 1500)
    assert GRID.step(2.25, 1500) == pytest.approx((0.75 * low_ms + 0.25 * high_ms, 0.75 * low_j + 0.25 * high_j))


def test_beyond_the_measured_contexts_the_nearest_segment_goes_on() -> None:
    assert GRID.step(1, 5000) == pytest.approx((7, 4))
    assert GRID.step(4, 0) == pytest.approx((6, 2))


def test_beyond_a_single_context_the_derived_slope_counts_every_request() -> None:
    assert ONE_CONTEXT.step(1, 1500) == pytest.approx((5.5, 4))
    assert ONE_CONTEXT.step(4, 1500) == pytest.approx((10, 16))
    assert ONE_CONTEXT.step(4, 500) == pytest.approx((6, 8))
    assert StepCost([cell(1, 1000, 5, 3)], None).step(1, 9000) == (5, 3)


def test_contexts_too_close_for_a_slope_use_the_derived_one() -> None:
    close = StepCost([cell(1, 1000, 5, 3), cell(1, 1400, 9, 9)], KV)
    assert close.step(1, 2400) == pytest.approx((10, 11))


def test_beyond_the_largest_batch_the_last_segment_goes_on() -> None:
    assert GRID.step(7, 1000) == pytest.approx((11, 6))
    assert GRID.step(5.5, 3000) == pytest.approx((15, 10.5))


def test_below_the_smallest_batch_it_is_that_of_the_smallest() -> None:
    late = StepCost([cell(8, 1000, 5, 3), cell(16, 1000, 8, 12)], KV)
    assert late.step(1, 1000) == late.step(8, 1000) == (5, 3)


def test_a_single_batch_is_taken_as_proportional_beyond() -> None:
    single = StepCost([cell(8, 1000, 5, 3)], None)
    assert single.step(16, 1000) == pytest.approx((10, 6))


def test_repeats_of_one_cell_count_by_their_mean() -> None:
    assert StepCost([cell(1, 1000, 4, 2), cell(1, 1000, 6, 4)], None).step(1, 1000) == (5, 3)


def test_noise_that_runs_backwards_is_levelled() -> None:
    noisy = StepCost([cell(1, 1000, 6, 3), cell(2, 1000, 5, 5)], None)
    assert noisy.step(1, 1000) == (5.5, 3)
    assert noisy.step(2, 1000) == (5.5, 5)


def test_equal_costs_of_two_batches_stay_ordered_at_shorter_contexts() -> None:
    flat = StepCost([cell(1, 1000, 5, 3), cell(32, 1000, 5, 3)], KV)
    assert flat.step(1, 10) == flat.step(32, 10)


def test_a_longer_context_costs_no_less_between_batches_where_the_curves_would_cross() -> None:
    costs = {(1, 1000): 1, (4, 1000): 2, (16, 1000): 2, (1, 3000): 1, (4, 3000): 2, (16, 3000): 3}
    bent = StepCost([cell(b, c, cost, cost) for (b, c), cost in costs.items()], None)
    assert bent.step(3, 3000) >= bent.step(3, 1000)


def test_a_longer_context_costs_no_less_beyond_batches_whose_difference_shrinks_with_it() -> None:
    flattening = StepCost([cell(1, 1000, 1, 1), cell(1, 3000, 9, 9), cell(4, 1000, 8, 8), cell(4, 3000, 9, 9)], None)
    assert flattening.step(7, 3000) == pytest.approx((16, 16))
    assert flattening.step(7, 1000) == pytest.approx((15, 15))


@pytest.mark.parametrize(
    ("batch", "context", "inside"),
    [
        (1, 1000, True),
        (4, 3000, True),
        (2.5, 2000, True),
        (0.5 + 0.5, 999, False),
        (1, 3001, False),
        (4.001, 2000, False),
        (5, 1000, False),
    ],
)
def test_a_point_outside_the_cells_is_flagged(batch: float, context: float, inside: bool) -> None:
    assert GRID.estimate(batch, context).extrapolated == (not inside)


def test_between_batches_the_measured_contexts_are_interpolated_too() -> None:
    slanted = StepCost([cell(1, 1000, 5, 3), cell(1, 2000, 6, 4), cell(3, 2000, 8, 6), cell(3, 4000, 9, 7)], None)
    assert slanted.covers(2, 1500) and slanted.covers(2, 3000)
    assert not slanted.covers(2, 1400) and not slanted.covers(2, 3100)


@pytest.mark.parametrize("point", [(0, 100), (0.99, 100), (1, -1)])
def test_a_question_without_an_answer_is_refused(point: tuple[float, float]) -> None:
    with pytest.raises(DomainError):
        GRID.step(*point)


@pytest.mark.parametrize(
    "points",
    [[], [cell(0, 1, 1, 1)], [cell(1, -1, 1, 1)], [cell(1, 1, 0, 1)], [cell(1, 1, 1, -1)]],
    ids=["none", "batch 0", "negative context", "no time", "negative energy"],
)
def test_cells_that_cannot_be_are_refused(points: list[StepPoint]) -> None:
    with pytest.raises(DomainError):
        StepCost(points, None)


PREFILL = PrefillCost([(1000, 10, 7), (3000, 50, 30)])


@pytest.mark.parametrize(
    ("tokens", "after", "expected"),
    [
        (500, 0, (5, 3.5)),
        (1000, 0, (10, 7)),
        (2000, 0, (30, 18.5)),
        (4000, 0, (70, 41.5)),
        (1000, 1000, (20, 11.5)),
        (0, 500, (0, 0)),
    ],
)
def test_prefill_is_linear_between_points_and_goes_on_beyond(
    tokens: float, after: float, expected: tuple[float, float]
) -> None:
    assert PREFILL.cost(tokens, after=after) == pytest.approx(expected)


@pytest.mark.parametrize("points", [[], [(10, 1, 1), (10, 2, 2)], [(10, 2, 1), (20, 1, 2)], [(10, 2, 2), (20, 3, 1)]])
def test_prefill_points_that_fall_are_refused(points: list[tuple[float, float, float]]) -> None:
    with pytest.raises(DomainError):
        PrefillCost(points)


def test_a_pass_takes_its_floor_however_short_and_others_wait_until_they_resume() -> None:
    cost = PrefillCost([(1000, 10, 7), (3000, 50, 30)], floor_ms=14.0, floor_j=3.0, resume_ms=2.5)
    assert cost.work(500) == pytest.approx((5, 3.5))
    assert cost.cost(500) == pytest.approx((14, 3.5))
    assert cost.cost(100) == pytest.approx((14, 3))
    assert cost.cost(2000) == pytest.approx((30, 18.5))
    assert cost.of_pass(13.0, 1.0, 700) == (14.0, 3.0)
    assert cost.stall_ms(500) == pytest.approx(16.5)
    assert cost.stall_ms(1000, after=1000) == pytest.approx(22.5)
    assert cost.cost(0, after=500) == (0, 0)
    assert cost.stall_ms(0) == 0


@pytest.mark.parametrize(
    "wrong", [{"floor_ms": -1.0}, {"floor_j": -1.0}, {"beside_ms": -1.0}, {"beside_j": -1.0}, {"resume_ms": -1.0}]
)
def test_a_pass_that_takes_less_than_nothing_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(DomainError, match="no less than nothing"):
        PrefillCost([(10, 1, 1)], **wrong)


def test_the_active_energy_of_a_step_leaves_out_idling() -> None:
    cost = ArmCost(arm="a", verify_tokens=4, step=GRID, prefill=PREFILL, idle=IdlePower(bare_w=80.0, served_w=100.0))
    assert [cost.idle.watts(servers) for servers in (0, 1, 3)] == [80.0, 100.0, 100.0]
    assert cost.active_step_j(1, 1000, idle_w=100.0) == pytest.approx(2 - 100 * 5e-3)
    assert cost.active_step_j(0, 1000, idle_w=100.0) == 0.0
    # One more request on an idle backend pays for the whole step, on a busy one for little.
    first = cost.active_step_j(1, 1000, 100.0) - cost.active_step_j(0, 1000, 100.0)
    second = cost.active_step_j(2, 1000, 100.0) - cost.active_step_j(1, 1000, 100.0)
    assert 0 < second < first
