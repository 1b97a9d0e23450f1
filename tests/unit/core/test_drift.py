"""Drift of an arm's acceptance: seen soon in either direction, never where there is none, and what happens then."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from selector.core.acceptance import AcceptanceModel, AcceptancePrior, accept_length_of
from selector.core.types import TEXT_TYPES
from selector.simulator.draws import AcceptDraws
from tests.fleets import request_view

FEW_TYPES = TEXT_TYPES[:4]


class Traffic:
    """Requests of one arm with log-normal lengths, drawn as the simulator draws them."""

    def __init__(
        self,
        width: int,
        prior: float,
        *,
        spread: float = 0.15,
        mean_tokens: float = 250.0,
        rise: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Accept lengths go with (tokens / `mean_tokens`) to the power of `rise`."""
        priors = {text_type: AcceptancePrior(mean=prior, request_spread=0.15) for text_type in TEXT_TYPES}
        self.model = AcceptanceModel({"arm": priors}, {"arm": width})
        self._width, self._spread, self._mean_tokens, self._rise = width, spread, mean_tokens, rise
        self._draws, self._random = AcceptDraws(seed), np.random.default_rng(seed)
        self.sent = 0

    def send(
        self,
        requests: int,
        truth: Callable[[str], float],
        types: tuple[str, ...] = FEW_TYPES,
        shares: Mapping[str, float] | None = None,
    ) -> int | None:
        """Sends requests of each type in turn; after how many of them an alarm came, if one did.

        With `shares` they come with these probabilities of their types.
        """
        alarms, first = self.model.drift_alarm_count, None
        for number in range(requests):
            text_type = types[self.sent % len(types)]
            tokens = int(min(max(3.0, self._random.lognormal(np.log(self._mean_tokens), 1.0)), 3_000.0)) - 1
            drawn = self._draws.passes(
                self.sent,
                tokens=tokens,
                accept_length=truth(text_type) * (tokens / self._mean_tokens) ** self._rise,
                spread=self._spread,
                verify_tokens=self._width,
            )
            passes, surplus = (tokens, 0) if drawn is None else (drawn.count, drawn.surplus)
            self.sent += 1
            request = None
            if shares is not None:
                probabilities = tuple(shares.get(name, 0.0) for name in TEXT_TYPES)
                request = request_view(f"r{self.sent}", text_type=text_type, text_probabilities=probabilities)
            at_s = float(self.sent)
            self.model.observe("arm", text_type, passes, tokens + surplus - passes, request=request, at_s=at_s)
            if first is None and self.model.drift_alarm_count > alarms:
                first = number + 1
        return first


@pytest.mark.parametrize(
    ("width", "truth", "spread", "mean_tokens", "seed"),
    [(2, 1.7, 0.15, 12, 0), (8, 3.5, 0.4, 250, 1), (16, 5.0, 0.15, 60, 2), (8, 1.02, 0.4, 12, 3)],
)
def test_stationary_traffic_raises_no_alarm(
    width: int, truth: float, spread: float, mean_tokens: float, seed: int
) -> None:
    traffic = Traffic(width, 1.0 + 0.8 * (truth - 1.0), spread=spread, mean_tokens=mean_tokens, seed=seed)
    lengths: Mapping[str, float] = {name: 1.0 + (truth - 1.0) * (1.0 - 0.1 * i) for i, name in enumerate(TEXT_TYPES)}
    assert traffic.send(10_000, lengths.__getitem__) is None


@pytest.mark.parametrize("rise", [0.1, -0.1])
def test_long_answers_that_are_accepted_differently_are_no_drift(rise: float) -> None:
    traffic = Traffic(8, 3.5, rise=rise)
    assert traffic.send(10_000, lambda _: 3.5) is None
    # Near the mean over requests; by tokens it would be 3.83 and 3.17.
    assert traffic.model.accept_length("arm", FEW_TYPES[0]) == pytest.approx(3.5, rel=0.05)


@pytest.mark.parametrize("rates", [(0.6, 0.05), (0.05, 0.6)])
@pytest.mark.parametrize("types", [TEXT_TYPES[:1], FEW_TYPES, TEXT_TYPES])
@pytest.mark.parametrize(("width", "mean_tokens"), [(2, 250), (4, 60), (8, 250), (16, 60)])
def test_a_fall_or_a_rise_of_an_arm_is_seen_within_fifty_of_its_requests(
    rates: tuple[float, float], types: tuple[str, ...], width: int, mean_tokens: float
) -> None:
    before, after = (accept_length_of(rate, width) for rate in rates)
    traffic = Traffic(width, before, mean_tokens=mean_tokens)
    assert traffic.send(600, lambda _: before, types) is None
    first = traffic.send(200, lambda _: after, types)
    assert first is not None
    assert first <= 50
    alarm = traffic.model.drift_alarms[0]
    assert alarm.direction == ("up" if after > before else "down")
    assert alarm.at_s == alarm.arm_requests == 600 + first
    assert alarm.requests_since_shift <= first + 25
    assert alarm.accept_length_before == pytest.approx(before, rel=0.15)
    for text_type in types:
        assert traffic.model.accept_length("arm", text_type) == pytest.approx(after, rel=0.15)


def test_an_arm_of_which_all_types_move_begins_anew_as_a_whole() -> None:
    whole = 0
    for seed in range(4):
        traffic = Traffic(8, 4.0, seed=seed)
        traffic.send(2_000, lambda _: 4.0, TEXT_TYPES)
        traffic.send(40, lambda _: 1.2)
        alarm = traffic.model.drift_alarms[0]
        if not alarm.whole_arm:  # a chance run before the shift can put types into it that had not moved
            continue
        whole += 1
        assert alarm.text_types == TEXT_TYPES
        # Types that were hardly seen since follow the arm and not their own past.
        unseen = min((traffic.model.estimate("arm", name) for name in TEXT_TYPES), key=lambda one: one.samples)
        assert unseen.samples < 1.0
        assert unseen.restarts == 1
        assert unseen.mean < 2.2
    assert whole >= 3


def test_a_type_that_moves_alone_leaves_the_others_as_they_are() -> None:
    traffic = Traffic(8, 4.0)
    traffic.send(2_000, lambda _: 4.0)
    others = {name: traffic.model.estimate("arm", name).samples for name in FEW_TYPES[1:]}
    traffic.send(200, lambda name: 1.2 if name == FEW_TYPES[0] else 4.0)
    assert {name for alarm in traffic.model.drift_alarms for name in alarm.text_types} == {FEW_TYPES[0]}
    assert not any(alarm.whole_arm for alarm in traffic.model.drift_alarms)
    assert traffic.model.accept_length("arm", FEW_TYPES[0]) == pytest.approx(1.2, rel=0.1)
    for name, samples in others.items():
        assert traffic.model.estimate("arm", name).samples >= 0.9 * samples
        assert traffic.model.accept_length("arm", name) == pytest.approx(4.0, rel=0.1)


def test_a_profile_that_was_wrong_from_the_start_is_learnt_and_is_no_drift() -> None:
    for ratio in (0.5, 1.5):
        traffic = Traffic(8, 4.0)
        assert traffic.send(2_000, lambda _, ratio=ratio: 4.0 * ratio) is None  # type: ignore[misc] # its own ratio
        assert traffic.model.accept_length("arm", FEW_TYPES[0]) == pytest.approx(4.0 * ratio, rel=0.05)


def test_a_type_whose_profile_is_wrong_the_other_way_than_that_of_its_arm_is_learnt_and_is_no_drift() -> None:
    *others, better = TEXT_TYPES[:7]
    for seed in range(3):
        traffic = Traffic(2, 1.31, seed=seed)
        assert traffic.send(2_100, lambda name: 1.97 if name == better else 1.0, (*others, better)) is None
        assert traffic.model.accept_length("arm", better) == pytest.approx(1.9, rel=0.05)


def test_mislabelled_requests_are_a_wider_type_and_no_drift() -> None:
    lengths = dict(zip(FEW_TYPES, (5.0, 4.0, 3.0, 1.6), strict=True))
    random = np.random.default_rng(3)

    def truth(label: str) -> float:
        return lengths[FEW_TYPES[random.integers(4)]] if random.random() < 0.2 else lengths[label]

    assert Traffic(8, 3.5).send(10_000, truth) is None


def mixed_up(
    lengths: Mapping[str, float], requests: int, *, seed: int, said: float = 0.8, traffic: Traffic | None = None
) -> Traffic:
    """Requests whose label is wrong in a fifth of the cases; their probabilities give the label `said`."""
    traffic = traffic or Traffic(8, 3.5, seed=seed)
    names, random = tuple(lengths), np.random.default_rng(seed)
    for _ in range(requests):
        label = names[random.integers(len(names))]
        others = tuple(name for name in names if name != label)
        truth = others[random.integers(len(others))] if random.random() < 0.2 else label
        shares = {name: said if name == label else (1.0 - said) / len(others) for name in names}
        traffic.send(1, lambda _, truth=truth: lengths[truth], (label,), shares)  # type: ignore[misc] # of this request
    return traffic


APART = dict(zip(FEW_TYPES[:3], (5.0, 3.0, 1.4), strict=True))


@pytest.mark.parametrize("said", [0.8, 0.95])
@pytest.mark.parametrize("seed", [0, 1])
def test_mislabelled_requests_with_probabilities_are_no_drift(seed: int, said: float) -> None:
    assert mixed_up(APART, 10_000, seed=seed, said=said).model.drift_alarm_count == 0


def test_a_few_long_answers_do_not_say_what_is_usual_of_an_unsure_label() -> None:
    traffic = Traffic(8, 3.5)
    probabilities = tuple(0.8 if name == "code" else 0.2 if name == "math" else 0.0 for name in TEXT_TYPES)
    for number in range(2_000):
        passes, tokens = (8_000, 16_000) if number % 40 == 20 else (100 + number * 7 % 21 - 10, 350)
        request = request_view(f"r{number}", text_type="code", text_probabilities=probabilities)
        traffic.model.observe("arm", "code", passes, tokens - passes, request=request)
    assert traffic.model.drift_alarm_count == 0


def test_a_fall_is_seen_within_fifty_requests_where_labels_are_unsure() -> None:
    for seed in range(3):
        traffic = mixed_up(APART, 1_500, seed=seed)
        assert traffic.model.drift_alarm_count == 0
        fallen = dict.fromkeys(APART, accept_length_of(0.05, 8))
        mixed_up(fallen, 50, seed=seed, traffic=traffic)
        assert traffic.model.drift_alarm_count >= 1
        assert traffic.model.drift_alarms[0].direction == "down"


def test_one_odd_request_is_no_drift() -> None:
    traffic = Traffic(8, 4.0)
    traffic.send(500, lambda _: 4.0)
    for _ in range(3):
        traffic.model.observe("arm", FEW_TYPES[0], 5_000, 0)
        assert traffic.send(50, lambda _: 4.0) is None


def test_a_tenant_that_is_known_to_differ_is_no_drift() -> None:
    """With its key, a tenant that comes and goes is a tenant; without, its coming is a shift."""
    alarms = {}
    for key in (None, "tenant"):
        traffic = Traffic(8, 4.0)
        model = traffic.model
        for number in range(2_500):
            of_tenant = number > 500 and (number // 100) % 2 == 1
            request = request_view(f"r{number}", text_type="code")
            if key:
                request = request_view(f"r{number}", text_type="code", refine_key=key if of_tenant else "other")
            passes = 60 if of_tenant else 50
            wobble = (number * 7) % 11 - 5
            model.observe("arm", "code", passes + wobble, 200 - passes - wobble, request=request)
        alarms[key] = model.drift_alarm_count
    assert alarms["tenant"] < (alarms[None] or 0)
