"""What requests count: short ones by their tokens, long ones alike, and how sure the estimate then is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from selector.core.acceptance import step_variance
from selector.core.acceptancesums import Sums, length_weight
from selector.simulator.draws import AcceptDraws

WIDTH, ACCEPT_LENGTH, SPREAD = 8, 3.5, 0.15


def drawn(seed: int, requests: int, *, median_tokens: float = 250.0) -> list[tuple[int, int]]:
    """(passes, tokens) of requests with log-normal lengths, as the simulator draws them."""
    draws, random = AcceptDraws(seed), np.random.default_rng(seed)
    made = []
    for number in range(requests):
        tokens = int(min(max(4.0, random.lognormal(math.log(median_tokens), 1.0)), 4_000.0))
        passes = draws.passes(number, tokens=tokens, accept_length=ACCEPT_LENGTH, spread=SPREAD, verify_tokens=WIDTH)
        assert passes is not None
        made.append((passes.count, tokens + passes.surplus))
    return made


def summed(requests: list[tuple[int, int]]) -> Sums:
    sums = Sums()
    for passes, tokens in requests:
        sums.add(passes, tokens)
    return sums


def ratio(sums: Sums) -> float:
    assert sums.ratio is not None
    return sums.ratio


def test_a_short_request_counts_by_its_tokens_and_a_long_one_as_any_long_one() -> None:
    counted = [length_weight(tokens) * tokens for tokens in (1, 2, 4_000, 8_000)]
    assert counted[1] == pytest.approx(2.0 * counted[0], rel=0.05)
    assert counted[3] == pytest.approx(counted[2], rel=0.05)


def test_one_long_answer_does_not_outweigh_all_others() -> None:
    usual = [(100, 350)] * 20
    assert ratio(summed([*usual, (10_000, 20_000)])) == pytest.approx(3.4, abs=0.05)  # by tokens alone: 2.25


@pytest.mark.parametrize("median_tokens", [20.0, 250.0])
def test_estimates_are_as_near_the_truth_as_they_say_and_nearer_than_by_tokens(median_tokens: float) -> None:
    by_length, by_tokens, said = [], [], []
    for seed in range(300):
        requests = drawn(seed, 60, median_tokens=median_tokens)
        sums = summed(requests)
        by_length.append(ratio(sums))
        by_tokens.append(sum(tokens for _, tokens in requests) / sum(passes for passes, _ in requests))
        said.append(sums.ratio_variance(step_variance(ACCEPT_LENGTH, WIDTH), SPREAD))
    error = math.sqrt(np.mean(said))
    assert np.std(by_length) == pytest.approx(error, rel=0.12)
    assert np.mean(by_length) == pytest.approx(
        ACCEPT_LENGTH, abs=4.0 * error / math.sqrt(300.0) + 0.003 * ACCEPT_LENGTH
    )
    assert np.std(by_length) < 0.97 * np.std(by_tokens)


def test_the_spread_is_that_of_requests_whatever_their_length() -> None:
    for median_tokens in (20.0, 250.0):
        found = summed(drawn(1, 3_000, median_tokens=median_tokens)).spread(0.4, step_variance(ACCEPT_LENGTH, WIDTH))
        assert found == pytest.approx(SPREAD, abs=0.02)


def test_fading_while_adding_is_fading_before_adding() -> None:
    one, other = summed([(50, 150)] * 5), summed([(50, 150)] * 5)
    one.fade(0.9)
    one.add(40, 200, 0.7)
    other.add(40, 200, 0.7, keep=0.9)
    assert one == other
