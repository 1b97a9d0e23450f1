"""A prediction follows from the step costs and accept lengths as its module says."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist

import pytest

from selector.core.acceptance import step_variance
from selector.core.prediction import Prediction, goodput, predict
from selector.core.runningload import AcceptLengths, RunningLoad
from selector.core.stalls import SHORT_ANSWER_FRAC, Bursts, normal_deviate, slow_factor
from selector.core.types import TEXT_TYPES, BackendView, LoadGroup, RequestView
from tests.fleets import acceptance_model, arm_cost, backend_spec, backend_view, request_view

IDLE_W = 95.0
ACCEPTANCE = acceptance_model()
SPEC = backend_spec("b0", "dspark-8")
COST = arm_cost("dspark-8")


def predicted(
    request: RequestView, view: BackendView | None = None, *, quantile: float = 0.9, prefill_frac: float = 0.0
) -> Prediction:
    return predict(request, view or backend_view(SPEC), SPEC, ACCEPTANCE, quantile=quantile, prefill_frac=prefill_frac)


def busy(batch: int, *groups: LoadGroup, context_tokens: float = 700.0) -> BackendView:
    return backend_view(SPEC, batch=batch, groups=groups, context_tokens=context_tokens)


def group(requests: int, text_type: str = "code", tbt_target_ms: float | None = None) -> LoadGroup:
    return LoadGroup(text_type=text_type, tbt_target_ms=tbt_target_ms, requests=requests)


def test_the_tbt_at_the_median_is_step_time_over_accept_length() -> None:
    # 575 + 250 / 2 = 700 tokens of context, where the made-up costs were measured.
    prediction = predicted(request_view(prompt_tokens=575), quantile=0.5)
    assert prediction.batch == 1
    assert prediction.accept_length == 4.5
    assert prediction.tbt_ms == pytest.approx(7.1 / 4.5)


def test_a_higher_quantile_is_slower_by_the_spread_of_requests_and_steps() -> None:
    request = request_view(prompt_tokens=575, expected_output_tokens=250.0)
    variance = 0.1**2 + step_variance(4.5, 8) / (4.5 * 250.0)
    factor = 1.0 + NormalDist().inv_cdf(0.9) * variance**0.5
    assert predicted(request).tbt_ms == pytest.approx(7.1 / 4.5 * factor, rel=1e-3)
    assert predicted(request).mean_tbt_ms == pytest.approx(7.1 / 4.5)
    assert predicted(request, quantile=0.99).tbt_ms > predicted(request).tbt_ms


def test_the_step_is_that_of_the_batch_with_the_request_at_the_mean_context() -> None:
    request = request_view(prompt_tokens=1_000, expected_output_tokens=400.0)
    prediction = predicted(request, busy(15, context_tokens=640.0), quantile=0.5)
    step_ms, _ = COST.step.step(16, (15 * 640.0 + 1_200.0) / 16)
    assert prediction.batch == 16
    assert prediction.tbt_ms == pytest.approx(step_ms / 4.5)


def test_the_marginal_energy_is_active_energy_after_less_before_per_token() -> None:
    alone = predicted(request_view(prompt_tokens=575))
    assert alone.marginal_j_per_accepted_token == pytest.approx((3.4 - IDLE_W * 7.1e-3) / 4.5)
    eighth = predicted(request_view(prompt_tokens=575), busy(7))
    before_ms, before_j = COST.step.step(7, 700.0)
    active_after, active_before = 4.9 - IDLE_W * 7.6e-3, before_j - IDLE_W * before_ms / 1e3
    assert eighth.marginal_j_per_accepted_token == pytest.approx((active_after - active_before) / 4.5)


def test_prefill_stretches_time_and_leaves_energy() -> None:
    plain, stalled = predicted(request_view()), predicted(request_view(), prefill_frac=0.25)
    assert stalled.tbt_ms == pytest.approx(plain.tbt_ms / 0.75)
    assert stalled.pace_ms == pytest.approx(plain.pace_ms / 0.75)
    assert stalled.marginal_j_per_accepted_token == plain.marginal_j_per_accepted_token


def test_bursts_of_prefill_delay_beyond_its_share() -> None:
    request = request_view(prompt_tokens=575, expected_output_tokens=250.0)
    steady = predicted(request, prefill_frac=0.25)
    bursty = predict(request, backend_view(SPEC), SPEC, ACCEPTANCE, quantile=0.9, prefill_frac=0.25, bursts=Bursts(0.1))
    decode_s = SHORT_ANSWER_FRAC * 250.0 / 4.5 * 7.1e-3
    mean, slow = ACCEPTANCE.accept_lengths("dspark-8", "code", None, 250.0, 0.9)
    factor = slow_factor(normal_deviate(0.9), 1.0 - slow / mean, 0.1, 0.25, decode_s)
    assert bursty.tbt_ms == pytest.approx(steady.mean_tbt_ms * factor)
    assert bursty.tbt_ms > 1.1 * steady.tbt_ms
    assert bursty.pace_ms == steady.pace_ms


def test_the_rest_of_a_burst_is_prefilled_before_the_next_token() -> None:
    """Between nothing and 0.25 · 2 s of prefill more within a short answer of 250 / 3 tokens."""
    request = request_view(prompt_tokens=575, expected_output_tokens=250.0)
    calm = predicted(request, prefill_frac=0.25)
    bursty = predict(
        request, backend_view(SPEC), SPEC, ACCEPTANCE, quantile=0.9, prefill_frac=0.25, bursts=Bursts(0.0, 2.0)
    )
    burst_ms = 1e3 * 0.25 * 2.0 / (SHORT_ANSWER_FRAC * 250.0)
    assert bursty.mean_tbt_ms == pytest.approx(calm.mean_tbt_ms + 0.5 * burst_ms)
    assert bursty.mean_tbt_ms < bursty.tbt_ms < calm.tbt_ms + burst_ms
    idle = predict(request, backend_view(SPEC), SPEC, ACCEPTANCE, quantile=0.9, bursts=Bursts(0.0, 2.0))
    assert idle.tbt_ms == predicted(request).tbt_ms, "a backend that gets no prompts feels no burst"


def test_servers_that_take_turns_are_slower_for_the_same_energy() -> None:
    request = request_view(tbt_target_ms=3.0)
    alone = predicted(request)
    shared = predict(request, backend_view(SPEC), SPEC, ACCEPTANCE, quantile=0.9, turns=2)
    assert shared.tbt_ms == pytest.approx(2.0 * alone.tbt_ms, rel=0.01)
    assert shared.marginal_j_per_accepted_token == alone.marginal_j_per_accepted_token
    assert (alone.feasible, shared.feasible) == (True, False)


def test_goodput_counts_each_request_at_its_own_accept_length() -> None:
    # 4 romansh, 2 code and 1 of whom nothing is known, which counts like the new one.
    view = busy(7, group(4, "romansh"), group(2, "code", 50.0))
    request = request_view(prompt_tokens=575, text_type="math")
    tokens_before = 4 * 1.6 + 2 * 4.5 + 1 * 4.5
    before_ms, _ = COST.step.step(7, 700.0)
    lengths = AcceptLengths(request, ACCEPTANCE, 0.9)
    after_per_s, gain_per_s = goodput(RunningLoad(view, SPEC), lengths, predicted(request, view), 0.0)
    assert after_per_s == pytest.approx(1e3 * (tokens_before + 4.5) / 7.6)
    assert gain_per_s == pytest.approx(1e3 * (tokens_before + 4.5) / 7.6 - 1e3 * tokens_before / before_ms)


def test_probabilities_mix_text_types_by_time_per_token() -> None:
    half = tuple(0.5 if text_type in ("code", "romansh") else 0.0 for text_type in TEXT_TYPES)
    prediction = predicted(request_view(text_type="code", text_probabilities=half))
    assert prediction.accept_length == pytest.approx(1.0 / (0.5 / 4.5 + 0.5 / 1.6))


def test_a_target_is_met_up_to_and_including_the_predicted_tbt() -> None:
    request = request_view()
    tbt_ms = predicted(request).tbt_ms
    assert predicted(request).meets_target
    assert predicted(replace(request, tbt_target_ms=tbt_ms)).feasible
    missed = predicted(replace(request, tbt_target_ms=tbt_ms * 0.999))
    assert (missed.meets_target, missed.keeps_others, missed.fits, missed.feasible) == (False, True, True, False)
    assert missed.candidate().note == "misses its target"


def test_a_running_target_is_kept_up_to_and_including_the_tbt_it_would_get() -> None:
    request = request_view(text_type="math")
    # The tenth request of romansh would get this TBT with the new one beside it, were it asked for.
    like_romansh = predicted(replace(request, text_type="romansh"), busy(9, group(9, "romansh")))
    view = busy(9, group(5, "romansh"), group(4, "romansh", like_romansh.tbt_ms))
    assert predicted(request, view).feasible
    broken = predicted(request, busy(9, group(5, "romansh"), group(4, "romansh", like_romansh.tbt_ms * 0.999)))
    assert (broken.meets_target, broken.keeps_others, broken.fits, broken.feasible) == (True, False, True, False)
    assert broken.candidate().note == "breaks a running target"


def test_the_tightest_of_several_targets_of_a_text_type_counts() -> None:
    request = request_view()
    tight, loose = group(1, "romansh", 4.8), group(1, "romansh", 300.0)
    assert not predicted(request, busy(2, tight, loose)).keeps_others
    assert not predicted(request, busy(2, loose, tight)).keeps_others
    assert predicted(request, busy(2, loose)).keeps_others


ROMANSH_NOW_MS = COST.step.step(9, 700.0)[0] / 1.6
"""Mean TBT of nine requests of Romansh before another comes."""


@pytest.mark.parametrize(
    ("target_ms", "kept"), [(0.5 * ROMANSH_NOW_MS, True), (0.999 * ROMANSH_NOW_MS, True), (ROMANSH_NOW_MS, False)]
)
def test_what_is_lost_already_cannot_be_broken(target_ms: float, kept: bool) -> None:
    """A target that the mean is beyond without the new request."""
    assert predicted(request_view(), busy(9, group(9, "romansh", target_ms))).keeps_others == kept


def test_a_looser_target_is_kept_though_the_tightest_of_its_type_is_lost() -> None:
    lost, kept, loose = (group(3, "romansh", target_ms) for target_ms in (1.0, 1.01 * ROMANSH_NOW_MS, 300.0))
    assert not predicted(request_view(), busy(9, lost, kept, loose)).keeps_others
    assert predicted(request_view(), busy(6, lost, loose)).keeps_others
    at_most = predicted(request_view(text_type="romansh"), busy(6, group(6, "romansh"))).tbt_ms
    assert predicted(request_view(), busy(6, lost, group(3, "romansh", at_most))).keeps_others, "up to and including"
    code = group(3, "code", 1.01 * ROMANSH_NOW_MS)
    assert predicted(request_view(), busy(9, lost, code, loose)).keeps_others, "with drafts that are accepted"


def test_a_target_lost_to_prefill_or_to_taking_turns_is_lost() -> None:
    """The mean is 1.43 of what it is without a prefill share of 0.3."""
    for by, kept in ((1.4, True), (1.5, False)):
        view = busy(9, group(9, "romansh", by * ROMANSH_NOW_MS))
        assert predict(request_view(), view, SPEC, ACCEPTANCE, quantile=0.9, turns=2).keeps_others
        assert predict(request_view(), view, SPEC, ACCEPTANCE, quantile=0.9, prefill_frac=0.3).keeps_others == kept


def chance_over(target_ms: float, mean_ms: float, slow_ms: float) -> float:
    """Of a normal time with these at the mean and at nine tenths."""
    return 1.0 - NormalDist(mean_ms, (slow_ms - mean_ms) / NormalDist().inv_cdf(0.9)).cdf(target_ms)


def test_the_request_itself_counts_as_missed_by_its_chance_to_be() -> None:
    request = request_view()
    found = predicted(request)
    assert found.missed == 0.0, "without a target"
    at_quantile = predicted(replace(request, tbt_target_ms=found.tbt_ms))
    assert at_quantile.missed == pytest.approx(0.1)
    at_mean = predicted(replace(request, tbt_target_ms=found.mean_tbt_ms))
    assert at_mean.missed == pytest.approx(0.5)
    hopeless = [predicted(replace(request, tbt_target_ms=by * found.mean_tbt_ms)) for by in (0.7, 0.1)]
    assert [each.missed for each in hopeless] == [0.95, 0.95], "alike everywhere"


def test_of_those_who_run_there_only_what_is_missed_because_of_it_counts() -> None:
    """Five of romansh and two of code with targets, and others without."""
    before_ms, after_ms = (COST.step.step(batch, 700.0)[0] for batch in (20, 21))
    targets_ms = {"romansh": after_ms / 1.6, "code": 1.02 * after_ms / 4.5}
    groups = (
        group(5, "romansh", targets_ms["romansh"]),
        group(2, "code", targets_ms["code"]),
        group(13, "math"),
    )
    request = request_view(prompt_tokens=575)
    expected = 0.0
    for requests, name in ((5, "romansh"), (2, "code")):
        accept, slow = ACCEPTANCE.accept_lengths("dspark-8", name, None, 250.0, 0.9)
        before, after = (
            chance_over(targets_ms[name], step_ms / accept, step_ms / accept * (2.0 - slow / accept))
            for step_ms in (before_ms, after_ms)
        )
        expected += requests * (after - before)
    assert 0.0 < expected < 1.0
    assert predicted(request, busy(20, *groups)).missed == pytest.approx(expected)


@pytest.mark.parametrize(
    ("prefill_frac", "turns", "target_ms", "missed"),
    [
        # Forty step in 6.42 ms without drafts, and in 6.46 ms with one more.
        (0.0, 1, 6.44, 40.0),
        (0.0, 1, 6.40, 0.0),
        (0.0, 1, 6.50, 0.0),
        (0.25, 1, 8.58, 40.0),
        (0.25, 1, 8.50, 0.0),
        (0.25, 1, 10.0, 0.0),
        (0.0, 2, 12.88, 40.0),
        (0.0, 2, 10.0, 0.0),
    ],
)
def test_prefill_and_turns_slow_those_who_run_there_before_and_after(
    prefill_frac: float, turns: int, target_ms: float, missed: float
) -> None:
    spec = backend_spec("b0", "none")
    view = backend_view(spec, batch=40, groups=[group(40, "code", target_ms)])
    found = predict(request_view(), view, spec, ACCEPTANCE, quantile=0.9, prefill_frac=prefill_frac, turns=turns)
    assert found.missed == missed


def test_a_place_in_the_batch_and_in_the_cache_must_be_free() -> None:
    request = request_view(prompt_tokens=575)
    assert predicted(request, busy(63)).fits
    full = predicted(request, busy(64))
    assert (full.fits, full.feasible, full.candidate().note) == (False, False, "no free place")
    assert predicted(request, replace(busy(9), max_kv_tokens=7_000)).fits
    assert not predicted(request, replace(busy(9), max_kv_tokens=6_999)).fits


def test_a_candidate_says_what_was_predicted_and_all_that_stands_against_it() -> None:
    view = busy(70, group(10, "romansh", 15.5))  # 14.4 on average without it
    prediction = predicted(request_view(tbt_target_ms=1.0), view)
    candidate = prediction.candidate()
    assert (candidate.backend, candidate.arm, candidate.feasible) == ("b0", "dspark-8", False)
    assert candidate.tbt_ms == prediction.tbt_ms
    assert candidate.marginal_j_per_accepted_token == prediction.marginal_j_per_accepted_token
    assert candidate.note == "no free place, misses its target, breaks a running target"
    assert predicted(request_view()).candidate().note == ""


def test_without_a_drafter_every_step_is_a_token() -> None:
    spec = backend_spec("b", "none")
    request = request_view(prompt_tokens=575)
    prediction = predict(request, backend_view(spec), spec, ACCEPTANCE, quantile=0.99)
    assert prediction.accept_length == 1.0
    assert prediction.tbt_ms == pytest.approx(5.1)
