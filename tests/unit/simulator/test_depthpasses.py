"""Passes whose depth is turned: every token once, and the same drafts whatever the depth was before."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selector.simulator.depthpasses import DepthPasses
from selector.simulator.draws import AcceptDraws

DEEPEST = 7
turns = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 1, 3, 7])), max_size=8)


@given(st.lists(st.integers(0, DEEPEST), min_size=1, max_size=60), turns)
@settings(max_examples=150)
def test_what_is_delivered_is_what_both_depth_and_drafts_allow(
    surviving: list[int], changes: list[tuple[int, int]]
) -> None:
    tokens = len(surviving)
    passes = DepthPasses(surviving, tokens, DEEPEST)
    depth, done, delivered, by_pass = DEEPEST, 0, 0, list[int]()
    for steps, after in [*changes, (tokens, 0)]:
        for _ in range(steps):
            if delivered >= tokens:
                break
            assert passes.accepted(done, done + 1) == [min(surviving[done], depth)]
            by_pass.append(min(1 + min(surviving[done], depth), tokens - delivered))
            delivered += by_pass[-1]
            done += 1
            assert passes.after(done) == delivered
        if delivered >= tokens:
            break
        passes.turn(done, after)
        depth = passes.depth
    assert delivered == tokens and passes.count == done
    assert passes.surplus == 1 + min(surviving[done - 1], depth) - by_pass[-1]
    assert [later - before for before, later in pairwise([0, *map(passes.after, range(1, done + 1))])] == by_pass


@pytest.mark.parametrize(("accept_length", "spread", "tokens"), [(2.2, 0.15, 300), (1.0, 0.0, 20), (4.0, 0.0, 30)])
def test_at_the_deepest_depth_they_are_those_of_an_arm_of_this_depth(
    accept_length: float, spread: float, tokens: int
) -> None:
    draws = AcceptDraws(5)
    for key in range(40):
        fixed = draws.passes(key, tokens=tokens, accept_length=accept_length, spread=spread, verify_tokens=4)
        turned = draws.depth_passes(key, tokens=tokens, accept_length=accept_length, spread=spread, deepest=3, depth=3)
        if fixed is None:
            assert turned.count == tokens
            continue
        assert (turned.count, turned.surplus) == (fixed.count, fixed.surplus)
        assert [turned.after(done) for done in range(1, fixed.count + 1)] == fixed.cumulative


def test_a_shallower_depth_accepts_what_its_own_arm_would() -> None:
    """One survival rate a request: 1 + p at depth 1, where depth 3 has 1 + p + p² + p³."""
    draws, p = AcceptDraws(5), 0.6
    passes = [
        draws.depth_passes(key, tokens=1_000, accept_length=1 + p + p**2 + p**3, spread=0.0, deepest=3, depth=1)
        for key in range(30)
    ]
    assert sum(1_000 / each.count for each in passes) / 30 == pytest.approx(1 + p, rel=0.01)
