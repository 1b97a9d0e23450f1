"""How many tokens a request gets per step on each arm: the accept length, by text type, learnt as requests finish.

    profile ──▶ prior per arm × text type ──▶ estimate ──▶ predictions of policies and planner
    finished request ──▶ possible? ──▶ sums of its types (fading) ──┘
                                  └──▶ drift tests ──▶ restart from recent requests

`survival` is the model of one step, `acceptanceevidence` what requests taught, `acceptancesums` its sums,
`acceptancearm` how profile, arm and text type are weighed, `drift` the tests. Around the mean, requests differ
(`request_spread`) and so do the steps of a request; both decide how many requests meet a TBT target. Losing what was
learnt costs only learning.

A request whose text type is uncertain teaches each type by its probability. It is not asked which type its acceptance
looks like: an arm that got worse on one type would pass for another type, and its drift would never be seen.

The half-life is in requests of one arm × text type, not in passes or hours: requests are the units of information (see
`acceptancesums`), so it fixes the precision, and an arm that nobody uses is not forgotten. With h requests an estimate
rests on the equivalent of 2 h / ln 2 of them, about 1 % of error at the default; what moves faster is for the drift
tests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul

from selector.core.acceptancearm import AcceptancePrior, Cell, slow_accept_length
from selector.core.acceptanceevidence import HALF_LIFE_REQUESTS, REFINE_KEYS, AcceptanceEvidence
from selector.core.effects import Effect
from selector.core.stalls import normal_deviate
from selector.core.survival import accept_length_of, converted_accept_length, step_variance, survival_rate_of
from selector.core.types import TEXT_TYPES, RequestView

__all__ = [
    "HALF_LIFE_REQUESTS",
    "REFINE_KEYS",
    "AcceptanceModel",
    "AcceptancePrior",
    "Estimate",
    "accept_length_of",
    "converted_accept_length",
    "step_variance",
    "survival_rate_of",
]

_EVERY_TYPE = (1.0 / len(TEXT_TYPES),) * len(TEXT_TYPES)
"""Probabilities of a text of which nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What is known of an arm on a text type, for policies and for explanations."""

    mean: float
    standard_deviation: float
    """Of the mean: how far it may be off."""
    samples: float
    """Requests behind it, faded ones by what is left of them; 0 for the profile alone."""
    request_spread: float
    prior_mean: float
    restarts: int
    """How often a drift made it begin anew."""


class AcceptanceModel(AcceptanceEvidence):
    """Accept length per arm and text type: what the evidence says, and what follows for a request."""

    def accept_length(self, arm: str, text_type: str, probabilities: Sequence[float] | None = None) -> float:
        """Expected accept length of a request on `arm`.

        With `probabilities` over `TEXT_TYPES` it is the harmonic mean over types: time and energy per token go with
        1/a. An unknown text type without probabilities counts every type alike. Raises `KeyError` for an unknown arm or
        text type, `ValueError` for probabilities of another length.
        """
        self._catch_up()
        if probabilities is None:
            return self._means[arm][text_type]
        if len(probabilities) != len(TEXT_TYPES):
            raise ValueError(f"{len(probabilities)} probabilities for {len(TEXT_TYPES)} text types")
        if self._verify_tokens[arm] == 1:
            return 1.0
        return 1.0 / math.fsum(map(mul, probabilities, self._learning[arm].inverse_means))

    def mean_accept_lengths(self, arm: str) -> Mapping[str, float]:
        """`accept_length` of `arm` by text type, the unknown one included. Not kept up to date: ask per decision."""
        self._catch_up()
        return self._means[arm]

    def request_spread(self, arm: str, text_type: str) -> float:
        """Relative standard deviation between the mean accept lengths of requests."""
        cell = self._cell(arm, text_type)
        return cell.spread if cell else 0.0

    def estimate(self, arm: str, text_type: str, probabilities: Sequence[float] | None = None) -> Estimate:
        """The estimate with its uncertainty, of a text type or of a request that is of `TEXT_TYPES` by `probabilities`.

        Raises `KeyError` for an arm or type without one (no drafter, unknown), `ValueError` as `accept_length` does.
        """
        if probabilities is not None:
            return self._mixed_estimate(arm, text_type, probabilities)
        cell = self.learning[arm].cells[text_type]
        return Estimate(
            mean=cell.mean,
            standard_deviation=cell.deviation,
            samples=cell.samples,
            request_spread=cell.spread,
            prior_mean=cell.prior.mean,
            restarts=cell.epoch,
        )

    def _mixed_estimate(self, arm: str, text_type: str, probabilities: Sequence[float]) -> Estimate:
        learning = self.learning[arm]
        mean = self.accept_length(arm, text_type, probabilities)
        parts = [
            (share, cell) for share, cell in zip(probabilities, learning.cells.values(), strict=True) if share > 0.0
        ]
        # Of 1 / a, to first order, as if estimates of types erred independently.
        variance = math.fsum((share * cell.deviation / cell.mean**2) ** 2 for share, cell in parts)
        return Estimate(
            mean=mean,
            standard_deviation=mean * mean * math.sqrt(variance),
            samples=math.fsum(share * cell.samples for share, cell in parts),
            request_spread=math.sqrt(learning.mixture(probabilities, math.inf)[1]),
            prior_mean=1.0 / math.fsum(share / cell.prior.mean for share, cell in parts),
            restarts=max(cell.epoch for _, cell in parts),
        )

    def effects(self, arm: str) -> Mapping[str, Effect]:
        """Effects of context length and temperature that the data says anything about. Raises `KeyError`."""
        return self.learning[arm].effects.known() if self._verify_tokens[arm] > 1 else {}

    def slow_accept_length(
        self,
        arm: str,
        text_type: str,
        probabilities: Sequence[float] | None,
        output_tokens: float,
        quantile: float,
    ) -> float:
        """The accept length that a request of `output_tokens` reaches with probability `quantile`.

        Normal approximation: relative variance = spread between requests² + variance of a step / (a² · steps), and
        between the types that it may be of (`Arm.mixture`). A TBT computed with it is its TBT at that quantile; under
        the median it is the mean's.
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
        return self._lengths(arm, text_type, probabilities, output_tokens, quantile, None)

    def of_request(self, arm: str, request: RequestView, quantile: float) -> tuple[float, float]:
        """`accept_lengths` of a request, with what its context, temperature and refinement key are known to change."""
        return self._lengths(
            arm, request.text_type, request.text_probabilities, request.expected_output_tokens, quantile, request
        )

    def samples_behind(self, arm: str, request: RequestView) -> float:
        """Requests behind the estimate for `request`: of its types, by their probabilities."""
        self._catch_up()
        learning = self._learning.get(arm)
        if learning is None:
            return 0.0
        cell = learning.cells.get(request.text_type)
        if cell and request.text_probabilities is None:
            return cell.samples
        return math.fsum(map(mul, request.text_probabilities or _EVERY_TYPE, learning.samples))

    def _lengths(
        self,
        arm: str,
        text_type: str,
        probabilities: Sequence[float] | None,
        output_tokens: float,
        quantile: float,
        request: RequestView | None,
    ) -> tuple[float, float]:
        if self._verify_tokens[arm] == 1:
            return 1.0, 1.0
        self._catch_up()
        learning, deviate = self._learning[arm], normal_deviate(quantile)
        if request is not None and not (learning.effects.any_applied or request.refine_key is not None):
            request = None  # nothing is known of it beyond its type
        cell = learning.cells.get(text_type) if probabilities is None else None
        if cell is not None:
            mean = cell.mean if request is None else self._refined(arm, cell.mean, text_type, request)
            return mean, max(1.0, slow_accept_length(mean, cell.relative_variance(mean, output_tokens), deviate))
        shares = probabilities or _EVERY_TYPE
        mean, variance = learning.mixture(shares, output_tokens)
        factor = 1.0
        if request is not None:
            before, mean = mean, self._refined(arm, mean, text_type, request)
            factor = mean / before
        slow = max(1.0, slow_accept_length(mean, variance, deviate))
        # A quantile of a mixture is within those of its parts, which the normal approximation does not know.
        return mean, learning.at_least_slowest(slow, shares, output_tokens, deviate, factor)

    def snapshot(self) -> dict[str, dict[str, float]]:
        """Mean accept length per arm and text type, for reports."""
        self._catch_up()
        return {arm: {text_type: self._means[arm][text_type] for text_type in TEXT_TYPES} for arm in self._means}

    def _cell(self, arm: str, text_type: str) -> Cell | None:
        learning = self.learning.get(arm)
        return learning.cells.get(text_type) if learning else None
