"""Prefixes: what is found, who holds it, and what goes first."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from selector.files.trace import TraceRequest
from selector.simulator.prefixcache import PrefixCache, block_sizes, prompt_blocks


def test_a_prefix_is_found_as_far_as_it_is_the_same() -> None:
    cache = PrefixCache()
    cache.hold((1, 2, 3), (512, 512, 100))
    assert cache.match((1, 2, 9)) == (2, 1_024, 1_024)
    assert cache.match((9, 2, 3)) == (0, 0, 0)
    cache.release((1, 2, 3))
    assert cache.match((1, 2, 3)) == (3, 1_124, 0)


def test_the_least_recently_used_prefix_goes_first_from_its_end() -> None:
    cache = PrefixCache()
    for ids in ((1, 2), (1, 3), (4,)):
        cache.hold(ids, [512] * len(ids))
        cache.release(ids)
    cache.shrink(1_536)
    assert [cache.match(ids)[0] for ids in ((1, 2), (1, 3), (4,))] == [1, 2, 1]
    cache.shrink(512)
    assert [cache.match(ids)[0] for ids in ((1, 3), (4,))] == [0, 1]


def test_held_blocks_never_go() -> None:
    cache = PrefixCache()
    cache.hold((1, 2), (512, 512))
    cache.shrink(0)
    assert cache.match((1, 2))[0] == 2


def test_the_last_block_may_be_part_full() -> None:
    assert block_sizes(1_100, 3, 512) == [512, 512, 76]
    assert block_sizes(1_024, 2, 512) == [512, 512]


def request(**fields: object) -> TraceRequest:
    return TraceRequest(**{"request_id": "r", "arrival_s": 0.0, "prompt_tokens": 300, "output_tokens": 5} | fields)  # type: ignore[arg-type]  # the fields vary by test


def test_sessions_share_the_shorter_prompt_if_asked() -> None:
    assert prompt_blocks(request(session_key="s"), by_session=False) == ((), 0)
    assert prompt_blocks(request(), by_session=True) == ((), 0)
    short, size = prompt_blocks(request(session_key="s"), by_session=True)
    long, _ = prompt_blocks(request(session_key="s", prompt_tokens=700), by_session=True)
    other, _ = prompt_blocks(request(session_key="t"), by_session=True)
    assert long[: len(short)] == short and len(short) * size <= 300 < (len(short) + 1) * size
    assert not set(other) & set(short)


def test_the_traces_own_blocks_count_before_sessions() -> None:
    told = request(session_key="s", prefix_hashes=(7, 8), prefix_block_tokens=512)
    assert prompt_blocks(told, by_session=True) == ((7, 8), 512)


PREFIXES: list[tuple[Hashable, ...]] = [(1,), (1, 2), (1, 2, 3), (1, 4), (5, 6), (5, 6, 7, 8)]


class Cache(RuleBasedStateMachine):
    """Beside the plainest account of who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache()
        self.holders: list[tuple[Hashable, ...]] = []

    @rule(ids=st.sampled_from(PREFIXES))
    def hold(self, ids: tuple[Hashable, ...]) -> None:
        self.cache.hold(ids, [512] * len(ids))
        self.holders.append(ids)

    @precondition(lambda self: self.holders)
    @rule(choice=st.integers(0))
    def release(self, choice: int) -> None:
        self.cache.release(self.holders.pop(choice % len(self.holders)))

    @rule(tokens=st.sampled_from([0, 512, 1_024, 2_048]))
    def shrink(self, tokens: int) -> None:
        self.cache.shrink(tokens)
        assert self.cache.unused_tokens <= tokens

    @invariant()
    def tokens_are_counted_once(self) -> None:
        held = [block for ids in self.holders for block in ids]
        assert self.cache.shared_tokens == 512 * (len(held) - len(set(held)))
        for ids in self.holders:
            assert self.cache.match(ids) == (len(ids), 512 * len(ids), 512 * len(ids))
        # No block outlives those before it.
        known = {ids[count - 1] for ids in PREFIXES for count in [self.cache.match(ids)[0]] if count}
        reachable = {block for ids in PREFIXES for block in ids[: self.cache.match(ids)[0]]}
        assert known <= reachable
        assert self.cache.unused_tokens == 512 * len(reachable - set(held))


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=40, stateful_step_count=25)


def test_releasing_what_nobody_holds_is_an_error() -> None:
    with pytest.raises(KeyError):
        PrefixCache().release((1,))
