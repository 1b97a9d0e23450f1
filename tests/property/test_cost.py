"""Whatever was measured, noise included, the step cost stays a cost: positive, and more work never costs less."""

from __future__ import annotations

from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selector.core.cost import ContextSlope, StepCost, StepPoint
from selector.core.prefillcost import PrefillCost

BATCHES = st.integers(1, 96)
CONTEXTS = st.integers(0, 20_000).map(float)
COSTS = st.floats(0.01, 1_000.0)
SLOPES = st.builds(ContextSlope, ms_per_token=st.floats(0, 1e-3), j_per_token=st.floats(0, 1e-3))
POINTS = st.lists(
    st.builds(StepPoint, batch=BATCHES, context_tokens=CONTEXTS, step_ms=COSTS, step_j=COSTS), min_size=1, max_size=12
)
STEP_COSTS = st.builds(StepCost, POINTS, st.none() | SLOPES)

ASKED_BATCHES = st.floats(1, 300)
ASKED_CONTEXTS = st.floats(0, 100_000)


def at_least(larger: tuple[float, float], smaller: tuple[float, float]) -> bool:
    return all(b >= a - 1e-9 * (1.0 + a) for a, b in zip(smaller, larger, strict=True))


@given(STEP_COSTS, ASKED_BATCHES, ASKED_CONTEXTS)
def test_every_point_has_a_positive_cost(cost: StepCost, batch: float, context: float) -> None:
    assert min(cost.step(batch, context)) > 0.0


@given(STEP_COSTS, ASKED_BATCHES, ASKED_BATCHES, ASKED_CONTEXTS)
def test_a_larger_batch_never_costs_less(cost: StepCost, one: float, other: float, context: float) -> None:
    assert at_least(cost.step(max(one, other), context), cost.step(min(one, other), context))


@given(STEP_COSTS, ASKED_BATCHES, ASKED_CONTEXTS, ASKED_CONTEXTS)
def test_a_longer_context_never_costs_less(cost: StepCost, batch: float, one: float, other: float) -> None:
    assert at_least(cost.step(batch, max(one, other)), cost.step(batch, min(one, other)))


@st.composite
def clean_grids(draw: st.DrawFn) -> list[StepPoint]:
    """A full grid whose costs rise strictly with batch and context, as they do without noise."""
    batches = draw(st.lists(BATCHES, min_size=1, max_size=5, unique=True))
    contexts = draw(st.lists(CONTEXTS, min_size=1, max_size=5, unique=True))
    per_request, per_token = draw(st.floats(0.01, 1.0)), draw(st.floats(1e-6, 1e-4))
    return [
        StepPoint(
            batch=batch,
            context_tokens=context,
            step_ms=2.0 + per_request * batch + per_token * batch * context,
            step_j=1.0 + 0.5 * per_request * batch + 0.7 * per_token * batch * context,
        )
        for batch in batches
        for context in contexts
    ]


@given(clean_grids(), st.none() | SLOPES)
def test_measured_cells_are_answered_exactly_and_not_flagged(
    points: list[StepPoint], slope: ContextSlope | None
) -> None:
    cost = StepCost(points, slope)
    for point in points:
        got = cost.estimate(point.batch, point.context_tokens)
        assert abs(got.step_ms - point.step_ms) <= 1e-9 * point.step_ms
        assert abs(got.step_j - point.step_j) <= 1e-9 * point.step_j
        assert not got.extrapolated


@given(clean_grids(), ASKED_BATCHES, ASKED_CONTEXTS)
def test_a_point_outside_the_measured_box_is_flagged(points: list[StepPoint], batch: float, context: float) -> None:
    batches = [p.batch for p in points]
    contexts = [p.context_tokens for p in points]
    inside = min(batches) <= batch <= max(batches) and min(contexts) <= context <= max(contexts)
    # A hair's breadth outside counts as inside: contexts are means.
    near = any(abs(context - c) <= 1e-5 * (1.0 + context) for c in contexts)
    assert near or StepCost(points, None).covers(batch, context) == inside


@given(
    st.lists(st.tuples(st.integers(1, 10_000), st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=6),
    st.floats(0, 50_000),
    st.floats(0, 50_000),
)
def test_prefilling_in_two_parts_costs_as_much_as_in_one(
    steps: list[tuple[int, float, float]], first: float, second: float
) -> None:
    points, total = [], (0.0, 0.0, 0.0)
    for tokens, ms, j in steps:
        total = (total[0] + tokens, total[1] + ms, total[2] + j)
        points.append(total)
    cost = PrefillCost(points)
    whole, start, rest = cost.cost(first + second), cost.cost(first), cost.cost(second, after=first)
    assert min(rest) >= -1e-9
    for a, b, c in zip(whole, start, rest, strict=True):
        assert abs(a - (b + c)) <= 1e-9 * (1.0 + a)


@given(STEP_COSTS, st.integers(1, 300), ASKED_CONTEXTS)
def test_the_lines_of_a_batch_are_its_step_cost(cost: StepCost, batch: int, context: float) -> None:
    index = bisect_right(cost.context_knots, context) - 1
    start, ms, ms_per_token, j, j_per_token = cost.lines(batch)[index]
    expected_ms, expected_j = cost.step(batch, context)
    assert ms + ms_per_token * (context - start) == pytest.approx(expected_ms, rel=1e-9)
    assert j + j_per_token * (context - start) == pytest.approx(expected_j, rel=1e-9)
