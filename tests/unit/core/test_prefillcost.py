"""What passes over prompts are padded to, and what that costs. (The rest of `PrefillCost` is in test_cost.)"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selector.core.prefillcost import PrefillCost
from selector.errors import DomainError

POINTS = [(1_000.0, 20.0, 14.0), (8_000.0, 200.0, 135.0)]
"""20 µs a token and 14 mJ, later more."""
GRAPHS = (512, 64, 256)
PADDED = PrefillCost(POINTS, floor_ms=2.0, floor_j=1.0, graphs=GRAPHS)
PLAIN = PrefillCost(POINTS, floor_ms=2.0, floor_j=1.0)


@pytest.mark.parametrize(
    ("tokens", "computed"),
    [
        (256, 256),  # as many as a graph has
        (257, 512),
        (300.5, 512),
        (512, 512),
        (513, 513),  # beyond the largest
        (128, 256),  # twice its tokens …
        (127, 127),  # … and more: it runs without a graph
        (65, 65),
        (33, 64),
        (31, 31),
    ],
)
def test_a_pass_computes_all_tokens_of_the_least_graph_that_holds_it(tokens: float, computed: int) -> None:
    assert tokens + PADDED.padding(tokens) == pytest.approx(computed)
    expected = (max(2.0, 0.02 * computed), max(1.0, 0.014 * computed))
    assert PADDED.cost(tokens) == pytest.approx(expected)
    assert PADDED.stall_ms(tokens) == pytest.approx(expected[0])


def test_padding_is_priced_by_the_cheapest_token_and_not_by_where_in_its_prompt_a_pass_is() -> None:
    late = PLAIN.work(300, after=4_000)
    assert late[0] > 300 * 0.02
    assert PADDED.cost(300, after=4_000) == pytest.approx((late[0] + 212 * 0.02, late[1] + 212 * 0.014))


def test_prompts_of_one_pass_are_padded_together() -> None:
    ms, j = PADDED.work(200)[0] + PADDED.work(150)[0], PADDED.work(200)[1] + PADDED.work(150)[1]
    assert PADDED.of_pass(ms, j, 350) == pytest.approx((512 * 0.02, 512 * 0.014))


def test_what_a_pass_takes_beside_its_work_is_added_once_and_not_to_the_floor() -> None:
    cost = PrefillCost(POINTS, floor_ms=7.0, floor_j=1.0, beside_ms=3.0, beside_j=0.5, graphs=GRAPHS)
    assert cost.cost(190) == pytest.approx((256 * 0.02 + 3.0, 256 * 0.014 + 0.5))
    assert cost.cost(64) == pytest.approx((7.0, 64 * 0.014 + 0.5))
    assert cost.of_pass(*cost.work(600), 600) == pytest.approx((600 * 0.02 + 3.0, 600 * 0.014 + 0.5))
    assert cost.mean_stall(600) == pytest.approx((600 * 0.02 + 3.0, 600 * 0.014 + 0.5))


def test_without_a_list_nothing_is_padded() -> None:
    assert PLAIN.cost(300) == PLAIN.work(300)
    assert (PLAIN.graphs, PADDED.graphs) == ((), (64, 256, 512))


@pytest.mark.parametrize(
    ("mean", "padding"),
    [
        (300, 0.5 * 256),  # of 257 … 512 all are padded
        (450, 0.5 * 256),
        (100, 0.5 * 128 * 128 / 192),  # of 65 … 256 those from 128 on
        (600, 0.0),
    ],
)
def test_where_only_the_mean_is_known_padding_is_that_of_even_lengths(mean: float, padding: float) -> None:
    tokens = mean + padding
    assert PADDED.mean_stall(mean) == pytest.approx((max(2.0, 0.02 * tokens), max(1.0, 0.014 * tokens)))
    lengths = {300: range(257, 513), 450: range(257, 513), 100: range(65, 257), 600: (600,)}[int(mean)]
    assert sum(map(PADDED.padding, lengths)) / len(lengths) == pytest.approx(padding, abs=0.6)
    assert PADDED.mean_stall(0.0) == (0.0, 0.0)


@given(st.lists(st.integers(1, 4_000), max_size=5, unique=True), st.integers(1, 5_000), st.integers(0, 400))
def test_more_tokens_take_no_less_and_the_most_is_known(graphs: list[int], tokens: int, more: int) -> None:
    cost = PrefillCost(POINTS, floor_ms=2.0, floor_j=1.0, beside_ms=2.5, resume_ms=1.5, graphs=graphs)
    ms, j = cost.cost(tokens)
    longer_ms, longer_j = cost.cost(tokens + more)
    assert longer_ms >= ms - 1e-9
    assert longer_j >= j - 1e-9
    assert cost.stall_ms(tokens) <= cost.work(tokens)[0] + cost.most_beside_work_ms() + 1e-9


def test_a_graph_of_nothing_is_refused() -> None:
    with pytest.raises(DomainError, match="at least one token"):
        PrefillCost(POINTS, graphs=(0, 64))
