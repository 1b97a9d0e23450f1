"""Survival by position, learnt from passes at whatever depths the engine ran."""

from __future__ import annotations

from random import Random

import pytest

from selector.core.depthacceptance import DepthAcceptance
from selector.core.depthsurvival import SlowRequests, accept_lengths, geometric_survivals
from selector.errors import DomainError

SLOW = SlowRequests.at(0.9)


def drawn(draw: Random, curve: tuple[float, ...], depth: int, requests: int) -> list[int]:
    """Accepted drafts of that many requests at a depth."""
    return [sum(chance < survival for survival in curve[:depth]) for chance in (draw.random() for _ in range(requests))]


def taught(acceptance: DepthAcceptance, curve: tuple[float, ...], depth: int, passes: int, batch: int = 16) -> None:
    draw = Random(f"{depth}")
    for _ in range(passes):
        assert acceptance.observe(depth, drawn(draw, curve, depth, batch))


def test_it_begins_with_the_prior() -> None:
    prior = (0.8, 0.6, 0.5)
    acceptance = DepthAcceptance(prior, SLOW)
    assert acceptance.survivals() == pytest.approx(prior)
    assert acceptance.lengths == pytest.approx(accept_lengths(prior))


def test_it_learns_the_curve_at_the_depth_that_runs() -> None:
    curve = (0.5, 0.3, 0.2)
    acceptance = DepthAcceptance((0.9, 0.8, 0.7), SLOW)
    taught(acceptance, curve, 3, 400)
    assert acceptance.survivals() == pytest.approx(curve, abs=0.06)
    assert acceptance.slow[3] < acceptance.lengths[3]


def test_what_the_first_draft_says_moves_the_positions_that_are_not_tried() -> None:
    acceptance = DepthAcceptance(geometric_survivals(0.8, 3), SLOW)
    taught(acceptance, geometric_survivals(0.4, 3), 1, 400)
    assert acceptance.survivals() == pytest.approx(geometric_survivals(0.4, 3), abs=0.05)


def test_it_follows_a_change_of_text_within_some_half_lives() -> None:
    acceptance = DepthAcceptance(geometric_survivals(0.8, 3), SLOW, half_life_requests=256.0)
    taught(acceptance, geometric_survivals(0.8, 3), 3, 200)
    taught(acceptance, geometric_survivals(0.3, 3), 3, 300)
    assert acceptance.lengths[3] == pytest.approx(accept_lengths(geometric_survivals(0.3, 3))[3], abs=0.15)


def test_a_request_is_known_by_its_own_drafts_and_forgotten_when_it_leaves() -> None:
    acceptance = DepthAcceptance(geometric_survivals(0.5, 3), SLOW)
    taught(acceptance, geometric_survivals(0.5, 3), 3, 300)
    of_type = acceptance.lengths[3]
    acceptance.renew(1, 1)
    taught(acceptance, geometric_survivals(0.9, 3), 3, 200, batch=1)
    good = acceptance.lengths[3]
    assert good > of_type + 0.8
    acceptance.renew(1, 0)
    assert acceptance.lengths[3] == good
    acceptance.renew(1, 1)
    assert acceptance.lengths[3] == pytest.approx(of_type, abs=0.2)


def test_of_many_requests_the_type_says_more_than_the_last_passes() -> None:
    """The mean of 64 requests varies less than that of one, so a few unlucky passes say as little."""
    moved = []
    for batch in (1, 64):
        acceptance = DepthAcceptance(geometric_survivals(0.5, 3), SLOW)
        taught(acceptance, geometric_survivals(0.5, 3), 3, 8_192 // batch, batch=batch)
        before = acceptance.survivals()[0]
        acceptance.renew(batch, batch)
        for _ in range(16):
            acceptance.observe(3, [0] * batch if batch == 1 else [0] * 40 + [1] * 24)
        moved.append(before - acceptance.survivals()[0])
    assert moved[0] > 2.0 * moved[1] > 0.0


@pytest.mark.parametrize(
    ("depth", "accepted"), [(0, [0]), (4, [1]), (-1, [0]), (2, []), (2, [3]), (2, [-1]), (1, [0, 2])]
)
def test_what_cannot_have_been_accepted_is_not_used(depth: int, accepted: list[int]) -> None:
    acceptance = DepthAcceptance((0.8, 0.6, 0.5), SLOW)
    assert not acceptance.observe(depth, accepted)
    assert acceptance.survivals() == pytest.approx((0.8, 0.6, 0.5))


def test_survivals_never_rise_and_stay_within_bounds() -> None:
    acceptance = DepthAcceptance((1.0, 1.0, 0.0), SLOW)
    for _ in range(200):
        acceptance.observe(3, [3] * 64)
    curve = acceptance.survivals()
    assert 1.0 > curve[0] >= curve[1] >= curve[2] > 0.0


@pytest.mark.parametrize("prior", [(), (0.5, 0.6), (1.5,), (-0.5,)])
def test_a_prior_that_is_none_is_refused(prior: tuple[float, ...]) -> None:
    with pytest.raises(DomainError):
        DepthAcceptance(prior, SLOW)
