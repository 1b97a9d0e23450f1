"""Accept lengths: the right mean, bounded steps, and a stream of each request's own."""

import numpy as np
import pytest

from selector.simulator.draws import AcceptDraws


@pytest.mark.parametrize(("mean", "width"), [(1.3, 2), (2.4, 4), (4.9, 8), (5.5, 16)])
@pytest.mark.parametrize("spread", [0.0, 0.15])
def test_tokens_over_steps_is_the_mean(mean: float, width: int, spread: float) -> None:
    draws = AcceptDraws(7)
    passes = tokens = 0
    for key in range(400):
        steps, surplus = draws.steps(key, tokens=600, accept_length=mean, spread=spread, verify_tokens=width)
        passes += len(steps)
        tokens += 600 + surplus
    # Requests whose own mean would leave 1 … width are cut there, hence the tolerance with spread.
    assert tokens / passes == pytest.approx(mean, rel=0.01 if spread == 0.0 else 0.03)


def test_every_step_gives_between_one_token_and_the_width() -> None:
    steps, _ = AcceptDraws(1).steps(5, tokens=999, accept_length=4.0, spread=0.2, verify_tokens=8)
    gained = np.diff(steps, prepend=0)
    assert gained.min() >= 1
    assert gained.max() <= 8
    assert steps[-1] == 999


def test_a_request_draws_the_same_whatever_was_drawn_before() -> None:
    one, other = AcceptDraws(1), AcceptDraws(1)
    for key in range(50):
        other.steps(1_000 + key, tokens=17, accept_length=3.0, spread=0.1, verify_tokens=8)
    arguments = {"tokens": 200, "accept_length": 3.0, "spread": 0.1, "verify_tokens": 8}
    assert one.steps(4, **arguments)[0].tolist() == other.steps(4, **arguments)[0].tolist()
    assert one.steps(4, **arguments)[0].tolist() != one.steps(5, **arguments)[0].tolist()
    assert one.steps(4, **arguments)[0].tolist() != AcceptDraws(2).steps(4, **arguments)[0].tolist()


@pytest.mark.parametrize(("mean", "width", "steps"), [(1.0, 8, 10), (8.0, 8, 2), (1.0, 1, 10)])
def test_the_extremes_need_no_luck(mean: float, width: int, steps: int) -> None:
    cumulative, surplus = AcceptDraws(0).steps(0, tokens=10, accept_length=mean, spread=0.0, verify_tokens=width)
    assert len(cumulative) == steps
    assert cumulative[-1] == 10
    assert surplus == steps * int(mean) - 10 if width > 1 else surplus == 0


def test_nothing_to_draw_for_no_tokens() -> None:
    cumulative, surplus = AcceptDraws(0).steps(0, tokens=0, accept_length=3.0, spread=0.0, verify_tokens=8)
    assert cumulative.tolist() == []
    assert surplus == 0
