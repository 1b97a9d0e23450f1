"""Accept lengths as a plan takes them: chance moves nothing, evidence does."""

from __future__ import annotations

import pytest

from selector.core.acceptance import AcceptanceModel
from selector.core.plannedlengths import PlannedLengths
from selector.core.types import UNKNOWN_TEXT_TYPE
from tests.fleets import acceptance_model

ARM, TEXT = "dspark-8", "code"


def taught(requests: int, *, accept: float) -> tuple[AcceptanceModel, PlannedLengths]:
    """A model after so many requests of 100 passes, each with that accept length."""
    model = acceptance_model()
    for _ in range(requests):
        assert model.observe(ARM, TEXT, 100, round(100 * (accept - 1.0)))
    return model, PlannedLengths(model)


def test_without_requests_it_is_the_profile() -> None:
    model, planned = taught(0, accept=4.0)
    assert planned.accept_length(ARM, TEXT) == model.accept_length(ARM, TEXT)
    assert planned.accept_lengths(ARM, TEXT, None, 200.0, 0.9) == model.accept_lengths(ARM, TEXT, None, 200.0, 0.9)
    assert planned.accept_length("none", TEXT) == 1.0


def test_a_change_of_a_standard_deviation_counts_half() -> None:
    model, planned = taught(2, accept=0.93 * acceptance_model().accept_length(ARM, TEXT))
    estimate = model.estimate(ARM, TEXT)
    change = estimate.mean - estimate.prior_mean
    z = change / estimate.standard_deviation
    assert -1.5 < z < -0.1, "two unlucky requests"
    assert planned.accept_length(ARM, TEXT) == pytest.approx(estimate.prior_mean + change * z * z / (z * z + 1.0))
    mean, slow = planned.accept_lengths(ARM, TEXT, None, 200.0, 0.9)
    known_mean, known_slow = model.accept_lengths(ARM, TEXT, None, 200.0, 0.9)
    assert mean / known_mean == pytest.approx(slow / known_slow) and mean > known_mean


def test_many_requests_are_believed() -> None:
    model, planned = taught(60, accept=2.0)
    assert planned.accept_length(ARM, TEXT) == pytest.approx(model.accept_length(ARM, TEXT), rel=0.01)


def test_a_type_that_nobody_knows_is_taken_as_it_is() -> None:
    model, planned = taught(5, accept=2.0)
    assert planned.accept_length(ARM, UNKNOWN_TEXT_TYPE) == model.accept_length(ARM, UNKNOWN_TEXT_TYPE)
    with pytest.raises(KeyError):
        planned.accept_length("no such arm", TEXT)


def test_what_is_not_known_of_several_texts_is_less_than_of_one() -> None:
    model, planned = taught(3, accept=4.0)
    code, romansh = model.estimate(ARM, "code"), model.estimate(ARM, "romansh")
    alone = planned.unsure_frac({(ARM, "code"): 10.0})
    assert alone == pytest.approx(code.standard_deviation / code.mean)
    both = planned.unsure_frac({(ARM, "code"): 10.0, (ARM, "romansh"): 30.0})
    parts = 10.0 * code.standard_deviation / code.mean, 30.0 * romansh.standard_deviation / romansh.mean
    assert both == pytest.approx((parts[0] ** 2 + parts[1] ** 2) ** 0.5 / 40.0)
    assert planned.unsure_frac({("none", "code"): 10.0}) == planned.unsure_frac({}) == 0.0
