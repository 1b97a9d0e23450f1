"""Accept lengths: the survival-rate model in numbers, and how priors and requests make an estimate."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from selector.core.acceptance import (
    AcceptanceModel,
    AcceptancePrior,
    accept_length_of,
    converted_accept_length,
    step_variance,
    survival_rate_of,
)
from selector.core.types import TEXT_TYPES, UNKNOWN_TEXT_TYPE
from selector.errors import DomainError

WIDTHS = {"none": 1, "dspark-8": 8, "eagle3-k1": 2}


def model(prior_passes: float = 100.0, half_life_passes: float = 1e9, spread: float = 0.0) -> AcceptanceModel:
    prior = {text_type: AcceptancePrior(mean=3.0, request_spread=spread) for text_type in TEXT_TYPES}
    prior["romansh"] = AcceptancePrior(mean=1.5, request_spread=spread)
    return AcceptanceModel({"dspark-8": prior}, WIDTHS, prior_passes=prior_passes, half_life_passes=half_life_passes)


@pytest.mark.parametrize(
    ("rate", "width", "expected"), [(0, 8, 1), (1, 8, 8), (0.5, 2, 1.5), (0.5, 4, 1.875), (0.9, 1, 1)]
)
def test_the_accept_length_is_the_sum_of_survival_powers(rate: float, width: int, expected: float) -> None:
    assert accept_length_of(rate, width) == pytest.approx(expected)


def test_a_published_length_is_converted_by_one_survival_rate() -> None:
    # p = 0.5: 1.984375 at width 7, 1.5 at width 2.
    assert converted_accept_length(1.984375, 7, 2) == pytest.approx(1.5)
    assert converted_accept_length(8.0, 8, 4) == pytest.approx(4.0)
    assert converted_accept_length(1.0, 8, 16) == pytest.approx(1.0)


@pytest.mark.parametrize(("length", "width"), [(0.99, 4), (4.01, 4), (1.01, 1), (math.nan, 4)])
def test_a_length_outside_one_to_the_width_is_refused(length: float, width: int) -> None:
    with pytest.raises(DomainError):
        survival_rate_of(length, width)


@pytest.mark.parametrize(("rate", "width"), [(-0.1, 4), (1.1, 4), (0.5, 0)])
def test_a_rate_that_is_no_probability_is_refused(rate: float, width: int) -> None:
    with pytest.raises(DomainError):
        accept_length_of(rate, width)


def test_a_step_without_chance_has_no_variance() -> None:
    assert step_variance(1.0, 8) == pytest.approx(0.0, abs=1e-9)
    assert step_variance(8.0, 8) == pytest.approx(0.0, abs=1e-6)
    # Width 2: one draft, accepted with p: a coin.
    assert step_variance(1.3, 2) == pytest.approx(0.3 * 0.7)


def test_the_prior_is_what_is_known_at_first() -> None:
    assert model().accept_length("dspark-8", "code") == 3.0
    assert model().accept_length("none", "code") == 1.0
    # An arm without a prior is taken to accept nothing.
    assert model().accept_length("eagle3-k1", "code") == 1.0


def test_probabilities_mix_by_time_per_token() -> None:
    mix = [0.0] * len(TEXT_TYPES)
    mix[TEXT_TYPES.index("code")], mix[TEXT_TYPES.index("romansh")] = 0.5, 0.5
    assert model().accept_length("dspark-8", "code", mix) == pytest.approx(2.0)  # harmonic mean of 3 and 1.5
    everything = model().accept_length("dspark-8", UNKNOWN_TEXT_TYPE)
    assert everything == pytest.approx(10 / (9 / 3.0 + 1 / 1.5))


def test_requests_move_the_estimate_by_their_passes() -> None:
    acceptance = model(prior_passes=100.0)
    assert acceptance.observe("dspark-8", "code", verify_passes=100, accepted_drafts=400)  # 5 tokens per pass
    assert acceptance.accept_length("dspark-8", "code") == pytest.approx(4.0)
    assert acceptance.accept_length("dspark-8", "news") == 3.0
    assert acceptance.samples == 1


def test_old_passes_fade_by_half_at_the_half_life() -> None:
    acceptance = model(prior_passes=100.0, half_life_passes=100.0)
    acceptance.observe("dspark-8", "code", verify_passes=100, accepted_drafts=400)
    assert acceptance.accept_length("dspark-8", "code") == pytest.approx((50 * 3 + 100 * 5) / 150)


@pytest.mark.parametrize(("passes", "drafts"), [(0, 0), (-1, 0), (10, -1), (10, 71)])
def test_a_sample_that_cannot_be_is_refused_and_counted(passes: int, drafts: int) -> None:
    acceptance = model()
    assert not acceptance.observe("dspark-8", "code", passes, drafts)
    assert (acceptance.refused_samples, acceptance.samples) == (1, 0)
    assert acceptance.accept_length("dspark-8", "code") == 3.0


@pytest.mark.parametrize(("arm", "text_type"), [("none", "code"), ("absent", "code"), ("dspark-8", UNKNOWN_TEXT_TYPE)])
def test_what_teaches_nothing_is_not_counted(arm: str, text_type: str) -> None:
    acceptance = model()
    assert not acceptance.observe(arm, text_type, 10, 10)
    assert (acceptance.refused_samples, acceptance.samples) == (0, 0)


def test_a_prior_above_the_verify_width_is_refused() -> None:
    with pytest.raises(DomainError, match=r"2\.5 of eagle3-k1 on code is outside 1 … 2"):
        AcceptanceModel({"eagle3-k1": {"code": AcceptancePrior(mean=2.5)}}, WIDTHS)


def test_the_slow_length_is_the_mean_less_what_the_quantile_asks() -> None:
    acceptance = model(spread=0.1)
    steps = 300.0 / 3.0
    relative = math.sqrt(0.1**2 + step_variance(3.0, 8) / (9 * steps))
    expected = 3.0 * (1 - NormalDist().inv_cdf(0.9) * relative)
    assert acceptance.slow_accept_length("dspark-8", "code", None, 300, 0.9) == pytest.approx(expected)
    assert acceptance.slow_accept_length("dspark-8", "code", None, 300, 0.5) == pytest.approx(3.0)
    assert acceptance.slow_accept_length("none", "code", None, 300, 0.9) == 1.0


def test_a_short_request_is_less_sure_than_a_long_one_and_never_under_one_token() -> None:
    acceptance = model()
    short = acceptance.slow_accept_length("dspark-8", "code", None, 10, 0.9)
    long = acceptance.slow_accept_length("dspark-8", "code", None, 10_000, 0.9)
    assert 1.0 <= short < long < 3.0
    assert acceptance.slow_accept_length("dspark-8", "romansh", None, 1, 0.999) == 1.0


def test_the_snapshot_lists_every_arm_and_text_type() -> None:
    snapshot = model().snapshot()
    assert set(snapshot) == set(WIDTHS)
    assert snapshot["dspark-8"] == dict.fromkeys(TEXT_TYPES, 3.0) | {"romansh": 1.5}
