"""What one more request on a backend would mean: its own TBT, the targets of those already there, and joules.

With b requests on the backend, n of them ours in groups g of one text type and target, and the new request x:

    feasible for x      T(b + 1, c') · s(x) / (a(x) · (1 − ρ)) ≤ target(x)      a: mean accept length
    keeps the others    T(b + 1, c') · s(g) / (a(g) · (1 − ρ)) ≤ target(g)      for every g with a target
    marginal energy     [A(b + 1, c') − A(b, c)] / a(x)                        joules per accepted token of x

ρ is the share of time the backend spends on prefill instead of decode, s the factor by which a request at the quantile
q is slower than the mean, for its accept length and for bursts of prefill (`stalls`). Servers that share a GPU take
turns: with k of them busy, T is k times as long.

A backend whose engine chooses its draft depth is predicted at each depth, and taken to be at the one of the least
energy per accepted token of all its requests where all of them meet their targets, else at the fastest.
"""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

from selector.core.acceptance import AcceptanceModel
from selector.core.policy import BackendSpec
from selector.core.runningload import AcceptLengths, RunningLoad
from selector.core.stalls import (
    NO_BURSTS,
    SHORT_ANSWER_FRAC,
    Bursts,
    miss_probability,
    slow_factor,
    with_burst,
)
from selector.core.types import BackendView, Candidate, RequestView, make_candidate

_FAULTS = ("no free place", "misses its target", "breaks a running target")


class Disturbed(NamedTuple):
    """A busy server that shares a GPU with one that a request would wake."""

    load: RunningLoad
    prefill_frac: float
    turns: int
    """Busy servers of its GPU before, itself included."""


class Prediction(NamedTuple):
    """One backend with the request added. A tuple, since one is made per backend and decision and is made fast."""

    backend: str
    arm: str
    batch: int
    """Requests on the backend with the new one."""
    accept_length: float
    tbt_ms: float
    """TBT of the request at the quantile."""
    mean_tbt_ms: float
    marginal_j_per_accepted_token: float
    pace_ms: float
    """Time of a step with the pauses for prefill."""
    meets_target: bool
    keeps_others: bool
    fits: bool
    """A place in the batch and in the KV cache is free; otherwise the request waits in the backend's queue."""
    feasible: bool
    """It fits, meets its own target and breaks nobody's."""
    acceptance_arm: str
    """The arm as the acceptance model knows it at the live settings in force there."""
    lengths: AcceptLengths
    """What was asked of the acceptance model for the request."""
    load: RunningLoad
    """What runs there without it."""
    prefill_frac: float
    bursts: Bursts
    turns: float
    """Busy servers of the GPU with the request there; one that drains counts for half."""
    disturbed: tuple[Disturbed, ...] = ()
    """Busy servers of the GPU that take one more turn because of the request: none where its own is busy already."""

    @property
    def missed(self) -> float:
        """How many more requests are expected to miss their targets with the request there; its own is one of them.

        Those on servers that would have to take turns with it, and do not yet, count too.
        """
        lengths, load, request = self.lengths, self.load, self.lengths.request
        missed = 0.0
        if request.tbt_target_ms is not None:
            missed = miss_probability(self.mean_tbt_ms, self.tbt_ms, request.tbt_target_ms, lengths.deviate)
            missed = min(_HOPELESS, missed)
        after_ms = self.pace_ms * (1.0 - self.prefill_frac)
        missed += _more_missed(load, lengths, (self.turns * load.step_ms, after_ms), self.prefill_frac, self.bursts)
        for other in self.disturbed:
            steps_ms = other.turns * other.load.step_ms, (other.turns + 1) * other.load.step_ms
            missed += _more_missed(other.load, lengths, steps_ms, other.prefill_frac, self.bursts)
        return missed

    @property
    def marginal_tokens_per_s(self) -> float:
        """By how much the request would raise the accepted tokens per second of the backend."""
        return goodput(self.load, self.lengths, self, self.prefill_frac)[1]

    @property
    def acceptance_samples(self) -> float:
        """Finished requests behind the estimate of `accept_length`; hardly any prediction is asked for them."""
        return self.lengths.samples_of_request(self.acceptance_arm)

    def candidate(self) -> Candidate:
        """The prediction as it goes into a decision, with what stands against it in words."""
        return make_candidate(
            backend=self.backend,
            arm=self.arm,
            feasible=self.feasible,
            tbt_ms=self.tbt_ms,
            marginal_j_per_accepted_token=self.marginal_j_per_accepted_token,
            note=_AGAINST[self.fits, self.meets_target, self.keeps_others],
            accept_length=self.accept_length,
            acceptance_samples=self.acceptance_samples,
        )


_HOPELESS = 0.95
"""Beyond this probability of a miss the request counts as missed alike everywhere."""
_AGAINST = {
    flags: ", ".join(words for holds, words in zip(flags, _FAULTS, strict=True) if not holds)
    for flags in product((True, False), repeat=len(_FAULTS))
}


def predict(
    request: RequestView,
    view: BackendView,
    spec: BackendSpec,
    acceptance: AcceptanceModel,
    *,
    quantile: float,
    prefill_frac: float = 0.0,
    bursts: Bursts = NO_BURSTS,
    turns: int = 1,
) -> Prediction:
    """Predicts `request` on one backend.

    `prefill_frac` is ρ above, in [0, 1); `turns` how many servers of its GPU are busy
    with the request there.
    """
    lengths = AcceptLengths(request, acceptance, quantile)
    return predict_with(request, RunningLoad(view, spec), spec, lengths, prefill_frac, bursts, turns)


def predict_with(
    request: RequestView,
    load: RunningLoad,
    spec: BackendSpec,
    lengths: AcceptLengths,
    prefill_frac: float,
    bursts: Bursts,
    turns: float = 1,
) -> Prediction:
    """`predict` from what is known of the backend's view already, and accept lengths shared by all backends."""
    if load.at_depths:
        return _at_own_depth(request, load, spec, lengths, prefill_frac, bursts, turns)
    view = load.view
    batch = view.batch + 1
    output_tokens = request.expected_output_tokens
    kv_after = view.kv_tokens + request.prompt_tokens + 0.5 * output_tokens
    cost = spec.cost
    step_ms, step_j = cost.step.step(batch, kv_after / batch)
    marginal_j = step_j - load.step_j - 1e-3 * cost.idle.served_w * (step_ms - load.step_ms)
    accept, slow = lengths.of_request(load.acceptance_arm)
    step_ms *= turns
    pace_ms = step_ms / (1.0 - prefill_frac)
    mean_tbt_ms = pace_ms / accept
    short_tokens = SHORT_ANSWER_FRAC * output_tokens
    dispersion_s, excess_s = bursts
    work_s = short_tokens * step_ms / (1e3 * accept)
    factor = slow_factor(lengths.deviate, 1.0 - slow / accept, dispersion_s, prefill_frac, work_s)
    burst_ms = 1e3 * prefill_frac * excess_s / short_tokens
    mean_tbt_ms, tbt_ms = with_burst(mean_tbt_ms, factor, burst_ms, lengths.deviate)
    target_ms = request.tbt_target_ms
    meets_target = target_ms is None or tbt_ms <= target_ms
    keeps_others = keeps_targets(load, lengths, step_ms, prefill_frac, bursts, turns)
    fits = batch <= view.max_running_requests and kv_after <= view.max_kv_tokens
    return Prediction(
        spec.name,
        spec.arm,
        batch,
        accept,
        tbt_ms,
        mean_tbt_ms,
        marginal_j / accept,
        pace_ms,
        meets_target,
        keeps_others,
        fits,
        meets_target and keeps_others and fits,
        load.acceptance_arm,
        lengths,
        load,
        prefill_frac,
        bursts,
        turns,
    )


def _at_own_depth(
    request: RequestView,
    load: RunningLoad,
    spec: BackendSpec,
    lengths: AcceptLengths,
    prefill_frac: float,
    bursts: Bursts,
    turns: float,
) -> Prediction:
    """The prediction at the depth that the backend's engine is taken to choose with the request there."""
    best: Prediction | None = None
    best_rank = (True, math.inf)
    for each in spec.depths_at(load.view.batch + 1):
        at_depth = load.at_depths[each.arm]
        found = predict_with(request, at_depth, each, lengths, prefill_frac, bursts, turns)
        rank = True, found.tbt_ms
        if found.meets_target and found.keeps_others:
            kv_after = load.view.kv_tokens + request.prompt_tokens + 0.5 * request.expected_output_tokens
            _, step_j = each.cost.step.step(found.batch, kv_after / found.batch)
            tokens = at_depth.tokens_per_step(lengths, found.accept_length) + found.accept_length
            rank = False, step_j / tokens
        if best is None or rank < best_rank:
            best, best_rank = found, rank
    assert best is not None
    return best._replace(arm=spec.arm)


def keeps_targets(
    load: RunningLoad, lengths: AcceptLengths, step_ms: float, prefill_frac: float, bursts: Bursts, turns: float = 1
) -> bool:
    """Whether the requests that run on a backend meet their targets at steps of `step_ms`.

    What is lost cannot be broken: a target that the mean TBT of its text type is beyond at the present steps, with
    `turns` busy servers on the GPU, stands in nobody's way.
    """
    pace_ms = step_ms / (1.0 - prefill_frac)
    burst_ms = 1e3 * prefill_frac * bursts.excess_s / (SHORT_ANSWER_FRAC * lengths.request.expected_output_tokens)
    # Twice as slow as the mean, at one token a step, and still within a target: no need for a further look.
    loose_ms = 2.0 * (pace_ms + burst_ms)
    if loose_ms <= load.least_target_ms:
        return True
    for text_type, tightest_ms in load.tightest_ms:
        if loose_ms <= tightest_ms:
            continue
        _, slow_ms = load.tbt_ms(text_type, lengths, step_ms, prefill_frac, bursts)
        if slow_ms <= tightest_ms:
            continue
        now_ms = load.mean_tbt_now_ms(text_type, lengths, prefill_frac, bursts, turns)
        for group in load.view.groups:  # with the tightest lost, a looser one may still be kept
            target_ms = group.tbt_target_ms
            if group.text_type == text_type and target_ms is not None and now_ms <= target_ms < slow_ms:
                return False
    return True


def _more_missed(
    load: RunningLoad, lengths: AcceptLengths, steps_ms: tuple[float, float], prefill_frac: float, bursts: Bursts
) -> float:
    """How many more who run are expected to miss their targets at steps of the second length than of the first."""
    missed = 0.0
    for group in load.view.groups:
        if group.tbt_target_ms is None:
            continue
        before, after = [
            miss_probability(
                *load.tbt_ms(group.text_type, lengths, step_ms, prefill_frac, bursts),
                group.tbt_target_ms,
                lengths.deviate,
            )
            for step_ms in steps_ms
        ]
        missed += group.requests * (after - before)
    return missed


def goodput(load: RunningLoad, lengths: AcceptLengths, found: Prediction, prefill_frac: float) -> tuple[float, float]:
    """(accepted tokens per second of the backend with the request, by how much the request raises them).

    At mean accept lengths; the second is below zero where the request slows the others by more than it gets.
    """
    load = load.at_depths.get(found.acceptance_arm, load)
    before = load.view.batch
    tokens = load.tokens_per_step(lengths, found.accept_length)
    after_per_s = 1e3 * (tokens + found.accept_length) / found.pace_ms
    before_per_s = 1e3 * tokens * (1.0 - prefill_frac) / load.step_ms if before else 0.0
    return after_per_s, after_per_s - before_per_s
