"""Whatever comes, in whatever order: estimates stay possible, sums add up, budgets hold."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from selector.core.acceptance import AcceptanceModel, AcceptancePrior
from selector.core.acceptancestate import OtherModels, contribution_of, restore, state_of
from selector.core.acceptancesums import SUM_NAMES, Sums
from selector.core.types import TEXT_TYPES, RequestView
from tests.fleets import request_view

WIDTH = 8


@st.composite
def views(draw: st.DrawFn) -> RequestView:
    weights = draw(st.lists(st.floats(0, 1), min_size=len(TEXT_TYPES), max_size=len(TEXT_TYPES)))
    total = math.fsum(weights)
    probabilities = tuple(each / total for each in weights) if total > 0.01 and draw(st.booleans()) else None
    view = request_view(
        text_type=draw(st.sampled_from(TEXT_TYPES)),
        text_probabilities=probabilities,
        prompt_tokens=draw(st.integers(0, 200_000)),
        temperature=draw(st.none() | st.floats(0, 2)),
        refine_key=draw(st.none() | st.sampled_from("abc")),
    )
    return replace(view, expected_output_tokens=draw(st.floats(1, 5_000)))


SAMPLES = st.lists(st.tuples(views(), st.integers(-2, 500), st.integers(-2, 3_600)), max_size=40)


def model() -> AcceptanceModel:
    priors = {name: AcceptancePrior(mean=3.0, request_spread=0.1) for name in TEXT_TYPES[:5]}
    return AcceptanceModel({"arm": priors}, {"arm": WIDTH}, half_life_requests=20.0, refine_keys=2)


@settings(max_examples=60)
@given(SAMPLES, views(), st.floats(0.5, 0.999))
def test_predictions_stay_possible(
    samples: list[tuple[RequestView, int, int]], asked: RequestView, quantile: float
) -> None:
    made = model()
    for view, passes, drafts in samples:
        possible = passes > 0 and 0 <= drafts <= passes * (WIDTH - 1)
        assert made.observe("arm", view.text_type, passes, drafts, request=view) == possible
    assert made.samples + made.refused_samples == len(samples)
    mean, slow = made.of_request("arm", asked, quantile)
    assert 1.0 <= slow <= mean + 1e-9 <= WIDTH + 2e-9
    for name in TEXT_TYPES:
        estimate = made.estimate("arm", name)
        assert 1.0 <= estimate.mean <= WIDTH
        assert 0.0 < estimate.standard_deviation < math.inf
        assert 0.0 <= estimate.request_spread < math.inf
    assert len(made.refinement) <= 2
    again = model()
    restore(again, state_of(made))
    assert again.of_request("arm", asked, quantile) == (mean, slow)


@settings(max_examples=40)
@given(SAMPLES, SAMPLES)
def test_hearing_of_others_in_any_order_comes_to_the_same(
    ones: list[tuple[RequestView, int, int]], others: list[tuple[RequestView, int, int]]
) -> None:
    told = []
    for samples in (ones, others):
        made = model()
        for view, passes, drafts in samples:
            made.observe("arm", view.text_type, passes, drafts, request=view)
        told.append(contribution_of(made))
    listeners = [model(), model(), model()]
    OtherModels(listeners[0]).combine({"a": told[0], "b": told[1]})
    OtherModels(listeners[1]).combine({"b": told[1], "a": told[0]})
    slow = OtherModels(listeners[2])
    slow.combine({"a": told[0]})
    slow.combine({"a": told[0], "b": told[1]})
    for name in TEXT_TYPES:
        first, second, third = (each.estimate("arm", name) for each in listeners)
        assert math.isclose(first.mean, second.mean, rel_tol=1e-9)
        assert math.isclose(first.samples, third.samples, rel_tol=1e-9, abs_tol=1e-12)
        assert math.isclose(first.mean, third.mean, rel_tol=1e-9)


@given(st.lists(st.tuples(st.integers(1, 500), st.floats(1, 8)), min_size=1, max_size=20), st.integers(0, 20))
def test_sums_of_parts_are_the_sums_of_the_whole(requests: list[tuple[int, float]], cut: int) -> None:
    whole, first, rest = Sums(), Sums(), Sums()
    for number, (passes, mean) in enumerate(requests):
        for sums in (whole, first if number < cut else rest):
            sums.add(passes, passes * mean)
    first.include(rest)
    for name in SUM_NAMES:
        assert math.isclose(getattr(first, name), getattr(whole, name), rel_tol=1e-9)
    assert whole.ratio is not None
    assert 1.0 <= whole.ratio <= 8.0 + 1e-9
