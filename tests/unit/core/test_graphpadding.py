"""Steps that are padded to CUDA graphs, at points that can be worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selector.core.cost import ContextSlope, StepCost, StepPoint
from selector.core.graphpadding import padded_steps
from tests.fleets import ARMS, backend_spec

STEP = StepCost(
    [
        StepPoint(batch=batch, context_tokens=context, step_ms=4.0 + batch + 1e-3 * batch * context, step_j=2.0 * batch)
        for batch in (1, 4, 8)
        for context in (500.0, 1_500.0)
    ],
    ContextSlope(ms_per_token=1e-3, j_per_token=0.0),
)
"""4 ms, 1 ms a request and 1 µs for each of its tokens; 2 J a request."""


@pytest.mark.parametrize("batch", [5, 6, 7, 8])
def test_a_step_is_one_of_the_least_graph_with_the_context_that_there_is(batch: int) -> None:
    padded = padded_steps(STEP, (8, 4, 1))
    for context in (500.0, 1_000.0, 1_500.0, 4_000.0):
        assert padded.step(batch, context) == pytest.approx((12.0 + 1e-3 * batch * context, 16.0))
    assert padded.step(4, 500.0) == pytest.approx(STEP.step(4, 500.0))


def test_only_batches_up_to_the_largest_graph_and_graphs_within_the_measured_batches_pad() -> None:
    padded = padded_steps(STEP, (2, 4, 16))
    assert padded.step(3, 500.0) == pytest.approx(STEP.step(4, 375.0))
    for batch in (5, 6, 8, 9, 20):
        assert padded.step(batch, 900.0) == pytest.approx(STEP.step(batch, 900.0))


def test_a_larger_graph_is_never_the_cheaper_one() -> None:
    """As measured, the context of one request is all that counts: spread over more places, it would cost less."""
    step = StepCost(
        [
            StepPoint(batch=batch, context_tokens=context, step_ms=4.0 + 0.01 * context, step_j=1.0 + 0.01 * context)
            for batch in (1, 4, 8)
            for context in (500.0, 1_500.0)
        ],
        ContextSlope(ms_per_token=0.01, j_per_token=0.01),
    )
    padded = padded_steps(step, (4, 8))
    for context in (500.0, 1_500.0, 3_000.0):
        assert padded.step(5, context) == pytest.approx(padded.step(4, context))


def test_a_mean_batch_lies_between_the_costs_of_whole_ones() -> None:
    padded = padded_steps(STEP, (4, 8))
    (low_ms, _), (high_ms, _) = padded.step(4, 500.0), padded.step(5, 500.0)
    assert padded.step(4.25, 500.0)[0] == pytest.approx(low_ms + 0.25 * (high_ms - low_ms))


def test_without_graphs_it_is_the_cost_itself() -> None:
    assert padded_steps(STEP, ()) is STEP


@given(
    st.sampled_from(ARMS),
    st.lists(st.integers(1, 80), min_size=1, max_size=6, unique=True),
    st.integers(1, 70),
    st.floats(0.0, 9_000.0),
)
def test_it_rises_with_batch_and_context_and_covers_what_it_covered(
    arm: str, graphs: list[int], batch: int, context: float
) -> None:
    step = backend_spec("b", arm).cost.step
    padded = padded_steps(step, graphs)
    ms, j = padded.step(batch, context)
    for other in (padded.step(batch + 1, context), padded.step(batch, context + 50.0)):
        assert other[0] >= ms - 1e-9
        assert other[1] >= j - 1e-9
    assert padded.covers(batch, context) == step.covers(batch, context)
