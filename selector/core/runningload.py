"""What runs on a backend before a request is added, and the accept lengths that one decision needs: once per decision.

`prediction` says what they are for.
"""

from __future__ import annotations

import math

from selector.core.acceptance import AcceptanceModel
from selector.core.policy import BackendSpec
from selector.core.stalls import SHORT_ANSWER_FRAC, Bursts, normal_deviate, slow_factor, with_burst
from selector.core.types import BackendView, RequestView


class AcceptLengths:
    """Accept lengths that one decision needs; each is asked of the model once, however many backends run the arm.

    A slow one is reached at `quantile`. Requests already running are taken to be as long as the new one.
    """

    __slots__ = ("_acceptance", "_of_request", "_of_running", "_quantile", "_samples", "deviate", "means", "request")

    def __init__(self, request: RequestView, acceptance: AcceptanceModel, quantile: float) -> None:
        self.request = request
        self._acceptance = acceptance
        self._quantile = quantile
        self.deviate = normal_deviate(quantile)
        self._of_request: dict[str, tuple[float, float]] = {}
        self._of_running: dict[tuple[str, str], tuple[float, float]] = {}
        self._samples: dict[str, float] = {}
        self.means = acceptance.mean_accept_lengths
        """Arm → mean accept length of running requests by text type."""

    def of_request(self, arm: str) -> tuple[float, float]:
        """(mean, slow) of the new request on `arm`."""
        found = self._of_request.get(arm)
        if found is None:
            found = self._of_request[arm] = self._acceptance.of_request(arm, self.request, self._quantile)
        return found

    def samples_of_request(self, arm: str) -> float:
        """Finished requests behind `of_request`."""
        found = self._samples.get(arm)
        if found is None:
            found = self._samples[arm] = self._acceptance.samples_behind(arm, self.request)
        return found

    def of_running(self, arm: str, text_type: str) -> tuple[float, float]:
        """(mean, slow) of a running request of `text_type` on `arm`."""
        found = self._of_running.get((arm, text_type))
        if found is None:
            found = self._of_running[arm, text_type] = self._acceptance.accept_lengths(
                arm, text_type, None, self.request.expected_output_tokens, self._quantile
            )
        return found


class RunningLoad:
    """What the requests on a backend cost and want, worked out once per view."""

    __slots__ = (
        "_kinds", "_tightest_ms", "acceptance_arm", "at_depths", "least_target_ms", "present", "step_j", "step_ms",
        "view",
    )  # fmt: skip

    def __init__(self, view: BackendView, spec: BackendSpec) -> None:
        self.view = view
        self.at_depths = {each.arm: RunningLoad(view, each) for each in spec.depths}
        """The same at each depth that the backend's engine may choose, by the arm of that depth."""
        self.acceptance_arm = spec.acceptance_arm(view.settings)
        self.step_ms, self.step_j = 0.0, 0.0
        if view.batch:
            self.step_ms, self.step_j = spec.cost.step.step(view.batch, view.mean_context_tokens)
        self.present: tuple[tuple[str, float], ...] = ((self.acceptance_arm, self.step_ms),)
        """(arm as acceptance knows it, step in ms) of what runs now; each that it may be, where the engine chooses."""
        if self.at_depths:
            depths = [self.at_depths[each.arm] for each in spec.depths_at(view.batch)]
            self.present = tuple([(each.acceptance_arm, each.step_ms) for each in depths])
            for each in self.at_depths.values():
                each.present = self.present
        targets_ms = [target_ms for group in view.groups if (target_ms := group.tbt_target_ms) is not None]
        self.least_target_ms = min(targets_ms, default=math.inf)
        """The tightest target of all."""
        self._tightest_ms: tuple[tuple[str, float], ...] | None = None
        self._kinds: tuple[tuple[str, int], ...] | None = None

    @property
    def tightest_ms(self) -> tuple[tuple[str, float], ...]:
        """The tightest target of each text type that has one; worked out when first asked for."""
        if self._tightest_ms is None:
            tightest_ms: dict[str, float] = {}
            for group in self.view.groups:
                target_ms = group.tbt_target_ms
                if target_ms is not None and target_ms < tightest_ms.get(group.text_type, math.inf):
                    tightest_ms[group.text_type] = target_ms
            self._tightest_ms = tuple(tightest_ms.items())
        return self._tightest_ms

    @property
    def requests_of(self) -> tuple[tuple[str, int], ...]:
        """Requests by text type, of those of which it is known; counted when first asked for."""
        if self._kinds is None:
            requests_of: dict[str, int] = {}
            for group in self.view.groups:
                requests_of[group.text_type] = requests_of.get(group.text_type, 0) + group.requests
            self._kinds = tuple(requests_of.items())
        return self._kinds

    def tbt_ms(
        self, text_type: str, lengths: AcceptLengths, step_ms: float, prefill_frac: float, bursts: Bursts
    ) -> tuple[float, float]:
        """(mean, at the quantile) of a running request of `text_type` at steps of `step_ms`."""
        return _running_tbt_ms(self.acceptance_arm, text_type, lengths, step_ms, prefill_frac, bursts)

    def mean_tbt_now_ms(
        self, text_type: str, lengths: AcceptLengths, prefill_frac: float, bursts: Bursts, turns: float
    ) -> float:
        """Mean of a running request of `text_type` at the present steps, with `turns` busy servers on the GPU.

        The least of them where the engine chooses its depth.
        """
        return min(
            [
                _running_tbt_ms(arm, text_type, lengths, turns * step_ms, prefill_frac, bursts)[0]
                for arm, step_ms in self.present
            ]
        )

    def tokens_per_step(self, lengths: AcceptLengths, unknown_accept: float) -> float:
        """Accepted tokens of one step at mean accept lengths.

        Foreign requests, of which nothing is known, have `unknown_accept`.
        """
        requests_of = self.requests_of
        tokens = (self.view.batch - sum([requests for _, requests in requests_of])) * unknown_accept
        means = lengths.means(self.acceptance_arm)
        for text_type, requests in requests_of:
            tokens += requests * means[text_type]
        return tokens


def _running_tbt_ms(
    arm: str, text_type: str, lengths: AcceptLengths, step_ms: float, prefill_frac: float, bursts: Bursts
) -> tuple[float, float]:
    mean, slow = lengths.of_running(arm, text_type)
    short_tokens = SHORT_ANSWER_FRAC * lengths.request.expected_output_tokens
    work_s = short_tokens * step_ms / (1e3 * mean)
    factor = slow_factor(lengths.deviate, 1.0 - slow / mean, bursts.dispersion_s, prefill_frac, work_s)
    burst_ms = 1e3 * prefill_frac * bursts.excess_s / short_tokens
    return with_burst(step_ms / ((1.0 - prefill_frac) * mean), factor, burst_ms, lengths.deviate)
