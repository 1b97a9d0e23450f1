"""Accept lengths: the right mean, bounded steps, and a stream of each request's own."""

from itertools import accumulate, pairwise

import numpy as np
import pytest

from selector.simulator.draws import AcceptDraws, Passes


@pytest.mark.parametrize(("mean", "width"), [(1.3, 2), (2.4, 4), (4.9, 8), (5.5, 16)])
@pytest.mark.parametrize("spread", [0.0, 0.15])
def test_tokens_over_steps_is_the_mean(mean: float, width: int, spread: float) -> None:
    draws = AcceptDraws(7)
    passes = tokens = 0
    for key in range(400):
        drawn = draws.passes(key, tokens=600, accept_length=mean, spread=spread, verify_tokens=width)
        # `None`: a request of which nothing is accepted.
        passes += drawn.count if drawn is not None else 600
        tokens += 600 + (drawn.surplus if drawn is not None else 0)
    # Requests whose own mean would leave 1 … width are cut there, hence the tolerance with spread.
    assert tokens / passes == pytest.approx(mean, rel=0.01 if spread == 0.0 else 0.03)


@pytest.mark.parametrize("tokens", [1, 7, 254, 257, 2_000])
def test_every_pass_gives_between_one_token_and_the_width(tokens: int) -> None:
    drawn = AcceptDraws(1).passes(5, tokens=tokens, accept_length=3.0, spread=0.2, verify_tokens=8)
    assert drawn is not None
    cumulative = drawn.cumulative
    assert len(cumulative) == drawn.count
    assert cumulative[-1] == tokens
    gained = [after - before for before, after in pairwise((0, *cumulative))]
    assert min(gained) >= 1
    assert max(gained) + drawn.surplus * (gained[-1] == max(gained)) <= 8
    assert 0 <= drawn.surplus < 8


def cumulative_of(draws: AcceptDraws, key: int, tokens: int = 200) -> list[int]:
    drawn = draws.passes(key, tokens=tokens, accept_length=3.0, spread=0.1, verify_tokens=8)
    assert drawn is not None
    return drawn.cumulative


def test_a_request_draws_the_same_whatever_was_drawn_before() -> None:
    one, other = AcceptDraws(1), AcceptDraws(1)
    for key in range(0, 3_000, 7):
        other.passes(key, tokens=900, accept_length=1.5, spread=0.1, verify_tokens=8)
    assert cumulative_of(one, 4) == cumulative_of(other, 4)
    assert cumulative_of(one, 4) != cumulative_of(one, 5)
    assert cumulative_of(one, 4) != cumulative_of(one, 4 + 32)
    assert cumulative_of(one, 4) != cumulative_of(AcceptDraws(2), 4)


def test_a_longer_answer_begins_like_a_shorter_one() -> None:
    draws = AcceptDraws(1)
    short, long = cumulative_of(draws, 9, 100), cumulative_of(draws, 9, 2_000)
    assert long[: len(short) - 1] == short[:-1]


def test_the_passes_of_neighbours_are_independent() -> None:
    """No request goes on with what belongs to the next: their numbers of passes are uncorrelated."""
    draws = AcceptDraws(3)
    counts = []
    for key in range(600):
        drawn = draws.passes(key, tokens=1_500, accept_length=2.0, spread=0.1, verify_tokens=4)
        assert drawn is not None
        counts.append(drawn.count)
    assert abs(np.corrcoef(counts[:-1], counts[1:])[0, 1]) < 0.13


@pytest.mark.parametrize(("mean", "width", "passes"), [(1.0, 8, 10), (8.0, 8, 2), (1.0, 1, 10)])
def test_the_extremes_need_no_luck(mean: float, width: int, passes: int) -> None:
    drawn = AcceptDraws(0).passes(0, tokens=10, accept_length=mean, spread=0.0, verify_tokens=width)
    if mean == 1.0:
        assert drawn is None
    else:
        assert drawn is not None
        assert (drawn.count, drawn.surplus) == (passes, passes * width - 10)


@pytest.mark.parametrize("scale", [0.0, 0.4, 1.7, 1e15])
@pytest.mark.parametrize("tokens", [6, 7, 40])
@pytest.mark.parametrize("done", [(), (1, 4)])
def test_passes_are_those_that_one_by_one_deliver_all_tokens(scale: float, tokens: int, done: tuple[int, ...]) -> None:
    """Each gives a token and the drafts that survive, at most 3; what the last gives too much is the surplus."""
    deviates = np.random.default_rng(2).standard_exponential(60)
    passes = Passes(deviates, scale, 3, tokens, done)
    gained = list(done)
    for deviate in deviates.tolist():
        if sum(gained) < tokens:
            gained.append(1 + min(int(deviate * scale), 3))
    assert (passes.count, passes.surplus) == (len(gained), sum(gained) - tokens)
    gained[-1] -= passes.surplus
    assert passes.cumulative == list(accumulate(gained))
    assert passes.after(len(gained)) == tokens


def test_deviates_that_do_not_suffice_leave_tokens_missing() -> None:
    """Whoever asked for them then takes more."""
    assert Passes(np.zeros(4), 1.0, 3, tokens=10).surplus == 4 - 10
    assert Passes(np.zeros(0), 1.0, 3, tokens=10, done=(3, 3)).surplus == 6 - 10


def test_requests_differ_by_at_most_two_and_a_half_deviations() -> None:
    """At a spread of 0.3 the best takes 1 − 2.5 · 0.3 of the mean number of passes: a quarter."""
    draws = AcceptDraws(0)
    fewest = tokens = 20_000
    for key in range(300):
        drawn = draws.passes(key, tokens=tokens, accept_length=3.0, spread=0.3, verify_tokens=64)
        assert drawn is not None
        fewest = min(fewest, drawn.count)
    assert fewest == pytest.approx(0.25 * tokens / 3.0, rel=0.06)
