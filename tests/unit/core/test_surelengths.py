"""Accept lengths of a request: a few unlucky requests count nothing, a change that is certain nearly all."""

from __future__ import annotations

import pytest

from selector.core.acceptance import AcceptanceModel
from selector.core.runningload import AcceptLengths
from selector.core.surelengths import SureLengths
from tests.fleets import acceptance_model, request_view

ARM, TEXT, QUANTILE = "dspark-8", "code", 0.9


def taught(requests: int, *, accept: float) -> tuple[AcceptanceModel, SureLengths, AcceptLengths]:
    """A model after so many requests of 100 passes, each with that accept length."""
    model = acceptance_model()
    for _ in range(requests):
        assert model.observe(ARM, TEXT, 100, round(100 * (accept - 1.0)))
    request = request_view(text_type=TEXT)
    return model, SureLengths(request, model, QUANTILE), AcceptLengths(request, model, QUANTILE)


def test_without_requests_it_is_what_is_estimated() -> None:
    _, sure, estimated = taught(0, accept=4.0)
    for arm in (ARM, "none"):
        assert sure.of_request(arm) == estimated.of_request(arm)


def test_two_unlucky_requests_count_nothing() -> None:
    profile = acceptance_model().accept_length(ARM, TEXT)
    model, sure, estimated = taught(2, accept=0.95 * profile)
    estimate = model.estimate(ARM, TEXT)
    assert 0.0 < profile - estimate.mean < estimate.standard_deviation
    mean, slow = sure.of_request(ARM)
    assert mean == pytest.approx(profile)
    known_mean, known_slow = estimated.of_request(ARM)
    assert slow / known_slow == pytest.approx(mean / known_mean)


def test_what_is_beyond_a_deviation_counts() -> None:
    model, sure, _ = taught(40, accept=2.0)
    estimate = model.estimate(ARM, TEXT)
    assert sure.of_request(ARM)[0] == pytest.approx(estimate.mean + estimate.standard_deviation)
    assert sure.of_request(ARM)[0] < 0.6 * estimate.prior_mean
    better, sure, _ = taught(40, accept=7.0)
    estimate = better.estimate(ARM, TEXT)
    assert sure.of_request(ARM)[0] == pytest.approx(estimate.mean - estimate.standard_deviation)


def test_requests_that_run_are_taken_as_estimated() -> None:
    _, sure, estimated = taught(2, accept=3.0)
    assert sure.of_running(ARM, TEXT) == estimated.of_running(ARM, TEXT)
