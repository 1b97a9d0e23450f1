"""Corrections of step costs: bounded, steady, from evidence that fades, and gone when they are reset."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selector.core.controller import Controller
from selector.core.correction import LEAST, MOST, CorrectionModel, LiveStepCost
from selector.core.types import NO_CORRECTION, Correction
from selector.errors import DomainError
from selector.files.policy import load_policy_file
from tests.emulators import fleet_of
from tests.fleets import policy_context, request_view, specs_of

STEP = fleet_of("dspark-8").specs[0].cost.step


@given(st.floats(1.0, 100.0), st.floats(0.0, 9_000.0), st.floats(0.5, 2.0), st.floats(0.5, 2.0))
@settings(max_examples=50, deadline=None)
def test_a_corrected_cost_is_the_profiles_times_the_factors(
    batch: float, context: float, time: float, energy: float
) -> None:
    live = LiveStepCost(STEP)
    assert live.step(batch, context) == STEP.step(batch, context)
    live.correct(Correction(step_time_frac=time, step_energy_frac=energy))
    ms, j = STEP.step(batch, context)
    assert live.step(batch, context) == (pytest.approx(ms * time), pytest.approx(j * energy))
    assert live.covers(batch, context) == STEP.covers(batch, context)
    # what it was made from is as it was, and it can go back there
    assert STEP.step(batch, context) == (ms, j)
    live.correct(NO_CORRECTION)
    assert live.step(batch, context) == (ms, j)


def test_more_in_each_step_is_added_to_what_is_in_force() -> None:
    live = LiveStepCost(STEP)
    live.correct(Correction(step_time_frac=1.5, step_energy_frac=0.5))
    more = live.plus(2.0, 3.0)
    ms, j = STEP.step(4, 900.0)
    assert more.step(4, 900.0) == (pytest.approx(1.5 * ms + 2.0), pytest.approx(0.5 * j + 3.0))
    assert more.covered_contexts(4) == STEP.covered_contexts(4) and more.context_knots == STEP.context_knots


@pytest.mark.parametrize("factor", [0.0, -1.0, math.inf, math.nan])
def test_factors_that_are_none_are_refused(factor: float) -> None:
    with pytest.raises(DomainError, match="cannot be corrected"):
        LiveStepCost(STEP).correct(Correction(step_time_frac=factor))


def test_backends_of_one_arm_are_corrected_apart() -> None:
    fleet = fleet_of("dspark-8", "dspark-8")
    context = fleet.policy_context()
    least_loaded = load_policy_file("least_loaded")
    controller = Controller(context, least_loaded.make({}, context))
    before = controller.tracker.view(0.0)
    controller.corrected("b1", Correction(step_time_frac=1.5))
    one, other = context.backends
    ms, _ = STEP.step(4, 500)
    assert one.cost.step.step(4, 500)[0] == ms
    assert other.cost.step.step(4, 500)[0] == pytest.approx(1.5 * ms)
    view = controller.tracker.view(0.0)
    assert view.backends[0] is before.backends[0]
    assert view.backends[1].correction == Correction(step_time_frac=1.5)
    # another run starts from the profile
    assert fleet.policy_context().backends[1].cost.step.step(4, 500)[0] == ms
    with pytest.raises(KeyError):
        controller.corrected("b9", NO_CORRECTION)


def test_predictions_follow_a_correction_at_once() -> None:
    context = fleet_of("none", "dspark-8").policy_context()
    controller = Controller(context, load_policy_file("greedy_energy").make({}, context))
    plain = controller.decide(request_view("r0"), 0.0)
    controller.retract("r0", 0.0)
    for name in ("b0", "b1"):
        controller.corrected(name, Correction(step_time_frac=2.0, step_energy_frac=2.0))
    slower = controller.decide(request_view("r1"), 0.0)
    for one, other in zip(plain.candidates, slower.candidates, strict=True):
        assert one.tbt_ms is not None
        assert other.tbt_ms == pytest.approx(2 * one.tbt_ms, rel=0.01)
        assert one.marginal_j_per_accepted_token is not None
        assert (other.marginal_j_per_accepted_token or 0.0) > 1.9 * one.marginal_j_per_accepted_token


def test_costs_made_by_hand_cannot_be_corrected() -> None:
    context = policy_context(specs_of("none"))
    controller = Controller(context, load_policy_file("least_loaded").make({}, context))
    with pytest.raises(DomainError, match="costs of b0 cannot be corrected"):
        controller.corrected("b0", NO_CORRECTION)


def test_evidence_moves_a_factor_and_little_evidence_does_not() -> None:
    model = CorrectionModel(["b0", "b1"])
    assert model.due(0.0) == {}
    model.stepped("b0", made=20.0, modelled=40.0, now_s=1.0)
    assert model.due(1.0) == {}
    model.stepped("b0", made=100_000.0, modelled=130_000.0, now_s=2.0)
    model.drew("b0", counted_j=90_000.0, modelled_j=100_000.0, now_s=2.0)
    due = model.due(2.0)
    assert list(due) == ["b0"]
    assert due["b0"].step_time_frac == pytest.approx(1.3, abs=0.01)
    # a step that takes longer draws its power for longer
    assert due["b0"].step_energy_frac == pytest.approx(1.3 * 0.9, abs=0.02)
    assert model.in_force("b0") == due["b0"]
    assert model.due(2.0) == {}
    assert model.ratios("b0").step_time_frac == pytest.approx(1.3, abs=0.001)
    assert (model.ratios("b1").step_time_frac, model.ratios("b1").power_frac) == (None, None)


def test_what_was_true_long_ago_is_forgotten() -> None:
    model = CorrectionModel(["b0"])
    model.stepped("b0", made=1e5, modelled=1.5e5, now_s=0.0)
    assert model.due(0.0)["b0"].step_time_frac > 1.45
    model.stepped("b0", made=1e5, modelled=1e5, now_s=3_600.0)
    assert model.due(3_600.0)["b0"].step_time_frac == pytest.approx(1.0, abs=0.01)
    # without any traffic the factor goes home
    model.stepped("b0", made=1e5, modelled=2e5, now_s=3_600.0)
    model.due(3_600.0)
    assert model.due(50_000.0)["b0"].step_time_frac == pytest.approx(1.0, abs=0.001)


@given(st.lists(st.tuples(st.floats(0.0, 1e6), st.floats(0.0, 1e6), st.booleans()), max_size=20))
@settings(max_examples=50, deadline=None)
def test_factors_stay_within_their_bounds(evidence: list[tuple[float, float, bool]]) -> None:
    model = CorrectionModel(["b0"])
    for now_s, (observed, modelled, steps) in enumerate(evidence):
        (model.stepped if steps else model.drew)("b0", observed, modelled, float(now_s))
        for correction in model.due(float(now_s)).values():
            assert LEAST <= correction.step_time_frac <= MOST
            assert LEAST <= correction.step_energy_frac <= MOST


def test_a_reset_forgets_everything() -> None:
    model = CorrectionModel(["b0", "b1"])
    model.drew("b0", 1e6, 5e5, 0.0)
    assert model.due(0.0)
    assert model.reset() == {"b0": NO_CORRECTION}
    assert model.in_force("b0") == NO_CORRECTION
    assert model.due(0.0) == {}
    assert model.ratios("b0").power_frac is None
    assert model.reset() == {}
