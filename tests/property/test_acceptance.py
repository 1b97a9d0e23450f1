"""The survival-rate model holds at every width and length, not only at the ones in use."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from selector.core.acceptance import (
    AcceptanceModel,
    AcceptancePrior,
    accept_length_of,
    converted_accept_length,
    step_variance,
    survival_rate_of,
)

RATES = st.floats(0, 1)
WIDTHS = st.integers(1, 64)


@st.composite
def lengths(draw: st.DrawFn) -> tuple[float, int]:
    """An accept length and a verify width that it fits."""
    width = draw(WIDTHS)
    return min(float(width), 1.0 + draw(st.floats(0, 1)) * (width - 1)), width


@given(lengths())
def test_length_to_rate_and_back(length: tuple[float, int]) -> None:
    mean, width = length
    rate = survival_rate_of(mean, width)
    assert 0.0 <= rate <= 1.0
    assert math.isclose(accept_length_of(rate, width), mean, rel_tol=1e-6)


@given(RATES, WIDTHS)
def test_a_length_is_between_one_and_the_width_and_is_the_sum_of_powers(rate: float, width: int) -> None:
    length = accept_length_of(rate, width)
    assert 1.0 <= length <= width
    assert math.isclose(length, math.fsum(rate**k for k in range(width)), rel_tol=1e-6)


@given(RATES, WIDTHS, WIDTHS)
def test_a_wider_verification_never_gets_fewer_tokens(rate: float, one: int, other: int) -> None:
    assert accept_length_of(rate, min(one, other)) <= accept_length_of(rate, max(one, other)) * (1 + 1e-6)


@given(lengths(), WIDTHS)
def test_a_conversion_fits_the_new_width_and_comes_back(length: tuple[float, int], width: int) -> None:
    mean, known_width = length
    converted = converted_accept_length(mean, known_width, width)
    assert 1.0 <= converted <= width
    if width >= known_width:
        assert converted >= mean * (1 - 1e-6)
        # Coming back is exact but where the wider sum has lost what tells rates near 1 apart.
        assert math.isclose(converted_accept_length(converted, width, known_width), mean, rel_tol=1e-5)


@given(lengths())
def test_the_variance_of_a_step_is_that_of_its_distribution(length: tuple[float, int]) -> None:
    mean, width = length
    p = survival_rate_of(mean, width)
    # X tokens: the first x − 1 drafts survive and the next does not; at the full width all survived.
    chances = [p ** (x - 1) * (1 - p) for x in range(1, width)] + [p ** (width - 1)]
    assert math.isclose(math.fsum(chances), 1.0, rel_tol=1e-9)
    variance = math.fsum(chance * (x - mean) ** 2 for x, chance in enumerate(chances, start=1))
    assert math.isclose(step_variance(mean, width), variance, rel_tol=1e-5, abs_tol=1e-5 * width * width)


@given(
    st.floats(1, 8),
    st.lists(st.tuples(st.integers(-5, 500), st.integers(-5, 4_000)), max_size=30),
    st.floats(0.5, 0.999),
    st.floats(1, 5_000),
)
def test_whatever_is_observed_the_estimate_stays_possible(
    prior: float, samples: list[tuple[int, int]], quantile: float, output_tokens: float
) -> None:
    model = AcceptanceModel({"arm": {"code": AcceptancePrior(mean=prior, request_spread=0.2)}}, {"arm": 8})
    for passes, drafts in samples:
        model.observe("arm", "code", passes, drafts)
    assert model.samples + model.refused_samples == len(samples)
    mean = model.accept_length("arm", "code")
    assert 1.0 - 1e-9 <= mean <= 8.0 + 1e-9
    assert 1.0 <= model.slow_accept_length("arm", "code", None, output_tokens, quantile) <= mean + 1e-9
