"""What one more request on a backend would mean: its own TBT, the targets of those already there, and joules.

With b requests on the backend, n of them ours in groups g of one text type and target, and the new request x:

    feasible for x      T(b + 1, c') · s(x) / (a(x) · (1 − ρ)) ≤ target(x)      a: mean accept length
    keeps the others    T(b + 1, c') · s(g) / (a(g) · (1 − ρ)) ≤ target(g)      for every g with a target
    marginal energy     [A(b + 1, c') − A(b, c)] / a(x)                        joules per accepted token of x

ρ is the share of time the backend spends on prefill instead of decode, s the factor by which a request at the quantile q
is slower than the mean, for its accept length and for bursts of prefill (`stalls`).
"""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

from selector.core.acceptance import AcceptanceModel
from selector.core.policy import BackendSpec
from selector.core.stalls import SHORT_ANSWER_FRAC, normal_deviate, slow_factor
from selector.core.types import BackendView, Candidate, RequestView

_FAULTS = ("no free place", "misses its target", "breaks a running target")


class Prediction(NamedTuple):
    """One backend with the request added. A tuple, since one is made per backend and decision and is made fast."""

    backend: str
    arm: str
    batch: int
    """Requests on the backend with the new one."""
    accept_length: float
    tbt_ms: float
    """TBT of the request at the quantile."""
    marginal_j_per_accepted_token: float
    tokens_per_s: float
    """Accepted tokens per second of the whole backend, the request included, at mean accept lengths."""
    marginal_tokens_per_s: float
    """By how much the request raises `tokens_per_s`; below zero where it slows the others by more than it gets."""
    meets_target: bool
    keeps_others: bool
    fits: bool
    """A place in the batch and in the KV cache is free; otherwise the request waits in the backend's queue."""
    feasible: bool
    """It fits, meets its own target and breaks nobody's."""

    def candidate(self) -> Candidate:
        """The prediction as it goes into a decision, with what stands against it in words."""
        return Candidate(
            backend=self.backend,
            arm=self.arm,
            feasible=self.feasible,
            tbt_ms=self.tbt_ms,
            marginal_j_per_accepted_token=self.marginal_j_per_accepted_token,
            note=_AGAINST[self.fits, self.meets_target, self.keeps_others],
        )


_AGAINST = {
    flags: ", ".join(words for holds, words in zip(flags, _FAULTS, strict=True) if not holds)
    for flags in product((True, False), repeat=len(_FAULTS))
}


class AcceptLengths:
    """Accept lengths that one decision needs; each is asked of the model once, however many backends run the arm.

    A slow one is reached at `quantile`. Requests already running are taken to be as long as the new one.
    """

    __slots__ = ("_acceptance", "_of_request", "_of_running", "_quantile", "_request", "deviate", "means")

    def __init__(self, request: RequestView, acceptance: AcceptanceModel, quantile: float) -> None:
        self._request = request
        self._acceptance = acceptance
        self._quantile = quantile
        self.deviate = normal_deviate(quantile)
        self._of_request: dict[str, tuple[float, float]] = {}
        self._of_running: dict[tuple[str, str], tuple[float, float]] = {}
        self.means = acceptance.mean_accept_lengths
        """Arm → mean accept length of running requests by text type."""

    def of_request(self, arm: str) -> tuple[float, float]:
        """(mean, slow) of the new request on `arm`."""
        found = self._of_request.get(arm)
        if found is None:
            request = self._request
            found = self._of_request[arm] = self._acceptance.accept_lengths(
                arm, request.text_type, request.text_probabilities, request.expected_output_tokens, self._quantile
            )
        return found

    def of_running(self, arm: str, text_type: str) -> tuple[float, float]:
        """(mean, slow) of a running request of `text_type` on `arm`."""
        found = self._of_running.get((arm, text_type))
        if found is None:
            found = self._of_running[arm, text_type] = self._acceptance.accept_lengths(
                arm, text_type, None, self._request.expected_output_tokens, self._quantile
            )
        return found


class RunningLoad:
    """What the requests on a backend cost and want, worked out once per view."""

    __slots__ = ("idle_j_per_ms", "known", "requests_of", "step_j", "step_ms", "tightest_ms", "view")

    def __init__(self, view: BackendView, spec: BackendSpec) -> None:
        self.view = view
        self.idle_j_per_ms = spec.cost.idle.watts(1) / 1e3
        self.step_ms, self.step_j = 0.0, 0.0
        if view.batch:
            self.step_ms, self.step_j = spec.cost.step.step(view.batch, view.mean_context_tokens)
        self.known = 0
        requests_of: dict[str, int] = {}
        tightest_ms: dict[str, float] = {}
        for group in view.groups:
            text_type, target_ms = group.text_type, group.tbt_target_ms
            self.known += group.requests
            requests_of[text_type] = requests_of.get(text_type, 0) + group.requests
            if target_ms is not None and target_ms < tightest_ms.get(text_type, math.inf):
                tightest_ms[text_type] = target_ms
        self.requests_of = tuple(requests_of.items())
        self.tightest_ms = tuple(tightest_ms.items())


def predict(
    request: RequestView,
    view: BackendView,
    spec: BackendSpec,
    acceptance: AcceptanceModel,
    *,
    quantile: float,
    prefill_frac: float = 0.0,
    dispersion_s: float = 0.0,
) -> Prediction:
    """Predicts `request` on one backend. `prefill_frac` is ρ above, in [0, 1); `dispersion_s` the D of `stalls`."""
    lengths = AcceptLengths(request, acceptance, quantile)
    return predict_with(request, RunningLoad(view, spec), spec, lengths, prefill_frac, dispersion_s)


def predict_with(
    request: RequestView,
    load: RunningLoad,
    spec: BackendSpec,
    lengths: AcceptLengths,
    prefill_frac: float,
    dispersion_s: float,
) -> Prediction:
    """`predict` from what is known of the backend's view already, and accept lengths shared by all backends."""
    view, arm = load.view, spec.arm
    before = view.batch
    batch = before + 1
    kv_after = view.kv_tokens + request.prompt_tokens + 0.5 * request.expected_output_tokens
    step_ms, step_j = spec.cost.step.step(batch, kv_after / batch)
    marginal_j = step_j - load.step_j - load.idle_j_per_ms * (step_ms - load.step_ms)
    accept, slow = lengths.of_request(arm)
    decode_frac = 1.0 - prefill_frac
    pace_ms = step_ms / decode_frac
    deviate = lengths.deviate
    steps_ms = SHORT_ANSWER_FRAC * request.expected_output_tokens * step_ms / 1e3
    tbt_ms = pace_ms / accept * slow_factor(deviate, 1.0 - slow / accept, dispersion_s, prefill_frac, steps_ms / accept)
    keeps_others = True
    for text_type, target_ms in load.tightest_ms:
        # Even twice as slow as the mean and at one token a step within the target: no need for a further look.
        if 2.0 * pace_ms > target_ms:
            mean, slow = lengths.of_running(arm, text_type)
            factor = slow_factor(deviate, 1.0 - slow / mean, dispersion_s, prefill_frac, steps_ms / mean)
            if pace_ms / mean * factor > target_ms:
                keeps_others = False
                break
    # Foreign requests, of which nothing is known, are taken to accept like the new one.
    tokens_before = (before - load.known) * accept
    means = lengths.means(arm)
    for text_type, requests in load.requests_of:
        tokens_before += requests * means[text_type]
    tokens_per_s = 1e3 * (tokens_before + accept) / pace_ms
    tokens_per_s_before = 1e3 * tokens_before * decode_frac / load.step_ms if before else 0.0
    meets_target = request.tbt_target_ms is None or tbt_ms <= request.tbt_target_ms
    fits = batch <= view.max_running_requests and kv_after <= view.max_kv_tokens
    return Prediction(
        spec.name,
        arm,
        batch,
        accept,
        tbt_ms,
        marginal_j / accept,
        tokens_per_s,
        tokens_per_s - tokens_per_s_before,
        meets_target,
        keeps_others,
        fits,
        meets_target and keeps_others and fits,
    )
