"""What finished requests taught of every arm, and the estimates that follow; `acceptance` predicts with them.

A finished request is learnt from at once, or when somebody asks for anything that depends on it (`observe_later`): a
simulated policy may never ask, and learning is a third of what it costs to simulate a request. The order is the same,
and so is the result.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

from selector.core.acceptancearm import AcceptancePrior, Arm
from selector.core.acceptancelearning import add, add_to_effects, deviation, restart, shares_of, shift_of
from selector.core.acceptancesums import length_weight
from selector.core.drift import DriftAlarm, Shift
from selector.core.refinement import Refinement
from selector.core.types import TEXT_TYPES, UNKNOWN_TEXT_TYPE, RequestView

HALF_LIFE_REQUESTS = 500.0
REFINE_KEYS = 4_096
_KEPT_ALARMS = 64


class AcceptanceEvidence:
    """What is known by arm: prior from the profile, updated online.

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
        add(learning, shares, verify_passes, tokens, seen.expected_passes, self.half_life_requests)
        shift = None
        if seen.tested:
            if request is not None:
                add_to_effects(learning, shares, request, seen, verify_passes)
                if request.refine_key is not None:
                    weight = length_weight(tokens)
                    counted = weight * tokens, weight * verify_passes, weight * seen.expected_passes
                    self._refinement.add(request.refine_key, arm, *counted, weight * weight * seen.variance)
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

    def _refined(self, arm: str, mean: float, text_type: str, request: RequestView) -> float:
        """The mean with what is known of the request's context, temperature and key."""
        effect = self._learning[arm].effects.factor(text_type, request.prompt_tokens, request.temperature)
        refined = mean * effect
        if request.refine_key is not None:
            refined = 1.0 + (refined - 1.0) * self._refinement.factor(request.refine_key, arm)
        return min(max(refined, 1.0), float(self._verify_tokens[arm]))
