"""Accept lengths: the survival-rate model in numbers, and how priors and requests make an estimate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from statistics import NormalDist
from typing import Any

import pytest

from selector.core.acceptance import (
    AcceptanceModel,
    AcceptancePrior,
    accept_length_of,
    converted_accept_length,
    step_variance,
    survival_rate_of,
)
from selector.core.survival import budgeted_accept_length
from selector.core.types import TEXT_TYPES, UNKNOWN_TEXT_TYPE
from selector.errors import DomainError
from tests.fleets import request_view

WIDTHS = {"none": 1, "dspark-8": 8, "eagle3-k1": 2}


def model(half_life_requests: float = 500.0, spread: float = 0.0) -> AcceptanceModel:
    prior = {text_type: AcceptancePrior(mean=3.0, request_spread=spread) for text_type in TEXT_TYPES}
    prior["romansh"] = AcceptancePrior(mean=1.5, request_spread=spread)
    return AcceptanceModel({"dspark-8": prior}, WIDTHS, half_life_requests=half_life_requests)


def feed(
    acceptance: AcceptanceModel, requests: int, accepted_per_pass: float, text_type: str = "code", **view: Any
) -> None:
    """Requests of a hundred passes each, all of the same acceptance."""
    for number in range(requests):
        request = request_view(f"r{number}", text_type=text_type, **view)
        assert acceptance.observe("dspark-8", text_type, 100, round(100 * accepted_per_pass), request=request)


@pytest.mark.parametrize(
    ("rate", "width", "expected"), [(0, 8, 1), (1, 8, 8), (0.5, 2, 1.5), (0.5, 4, 1.875), (0.9, 1, 1)]
)
def test_the_accept_length_is_the_sum_of_survival_powers(rate: float, width: int, expected: float) -> None:
    assert accept_length_of(rate, width) == pytest.approx(expected)


def test_a_published_length_is_converted_by_one_survival_rate() -> None:
    # p = 0.5: 1.984375 at width 7, 1.5 at width 2.
    assert converted_accept_length(1.984375, 7, 2) == pytest.approx(1.5)
    assert converted_accept_length(8.0, 8, 4) == pytest.approx(4.0)
    assert converted_accept_length(1.0, 8, 16) == pytest.approx(1.0)


@pytest.mark.parametrize(("length", "width"), [(0.99, 4), (4.01, 4), (1.01, 1), (math.nan, 4)])
def test_a_length_outside_one_to_the_width_is_refused(length: float, width: int) -> None:
    with pytest.raises(DomainError):
        survival_rate_of(length, width)


@pytest.mark.parametrize(("rate", "width"), [(-0.1, 4), (1.1, 4), (0.5, 0)])
def test_a_rate_that_is_no_probability_is_refused(rate: float, width: int) -> None:
    with pytest.raises(DomainError):
        accept_length_of(rate, width)


def test_a_step_without_chance_has_no_variance() -> None:
    assert step_variance(1.0, 8) == pytest.approx(0.0, abs=1e-9)
    assert step_variance(8.0, 8) == pytest.approx(0.0, abs=1e-6)
    # Width 2: one draft, accepted with p: a coin.
    assert step_variance(1.3, 2) == pytest.approx(0.3 * 0.7)


def test_the_prior_is_what_is_known_at_first() -> None:
    assert model().accept_length("dspark-8", "code") == 3.0
    assert model().accept_length("none", "code") == 1.0
    # An arm without a prior is taken to accept nothing.
    assert model().accept_length("eagle3-k1", "code") == 1.0


def test_probabilities_mix_by_time_per_token() -> None:
    mix = [0.0] * len(TEXT_TYPES)
    mix[TEXT_TYPES.index("code")], mix[TEXT_TYPES.index("romansh")] = 0.5, 0.5
    assert model().accept_length("dspark-8", "code", mix) == pytest.approx(2.0)  # harmonic mean of 3 and 1.5
    everything = model().accept_length("dspark-8", UNKNOWN_TEXT_TYPE)
    assert everything == pytest.approx(10 / (9 / 3.0 + 1 / 1.5))


def test_requests_move_the_estimate_to_what_they_show() -> None:
    acceptance = model(spread=0.15)
    before = acceptance.estimate("dspark-8", "code")
    errors = []
    for requests in (1, 10, 200):
        feed(acceptance, requests, accepted_per_pass=3.5)  # 4.5 tokens per pass
        errors.append(abs(acceptance.accept_length("dspark-8", "code") / 4.5 - 1.0))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.005
    after = acceptance.estimate("dspark-8", "code")
    assert after.standard_deviation < 0.1 * before.standard_deviation
    assert (before.samples, after.prior_mean) == (0.0, 3.0)
    assert after.samples == pytest.approx(211, rel=0.2)
    assert acceptance.samples == 211


@pytest.mark.parametrize("ratio", [0.5, 1.5])
def test_a_type_without_requests_follows_the_ratio_of_its_arm(ratio: float) -> None:
    acceptance = model(spread=0.15)
    for text_type in ("code", "math", "conversation"):
        feed(acceptance, 100, accepted_per_pass=2.0 * ratio, text_type=text_type)
    unseen = acceptance.estimate("dspark-8", "news")
    assert unseen.samples == 0
    # Between the profile and the ratio of the arm, much nearer the latter.
    assert unseen.mean == pytest.approx(1.0 + 2.0 * ratio, rel=0.1)
    assert (unseen.mean - 3.0) * (ratio - 1.0) > 0.0
    assert acceptance.estimate("dspark-8", "romansh").mean == pytest.approx(1.0 + 0.5 * ratio, rel=0.1)


def test_a_type_that_the_profile_does_not_know_is_taken_to_be_like_the_others() -> None:
    acceptance = AcceptanceModel({"dspark-8": {"code": AcceptancePrior(mean=3.0)}}, WIDTHS)
    assert acceptance.accept_length("dspark-8", "news") == 1.0
    feed(acceptance, 50, accepted_per_pass=3.0)
    assert acceptance.accept_length("dspark-8", "news") == pytest.approx(4.0, rel=0.01)
    feed(acceptance, 50, accepted_per_pass=0.4, text_type="news")
    assert acceptance.accept_length("dspark-8", "news") == pytest.approx(1.4, rel=0.02)


def test_thin_data_is_trusted_by_its_spread() -> None:
    """One request that is 50 % better moves the estimate less where requests differ more."""
    moved = []
    for spread in (0.05, 0.3, 0.6):
        acceptance = model(spread=spread)
        feed(acceptance, 1, accepted_per_pass=3.5)
        moved.append(acceptance.accept_length("dspark-8", "code"))
    assert 4.5 > moved[0] > moved[1] > moved[2] > 3.0


def test_old_requests_fade_by_half_at_the_half_life() -> None:
    acceptance = model(half_life_requests=40.0)
    feed(acceptance, 400, accepted_per_pass=2.0)
    assert acceptance.estimate("dspark-8", "code").samples == pytest.approx(40 / math.log(2), rel=0.02)
    before = acceptance.learning["dspark-8"].cells["code"].own.requests
    feed(acceptance, 40, accepted_per_pass=2.0, text_type="math")
    assert acceptance.learning["dspark-8"].cells["code"].own.requests == before, "other types do not make it older"
    feed(acceptance, 40, accepted_per_pass=2.2)
    assert acceptance.accept_length("dspark-8", "code") == pytest.approx(3.1, abs=0.01), "half old, half new"


def test_the_spread_between_requests_is_learnt() -> None:
    acceptance, wide = model(spread=0.05), model(spread=0.05)
    for number in range(200):
        feed(acceptance, 1, accepted_per_pass=2.0)
        feed(wide, 1, accepted_per_pass=(1.2, 3.2)[number % 2])
    assert acceptance.request_spread("dspark-8", "code") < 0.05
    assert wide.request_spread("dspark-8", "code") == pytest.approx(0.31, abs=0.05)
    slow = [each.slow_accept_length("dspark-8", "code", None, 300, 0.9) for each in (acceptance, wide)]
    assert slow[1] < 0.8 * slow[0]


def test_an_uncertain_text_type_teaches_each_type_by_its_probability() -> None:
    mix = [0.0] * len(TEXT_TYPES)
    mix[TEXT_TYPES.index("code")], mix[TEXT_TYPES.index("romansh")] = 0.75, 0.25
    acceptance = model(spread=0.15)
    feed(acceptance, 40, accepted_per_pass=1.0, text_probabilities=tuple(mix))
    samples = {name: acceptance.estimate("dspark-8", name).samples for name in ("code", "romansh", "news")}
    assert samples["news"] == 0
    assert samples["code"] == pytest.approx(30, rel=0.05)
    assert samples["romansh"] == pytest.approx(10, rel=0.05)
    request = request_view(text_type="code", text_probabilities=tuple(mix))
    assert acceptance.samples_behind("dspark-8", request) == pytest.approx(0.75 * samples["code"] + 0.25 * 10, rel=0.05)


def test_the_estimate_of_an_uncertain_type_is_that_of_its_types_by_their_shares() -> None:
    acceptance = model(spread=0.15)
    feed(acceptance, 50, accepted_per_pass=2.0)
    code, romansh = (acceptance.estimate("dspark-8", name) for name in ("code", "romansh"))
    sure = acceptance.estimate("dspark-8", "code", shares_of(code=1.0))
    assert asdict(sure) == pytest.approx(asdict(code))
    mixed = acceptance.estimate("dspark-8", "code", shares_of(code=0.8, romansh=0.2))
    assert mixed.mean == pytest.approx(1.0 / (0.8 / code.mean + 0.2 / romansh.mean))
    assert mixed.prior_mean == pytest.approx(1.0 / (0.8 / 3.0 + 0.2 / 1.5))
    assert mixed.samples == pytest.approx(0.8 * code.samples)
    assert mixed.request_spread > code.request_spread, "types differ too"
    passes = [0.8 * code.standard_deviation / code.mean**2, 0.2 * romansh.standard_deviation / romansh.mean**2]
    assert mixed.standard_deviation == pytest.approx(mixed.mean**2 * math.hypot(*passes))
    with pytest.raises(ValueError, match="3 probabilities"):
        acceptance.estimate("dspark-8", "code", (0.5, 0.3, 0.2))


def test_probabilities_that_are_sure_say_which_type_it_is() -> None:
    acceptance = model()
    mix = tuple(float(name == "math") for name in TEXT_TYPES)
    feed(acceptance, 5, accepted_per_pass=1.0, text_type="code", text_probabilities=mix)
    assert acceptance.estimate("dspark-8", "math").samples > 0 == acceptance.estimate("dspark-8", "code").samples


def test_measured_survivals_decide_the_variance_of_a_step() -> None:
    """Drafts that all survive or all fall vary more than drafts that fall one by one, at the same mean."""
    survivals = {"together": (0.4,) * 5, "one by one": (0.8, 0.6, 0.4, 0.15, 0.05)}
    slow = {}
    for name, survival in survivals.items():
        prior = {"code": AcceptancePrior(mean=3.0, survival=survival)}
        acceptance = AcceptanceModel({"arm": prior}, {"arm": 6})
        slow[name] = acceptance.slow_accept_length("arm", "code", None, 60, 0.9)
    assert slow["together"] < slow["one by one"] < 3.0
    # A measured variance: E[X²] = Σ (2k − 1) P(X ≥ k).
    second = 1 + sum((2 * k + 1) * s for k, s in enumerate(survivals["one by one"], start=1))
    expected = 3.0 * (1 - NormalDist().inv_cdf(0.9) * math.sqrt((second - 9.0) / 9.0 / 20.0))
    assert slow["one by one"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("survival", [(0.5, 0.6), (1.2,), (-0.1,), (0.5,) * 8])
def test_survivals_that_cannot_be_are_refused(survival: tuple[float, ...]) -> None:
    with pytest.raises(DomainError, match="none above the one before"):
        AcceptanceModel({"dspark-8": {"code": AcceptancePrior(mean=3.0, survival=survival)}}, WIDTHS)


@pytest.mark.parametrize(("passes", "drafts"), [(0, 0), (-1, 0), (10, -1), (10, 71)])
def test_a_sample_that_cannot_be_is_refused_and_counted(passes: int, drafts: int) -> None:
    acceptance = model()
    assert not acceptance.observe("dspark-8", "code", passes, drafts)
    assert (acceptance.refused_samples, acceptance.samples) == (1, 0)
    assert acceptance.accept_length("dspark-8", "code") == 3.0


@pytest.mark.parametrize(("arm", "text_type"), [("none", "code"), ("absent", "code"), ("dspark-8", UNKNOWN_TEXT_TYPE)])
def test_what_teaches_nothing_is_not_counted(arm: str, text_type: str) -> None:
    acceptance = model()
    assert not acceptance.observe(arm, text_type, 10, 10)
    assert (acceptance.refused_samples, acceptance.samples) == (0, 0)


def test_a_prior_above_the_verify_width_is_refused() -> None:
    with pytest.raises(DomainError, match=r"2\.5 of eagle3-k1 on code is outside 1 … 2"):
        AcceptanceModel({"eagle3-k1": {"code": AcceptancePrior(mean=2.5)}}, WIDTHS)


def test_the_slow_length_is_the_mean_less_what_the_quantile_asks() -> None:
    acceptance = model(spread=0.1)
    steps = 300.0 / 3.0
    relative = math.sqrt(0.1**2 + step_variance(3.0, 8) / (9 * steps))
    expected = 3.0 * (1 - NormalDist().inv_cdf(0.9) * relative)
    assert acceptance.slow_accept_length("dspark-8", "code", None, 300, 0.9) == pytest.approx(expected)
    assert acceptance.slow_accept_length("dspark-8", "code", None, 300, 0.5) == pytest.approx(3.0)
    assert acceptance.slow_accept_length("none", "code", None, 300, 0.9) == 1.0


def shares_of(**shares: float) -> tuple[float, ...]:
    return tuple(shares.get(name, 0.0) for name in TEXT_TYPES)


def test_a_sure_type_is_the_mixture_of_one() -> None:
    acceptance = model(spread=0.2)
    for tokens in (1.0, 40.0, 900.0):
        plain = acceptance.accept_lengths("dspark-8", "code", None, tokens, 0.9)
        assert acceptance.accept_lengths("dspark-8", "code", shares_of(code=1.0), tokens, 0.9) == pytest.approx(plain)


def test_an_uncertain_type_varies_within_its_types_and_between_them() -> None:
    acceptance = model(spread=0.1)
    share, tokens, deviate = 0.8, 300.0, NormalDist().inv_cdf(0.9)
    shares = shares_of(code=share, romansh=1.0 - share)
    mean, slow = acceptance.accept_lengths("dspark-8", "code", shares, tokens, 0.9)
    # Passes per token: their mean and variance by type, and the law of total variance.
    types = ((share, 3.0), (1.0 - share, 1.5))
    expected = sum(part / a for part, a in types)
    within = sum(part * (0.1**2 / a**2 + step_variance(a, 8) / (a**3 * tokens)) for part, a in types)
    between = sum(part * (1.0 / a - expected) ** 2 for part, a in types)
    assert mean == pytest.approx(1.0 / expected)
    assert slow == pytest.approx(mean * (1.0 - deviate * math.sqrt(within + between) / expected))
    assert slow < acceptance.slow_accept_length("dspark-8", "code", None, tokens, 0.9)


def test_an_uncertain_type_is_never_slower_than_its_slowest() -> None:
    acceptance = model(spread=0.05)
    slowest = acceptance.slow_accept_length("dspark-8", "romansh", None, 1_000, 0.9)
    shares = shares_of(code=0.5, romansh=0.5)
    assert acceptance.slow_accept_length("dspark-8", "code", shares, 1_000, 0.9) == pytest.approx(slowest)


def test_a_type_that_is_not_known_at_all_may_be_any() -> None:
    acceptance = model(spread=0.1)
    even = (1.0 / len(TEXT_TYPES),) * len(TEXT_TYPES)
    unknown = acceptance.accept_lengths("dspark-8", UNKNOWN_TEXT_TYPE, None, 300, 0.9)
    assert unknown == pytest.approx(acceptance.accept_lengths("dspark-8", "code", even, 300, 0.9))
    assert unknown[1] < unknown[0]


def test_a_short_request_is_less_sure_than_a_long_one_and_never_under_one_token() -> None:
    acceptance = model()
    short = acceptance.slow_accept_length("dspark-8", "code", None, 10, 0.9)
    long = acceptance.slow_accept_length("dspark-8", "code", None, 10_000, 0.9)
    assert 1.0 <= short < long < 3.0
    assert acceptance.slow_accept_length("dspark-8", "romansh", None, 1, 0.999) == 1.0


def test_the_snapshot_lists_every_arm_and_text_type() -> None:
    snapshot = model().snapshot()
    assert set(snapshot) == set(WIDTHS)
    assert snapshot["dspark-8"] == dict.fromkeys(TEXT_TYPES, 3.0) | {"romansh": 1.5}


def test_a_verify_budget_accepts_the_first_drafts_of_a_step() -> None:
    assert budgeted_accept_length(4.0, 8, 1.0) == pytest.approx(4.0)
    rate = survival_rate_of(4.0, 8)
    assert budgeted_accept_length(4.0, 8, 3 / 7) == pytest.approx(accept_length_of(rate, 4))
    assert budgeted_accept_length(4.0, 8, 0.25) == pytest.approx(1.0 + rate + 0.75 * rate**2)
    assert budgeted_accept_length(3.0, 4, 0.5, (0.9, 0.8, 0.3)) == pytest.approx(1.0 + 0.9 + 0.5 * 0.8)
    for frac in (0.0, 1.1):
        with pytest.raises(DomainError, match="share of the drafts"):
            budgeted_accept_length(4.0, 8, frac)


@pytest.mark.parametrize(
    "ask",
    [
        lambda known: known.snapshot(),
        lambda known: known.accept_length("arm", "code"),
        lambda known: known.accept_length("arm", "code", (0.1,) * 10),
        lambda known: known.accept_lengths("arm", "code", None, 100.0, 0.9),
        lambda known: known.accept_lengths("arm", "code", (0.1,) * 10, 100.0, 0.9),
        lambda known: known.of_request("arm", request_view(refine_key="k"), 0.9),
        lambda known: dict(known.mean_accept_lengths("arm")),
        lambda known: known.request_spread("arm", "code"),
        lambda known: known.samples_behind("arm", request_view()),
        lambda known: known.estimate("arm", "code"),
        lambda known: known.effects("arm"),
        lambda known: (known.samples, known.refused_samples),
        lambda known: (known.drift_alarm_count, [(alarm.arm, alarm.at_s) for alarm in known.drift_alarms]),
        lambda known: [(name, cell.own) for name, cell in known.learning["arm"].cells.items()],
        lambda known: {label: bias.ratio for label, bias in known.learning["arm"].biases.items()},
        lambda known: known.refinement.state(),
    ],
)
def test_what_is_learnt_later_is_learnt_the_same_by_who_asks(ask: Callable[[AcceptanceModel], object]) -> None:
    at_once, later = (
        AcceptanceModel({"arm": {"code": AcceptancePrior(mean=3.0, request_spread=0.1)}}, {"arm": 8}) for _ in range(2)
    )
    untaught = ask(later)
    for number in range(120):
        request = request_view(
            f"r{number}",
            refine_key="k",
            prompt_tokens=100 + 40 * (number % 5),
            text_probabilities=(0.7, 0.3, *(0.0,) * 8) if number % 4 == 3 else None,
        )
        passes, drafts = 40, 700 if number == 50 else 100 + number % 7 if number < 60 else 10
        at_once.observe("arm", "code", passes, drafts, request=request, at_s=float(number))
        later.observe_later("arm", "code", passes, drafts, request=request, at_s=float(number))
    assert ask(later) == ask(at_once)
    assert ask(later) != untaught
    assert at_once.drift_alarm_count > 0
