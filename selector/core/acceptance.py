"""How many tokens a request gets per step on each arm: the accept length, by text type.

Drafts are modelled with one survival rate p per arm and text type: the k-th drafted token is accepted with probability
p^k, so a step that verifies w tokens (w − 1 drafts and the bonus token) yields

    a = 1 + p + p² + … + p^(w−1) = (1 − p^w) / (1 − p)                                       (accept length, 1 ≤ a ≤ w)

A mean published for another verify width is converted through its p. Around the mean, requests differ
(`request_spread`) and so do the steps of a request; both decide how many requests meet a TBT target.

The model starts at a prior from the profile and is updated by each finished request. Losing it costs only learning.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from operator import mul
from statistics import NormalDist

from selector.core.types import TEXT_TYPES, UNKNOWN_TEXT_TYPE
from selector.errors import DomainError

_BISECTION_STEPS = 60
_CURVE_LINES = 1024
_PLACE_OF = {text_type: place for place, text_type in enumerate(TEXT_TYPES)}


def accept_length_of(survival_rate: float, verify_tokens: int) -> float:
    """(1 − p^w) / (1 − p): mean tokens per step at survival rate p in [0, 1] and verify width w ≥ 1."""
    if not 0.0 <= survival_rate <= 1.0 or verify_tokens < 1:
        raise DomainError(f"no accept length at survival rate {survival_rate} and verify width {verify_tokens}")
    if survival_rate > 1.0 - 1e-9:
        return float(verify_tokens)
    return float((1.0 - survival_rate**verify_tokens) / (1.0 - survival_rate))


@lru_cache(maxsize=65536)
def survival_rate_of(accept_length: float, verify_tokens: int) -> float:
    """The p with (1 − p^w) / (1 − p) = a. Raises `DomainError` unless 1 ≤ a ≤ w."""
    if not 1.0 <= accept_length <= verify_tokens:
        raise DomainError(f"accept length {accept_length} is outside 1 … {verify_tokens}, the verify width")
    low, high = 0.0, 1.0
    for _ in range(_BISECTION_STEPS):
        middle = 0.5 * (low + high)
        if accept_length_of(middle, verify_tokens) < accept_length:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def converted_accept_length(accept_length: float, from_verify_tokens: int, to_verify_tokens: int) -> float:
    """An accept length known at one verify width, at another, by one survival rate."""
    return accept_length_of(survival_rate_of(accept_length, from_verify_tokens), to_verify_tokens)


def step_variance(accept_length: float, verify_tokens: int) -> float:
    """Variance of the tokens of one step around the mean `accept_length`, under the survival-rate model."""
    return _variance_of(survival_rate_of(accept_length, verify_tokens), accept_length, verify_tokens)


def _variance_of(survival_rate: float, accept_length: float, verify_tokens: int) -> float:
    # E[X²] = Σ_{k≥1} (2k − 1) P(X ≥ k) with P(X ≥ k) = p^(k−1).
    second_moment = sum((2 * k - 1) * survival_rate ** (k - 1) for k in range(1, verify_tokens + 1))
    return max(0.0, second_moment - accept_length * accept_length)


@lru_cache(maxsize=64)
def _variance_curve(verify_tokens: int) -> tuple[list[float], list[tuple[float, float, float]]]:
    """`step_variance` as a chain of short lines: the accept lengths where they start, and (start, variance, slope)."""
    rates = [point / _CURVE_LINES for point in range(_CURVE_LINES + 1)]
    starts = [accept_length_of(rate, verify_tokens) for rate in rates]
    variances = [_variance_of(rate, start, verify_tokens) for rate, start in zip(rates, starts, strict=True)]
    slopes = [(v1 - v0) / (a1 - a0) for (a0, v0), (a1, v1) in pairwise(zip(starts, variances, strict=True))]
    return starts, list(zip(starts, variances, [*slopes, 0.0], strict=True))


def _step_variance_frac(accept_length: float, verify_tokens: int) -> float:
    """`step_variance` over the mean squared, read off the curve: every prediction asks for it."""
    starts, lines = _variance_curve(verify_tokens)
    start, variance, slope = lines[bisect_right(starts, accept_length) - 1]
    return (variance + slope * (accept_length - start)) / (accept_length * accept_length)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptancePrior:
    """What the profile knows of one arm on one text type, before any request was seen."""

    mean: float
    """Mean accept length, bonus token included."""
    request_spread: float = 0.0
    """Standard deviation of a request's own mean accept length over its mean (relative)."""


class _Estimate:
    """Running estimate of one arm on one text type, in verify passes, with what predictions read from it."""

    __slots__ = ("_width", "mean", "spread", "step_variance_frac", "total", "weight")

    def __init__(self, prior: AcceptancePrior, weight: float, width: int) -> None:
        self._width = width
        self.weight = weight
        self.total = prior.mean * weight
        self.mean = prior.mean
        self.spread = prior.request_spread
        self.step_variance_frac = _step_variance_frac(prior.mean, width) if width > 1 else 0.0

    def add(self, verify_passes: int, tokens: int, keep: float) -> None:
        """Adds passes that gave `tokens`; what was known before keeps the share `keep` of its weight."""
        self.weight = self.weight * keep + verify_passes
        self.total = self.total * keep + tokens
        self.mean = self.total / self.weight
        self.step_variance_frac = _step_variance_frac(self.mean, self._width)


class AcceptanceModel:
    """Accept length per arm and text type: prior from the profile, updated online.

    Each finished request adds its verify passes to the estimate; `prior_passes` is the weight of the prior in passes,
    and older passes count half after `half_life_passes` further ones. Samples that cannot be (negative, above the
    verify width) are refused and counted in `refused_samples`.
    """

    def __init__(
        self,
        priors: Mapping[str, Mapping[str, AcceptancePrior]],
        verify_tokens: Mapping[str, int],
        *,
        prior_passes: float = 2_000.0,
        half_life_passes: float = 50_000.0,
    ) -> None:
        self._verify_tokens = dict(verify_tokens)
        # By arm and text type; the types of an arm in the order of TEXT_TYPES.
        self._estimates: dict[str, dict[str, _Estimate]] = {}
        # What predictions read, derived from the estimates; the means include that of the unknown text type.
        self._inverse_means: dict[str, list[float]] = {}
        self._means: dict[str, dict[str, float]] = {}
        self._half_life_passes = half_life_passes
        self.samples = 0
        self.refused_samples = 0
        for arm, width in self._verify_tokens.items():
            known = priors.get(arm, {})
            self._estimates[arm] = {}
            for text_type in TEXT_TYPES:
                prior = known.get(text_type, AcceptancePrior(mean=1.0))
                if not 1.0 <= prior.mean <= width:
                    raise DomainError(f"accept length {prior.mean} of {arm} on {text_type} is outside 1 … {width}")
                self._estimates[arm][text_type] = _Estimate(prior, prior_passes, width)
            self._derive(arm)

    def _derive(self, arm: str) -> None:
        estimates = self._estimates[arm]
        self._inverse_means[arm] = inverse = [1.0 / estimate.mean for estimate in estimates.values()]
        means = self._means[arm] = {text_type: estimate.mean for text_type, estimate in estimates.items()}
        means[UNKNOWN_TEXT_TYPE] = len(inverse) / math.fsum(inverse)

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms known to the model."""
        return tuple(self._verify_tokens)

    def accept_length(self, arm: str, text_type: str, probabilities: Sequence[float] | None = None) -> float:
        """Expected accept length of a request on `arm`.

        With `probabilities` over `TEXT_TYPES` it is the harmonic mean over types: time and energy per token go with
        1/a. An unknown text type without probabilities counts every type alike. Raises `KeyError` for an unknown arm or
        text type, `ValueError` for probabilities of another length.
        """
        if probabilities is None:
            return self._means[arm][text_type]
        if len(probabilities) != len(TEXT_TYPES):
            raise ValueError(f"{len(probabilities)} probabilities for {len(TEXT_TYPES)} text types")
        if self._verify_tokens[arm] == 1:
            return 1.0
        return 1.0 / math.fsum(map(mul, probabilities, self._inverse_means[arm]))

    def mean_accept_lengths(self, arm: str) -> Mapping[str, float]:
        """`accept_length` of `arm` by text type, the unknown one included. Not kept up to date: ask per decision."""
        return self._means[arm]

    def request_spread(self, arm: str, text_type: str) -> float:
        """Relative standard deviation between the mean accept lengths of requests."""
        estimate = self._estimates.get(arm, {}).get(text_type)
        return estimate.spread if estimate else 0.0

    def slow_accept_length(
        self,
        arm: str,
        text_type: str,
        probabilities: Sequence[float] | None,
        output_tokens: float,
        quantile: float,
    ) -> float:
        """The accept length that a request of `output_tokens` reaches with probability `quantile`.

        Normal approximation: relative variance = spread between requests² + variance of a step / (a² · steps). A TBT
        computed with it is the request's TBT at that quantile.
        """
        return self.accept_lengths(arm, text_type, probabilities, output_tokens, quantile)[1]

    def accept_lengths(
        self,
        arm: str,
        text_type: str,
        probabilities: Sequence[float] | None,
        output_tokens: float,
        quantile: float,
    ) -> tuple[float, float]:
        """(`accept_length`, `slow_accept_length`) at the price of one of them."""
        width = self._verify_tokens[arm]
        if width == 1:
            return 1.0, 1.0
        estimate = self._estimates[arm].get(text_type)
        spread = estimate.spread if estimate else 0.0
        if estimate and probabilities is None:
            mean, step_variance_frac = estimate.mean, estimate.step_variance_frac
        else:
            mean = self.accept_length(arm, text_type, probabilities)
            step_variance_frac = _step_variance_frac(mean, width)
        steps = output_tokens / mean if output_tokens > mean else 1.0
        variance = spread * spread + step_variance_frac / steps
        slow = mean * (1.0 - _normal_quantile(quantile) * math.sqrt(variance))
        return mean, slow if slow > 1.0 else 1.0

    def observe(self, arm: str, text_type: str, verify_passes: int, accepted_drafts: int) -> bool:
        """Adds a finished request; returns whether the sample was possible and therefore used.

        An unknown text type teaches nothing about any type and is not used, nor is it counted as refused.
        """
        width = self._verify_tokens.get(arm)
        if width is None or width == 1 or text_type == UNKNOWN_TEXT_TYPE:
            return False
        if verify_passes <= 0 or accepted_drafts < 0 or accepted_drafts > verify_passes * (width - 1):
            self.refused_samples += 1
            return False
        keep = 0.5 ** (verify_passes / self._half_life_passes)
        estimate = self._estimates[arm][text_type]
        estimate.add(verify_passes, verify_passes + accepted_drafts, keep)
        inverse, means = self._inverse_means[arm], self._means[arm]
        inverse[_PLACE_OF[text_type]] = 1.0 / estimate.mean
        means[text_type] = estimate.mean
        means[UNKNOWN_TEXT_TYPE] = len(inverse) / math.fsum(inverse)
        self.samples += 1
        return True

    def snapshot(self) -> dict[str, dict[str, float]]:
        """Mean accept length per arm and text type, for reports."""
        return {
            arm: {text_type: estimate.mean for text_type, estimate in estimates.items()}
            for arm, estimates in self._estimates.items()
        }


@lru_cache(maxsize=256)
def _normal_quantile(quantile: float) -> float:
    return float(NormalDist().inv_cdf(quantile))
