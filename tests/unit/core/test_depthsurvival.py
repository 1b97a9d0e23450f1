"""Survival curves: the accept lengths of every depth, and of the request that targets are judged by."""

from __future__ import annotations

import pytest

from selector.core.acceptance import AcceptanceModel, AcceptancePrior
from selector.core.depthsurvival import (
    SlowRequests,
    accept_lengths,
    continued_survivals,
    geometric_survivals,
    slow_accept_lengths,
    survivals_with_mean,
)
from selector.core.survival import accept_length_of
from selector.errors import DomainError


def test_one_rate_gives_the_accept_length_of_every_width() -> None:
    lengths = accept_lengths(geometric_survivals(0.7, 5))
    assert lengths == pytest.approx([accept_length_of(0.7, width) for width in range(1, 7)])


def test_a_slow_request_is_as_slow_as_the_acceptance_model_says() -> None:
    prior = AcceptancePrior(mean=accept_length_of(0.7, 4), request_spread=0.15, survival=None)
    model = AcceptanceModel({"eagle3-k3": {"code": prior}}, {"eagle3-k3": 4})
    slow = SlowRequests.at(0.9, spread_frac=0.15, output_tokens=200.0)
    expected = model.slow_accept_length("eagle3-k3", "code", None, 200.0, 0.9)
    assert slow_accept_lengths(geometric_survivals(0.7, 3), slow)[3] == pytest.approx(expected, rel=1e-3)


def test_a_slow_request_is_slow_as_one_of_a_bent_curve_at_every_depth() -> None:
    curve, spread_frac = geometric_survivals(0.8, 3), 0.1
    slow = SlowRequests.at(0.9, spread_frac=spread_frac, output_tokens=1e9)  # its steps average out
    mean = accept_lengths(curve)[3]
    bent = accept_lengths(survivals_with_mean(curve, mean * (1.0 - slow.deviate * spread_frac), 3))
    assert slow_accept_lengths(curve, slow) == pytest.approx(bent, rel=0.015)
    assert slow_accept_lengths(curve, slow)[1] > 1.8 * (1.0 - 0.5 * slow.deviate * spread_frac)


def test_at_the_median_a_request_is_not_slow() -> None:
    curve = geometric_survivals(0.6, 3)
    assert slow_accept_lengths(curve, SlowRequests.at(0.5, spread_frac=0.2)) == pytest.approx(accept_lengths(curve))


def test_a_request_is_never_slower_than_without_a_drafter() -> None:
    slow = SlowRequests.at(0.999, spread_frac=2.0, output_tokens=4.0)
    assert slow_accept_lengths(geometric_survivals(0.5, 3), slow) == [1.0, 1.0, 1.0, 1.0]


def test_a_curve_is_continued_at_its_last_rate() -> None:
    assert continued_survivals((0.8, 0.4), 4) == pytest.approx((0.8, 0.4, 0.2, 0.1))
    assert continued_survivals((0.8, 0.4, 0.3), 2) == (0.8, 0.4)
    assert continued_survivals((0.0,), 2) == (0.0, 0.0)


def test_a_curve_is_bent_to_a_mean() -> None:
    curve = survivals_with_mean((0.8, 0.5, 0.4), 2.0, 3)
    assert accept_lengths(curve)[3] == pytest.approx(2.0)
    assert curve[0] < 0.8
    assert accept_lengths(survivals_with_mean((0.8, 0.5, 0.4), 1.7, 1))[1] == pytest.approx(1.7)


@pytest.mark.parametrize("curve", [(), (0.5, 0.6), (1.2,), (0.5, -0.1)])
def test_what_is_no_curve_is_refused(curve: tuple[float, ...]) -> None:
    with pytest.raises(DomainError):
        continued_survivals(curve, 3)


def test_a_mean_that_no_curve_has_is_refused() -> None:
    for length, depth in ((0.9, 2), (3.1, 2), (2.0, 4)):
        with pytest.raises(DomainError):
            survivals_with_mean((0.8, 0.5, 0.4), length, depth)


def test_a_request_that_cannot_be_slow_is_refused() -> None:
    for quantile, spread, tokens in ((0.0, 0.1, 10.0), (1.0, 0.1, 10.0), (0.9, -0.1, 10.0), (0.9, 0.1, 0.0)):
        with pytest.raises(DomainError):
            SlowRequests.at(quantile, spread_frac=spread, output_tokens=tokens)
