"""How many tokens a request gets per step on each arm: the accept length, by text type, learnt as requests finish.

    profile ──▶ prior per arm × text type ──▶ estimate ──▶ predictions of policies and planner
    finished request ──▶ possible? ──▶ sums of its types (fading) ──┘
                                  └──▶ drift tests ──▶ restart from recent requests

`survival` is the model of one step, `acceptancesums` what requests teach, `acceptancearm` how profile, arm and text
type are weighed, `drift` the tests. Around the mean, requests differ (`request_spread`) and so do the steps of a
request; both decide how many requests meet a TBT target. Losing what was learnt costs only learning.

A request whose text type is uncertain teaches each type by its probability. It is not asked which type its acceptance
looks like: an arm that got worse on one type would pass for another type, and its drift would never be seen.

The half-life is in requests of one arm × text type, not in passes or hours: requests are the units of information (see
`acceptancesums`), so it fixes the precision, and an arm that nobody uses is not forgotten. With h requests an estimate
rests on the equivalent of 2 h / ln 2 of them, about 1 % of error at the default; what moves faster is for the drift
tests.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import mul
from statistics import NormalDist

from selector.core.acceptancearm import AcceptancePrior, Arm, Cell
from selector.core.acceptancelearning import add, add_to_effects, deviation, restart, shares_of, shift_of
from selector.core.drift import DriftAlarm, Shift
from selector.core.effects import Effect
from selector.core.refinement import Refinement
from selector.core.survival import accept_length_of, converted_accept_length, step_variance, survival_rate_of
from selector.core.types import TEXT_TYPES, UNKNOWN_TEXT_TYPE, RequestView

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

HALF_LIFE_REQUESTS = 500.0
REFINE_KEYS = 4_096
_KEPT_ALARMS = 64
_ALIKE = (1.0 / len(TEXT_TYPES),) * len(TEXT_TYPES)
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


class AcceptanceModel:
    """Accept length per arm and text type: prior from the profile, updated online.

    Samples that cannot be (negative, above the verify width, without a pass) are refused and counted in
    `refused_samples`. Not thread-safe.
    """

    def __init__(
        self,
        priors: Mapping[str, Mapping[str, AcceptancePrior]],
        verify_tokens: Mapping[str, int],
        *,
        half_life_requests: float = HALF_LIFE_REQUESTS,
        refine_keys: int = REFINE_KEYS,
    ) -> None:
        """Raises `DomainError` for a prior that its verify width cannot yield."""
        self._verify_tokens = dict(verify_tokens)
        self.half_life_requests = half_life_requests
        self._learning: dict[str, Arm] = {
            arm: Arm(arm, priors.get(arm, {}), width) for arm, width in self._verify_tokens.items() if width > 1
        }
        self._refinement = Refinement(refine_keys)
        self._samples = self._refused_samples = 0
        self._drift_alarms: deque[DriftAlarm] = deque(maxlen=_KEPT_ALARMS)
        self._drift_alarm_count = 0
        self._put_off: list[tuple[str, str, int, int, RequestView | None, float | None]] = []
        """Finished requests that nothing has been learnt from yet: the arguments of `observe`."""
        self._one = dict.fromkeys([*TEXT_TYPES, UNKNOWN_TEXT_TYPE], 1.0)
        self._means: dict[str, dict[str, float]] = dict.fromkeys(self._verify_tokens, self._one)
        for arm in self._learning:
            self.derive(arm)

    def derive(self, arm: str) -> None:
        """Works out what predictions read, after cells of the arm were refreshed."""
        learning = self._learning[arm]
        learning.derive()
        means = self._means[arm] = learning.means
        means[UNKNOWN_TEXT_TYPE] = len(learning.inverse_means) / math.fsum(learning.inverse_means)

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms known to the model."""
        return tuple(self._verify_tokens)

    @property
    def learning(self) -> dict[str, Arm]:
        """By arm; an arm that verifies one token has nothing to learn. For `acceptancestate`."""
        self._catch_up()
        return self._learning

    @property
    def refinement(self) -> Refinement:
        """What is known of single keys."""
        self._catch_up()
        return self._refinement

    @property
    def samples(self) -> int:
        """Requests that were learnt from."""
        self._catch_up()
        return self._samples

    @property
    def refused_samples(self) -> int:
        """Requests whose counts cannot be."""
        self._catch_up()
        return self._refused_samples

    @property
    def drift_alarms(self) -> Sequence[DriftAlarm]:
        """The last ones, oldest first."""
        self._catch_up()
        return self._drift_alarms

    @property
    def drift_alarm_count(self) -> int:
        """All of them."""
        self._catch_up()
        return self._drift_alarm_count

    # ---- what is predicted

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

    def estimate(self, arm: str, text_type: str) -> Estimate:
        """The estimate with its uncertainty. Raises `KeyError` for an arm or type without one (no drafter, unknown)."""
        cell = self.learning[arm].cells[text_type]
        return Estimate(
            mean=cell.mean,
            standard_deviation=cell.deviation,
            samples=cell.samples,
            request_spread=cell.spread,
            prior_mean=cell.prior.mean,
            restarts=cell.epoch,
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
        return math.fsum(map(mul, request.text_probabilities or _ALIKE, learning.samples))

    def _lengths(
        self,
        arm: str,
        text_type: str,
        probabilities: Sequence[float] | None,
        output_tokens: float,
        quantile: float,
        request: RequestView | None,
    ) -> tuple[float, float]:
        width = self._verify_tokens[arm]
        if width == 1:
            return 1.0, 1.0
        self._catch_up()
        learning = self._learning[arm]
        cell = learning.cells.get(text_type)
        spread = cell.spread if cell else 0.0
        shape = (cell or learning.cells[TEXT_TYPES[0]]).shape
        if cell and probabilities is None:
            mean, variance_of_step = cell.mean, cell.step_variance
        else:
            mean = self.accept_length(arm, text_type, probabilities)
            variance_of_step = shape.variance(mean)
        if request is not None and (learning.effects.any_applied or request.refine_key is not None):
            mean = self._refined(arm, mean, text_type, request)
            variance_of_step = shape.variance(mean)
        steps = output_tokens / mean if output_tokens > mean else 1.0
        variance = spread * spread + variance_of_step / (mean * mean * steps)
        slow = mean * (1.0 - _normal_quantile(quantile) * math.sqrt(variance))
        return mean, slow if slow > 1.0 else 1.0

    def _refined(self, arm: str, mean: float, text_type: str, request: RequestView) -> float:
        """The mean with what is known of the request's context, temperature and key."""
        effect = self._learning[arm].effects.factor(text_type, request.prompt_tokens, request.temperature)
        refined = mean * effect
        if request.refine_key is not None:
            refined = 1.0 + (refined - 1.0) * self._refinement.factor(request.refine_key, arm)
        return min(max(refined, 1.0), float(self._verify_tokens[arm]))

    # ---- what is learnt

    def observe(
        self,
        arm: str,
        text_type: str,
        verify_passes: int,
        accepted_drafts: int,
        *,
        request: RequestView | None = None,
        at_s: float | None = None,
    ) -> bool:
        """Adds a finished request; returns whether the sample was possible and therefore used.

        `request` is its view, for the probabilities of its types, its context, temperature and key; `at_s` the time
        that a drift alarm gets. An unknown text type teaches nothing about any type and is not used, nor is it counted
        as refused.
        """
        self._catch_up()
        return self._learn(arm, text_type, verify_passes, accepted_drafts, request, at_s)

    def observe_later(
        self,
        arm: str,
        text_type: str,
        verify_passes: int,
        accepted_drafts: int,
        *,
        request: RequestView | None = None,
        at_s: float | None = None,
    ) -> None:
        """`observe`, put off until somebody asks for anything that depends on it: a policy may never ask."""
        self._put_off.append((arm, text_type, verify_passes, accepted_drafts, request, at_s))

    def _catch_up(self) -> None:
        """Learns what was put off, in its order."""
        if self._put_off:
            waiting, self._put_off = self._put_off, []
            for each in waiting:
                self._learn(*each)

    def _learn(
        self,
        arm: str,
        text_type: str,
        verify_passes: int,
        accepted_drafts: int,
        request: RequestView | None,
        at_s: float | None,
    ) -> bool:
        learning = self._learning.get(arm)
        if learning is None or text_type == UNKNOWN_TEXT_TYPE:
            return False
        if verify_passes <= 0 or accepted_drafts < 0 or accepted_drafts > verify_passes * (learning.width - 1):
            self._refused_samples += 1
            return False
        tokens = verify_passes + accepted_drafts
        shares = shares_of(text_type, None if request is None else request.text_probabilities)
        factor = self._factor(arm, learning, shares, request)
        seen = deviation(learning, shares, verify_passes, tokens, factor)
        self._samples += 1
        add(learning, shares, verify_passes, tokens, self.half_life_requests)
        shift = None
        if seen.tested:
            if request is not None:
                add_to_effects(learning, shares, request, seen, verify_passes)
                if request.refine_key is not None:
                    passes = float(verify_passes), seen.expected_passes
                    self._refinement.add(request.refine_key, arm, tokens, *passes, seen.variance)
            shift = shift_of(learning, shares, seen.z, verify_passes, tokens)
        if shift is None:
            self.derive(arm)
        else:
            self._restart(arm, learning, shift, at_s)
        return True

    def _factor(self, arm: str, learning: Arm, shares: Mapping[str, float], request: RequestView | None) -> float:
        """By what the request's accept length is known to differ from that of its types."""
        if request is None or not (learning.effects.any_applied or request.refine_key is not None):
            return 1.0
        mean = 1.0 / math.fsum(share / learning.cells[name].mean for name, share in shares.items())
        return self._refined(arm, mean, max(shares, key=shares.__getitem__), request) / mean

    def _restart(self, arm: str, learning: Arm, shift: Shift, at_s: float | None) -> None:
        """A drift: estimates begin anew; keys of an arm that moved as a whole do too."""
        main = max(shift.recent, key=lambda name: shift.recent[name].requests)
        before = learning.cells[main].mean
        restart(learning, shift)
        whole = len(shift.moved) == len(TEXT_TYPES)
        if whole:
            self._refinement.forget_arm(arm)
        self.derive(arm)
        self._drift_alarm_count += 1
        self._drift_alarms.append(
            DriftAlarm(
                arm=arm,
                text_types=shift.moved,
                whole_arm=whole,
                direction=shift.direction,
                accept_length_before=before,
                accept_length_after=learning.cells[main].mean,
                arm_requests=learning.requests,
                requests_since_shift=shift.requests,
                at_s=at_s,
            )
        )

    def snapshot(self) -> dict[str, dict[str, float]]:
        """Mean accept length per arm and text type, for reports."""
        self._catch_up()
        return {arm: {text_type: self._means[arm][text_type] for text_type in TEXT_TYPES} for arm in self._means}

    def _cell(self, arm: str, text_type: str) -> Cell | None:
        learning = self.learning.get(arm)
        return learning.cells.get(text_type) if learning else None


@lru_cache(maxsize=256)
def _normal_quantile(quantile: float) -> float:
    return float(NormalDist().inv_cdf(quantile))
