"""A slice taken while a file is read is the slice of the file read whole, in whatever order its rows come."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from selector.files.traces.rows import Row
from selector.files.traces.slicing import DISORDER_S, Slice

# Whole seconds, so that sums are exact. A row comes at most half of DISORDER_S before its place.
ARRIVALS = st.lists(
    st.tuples(st.integers(0, 20_000), st.integers(0, int(DISORDER_S / 2))), min_size=1, max_size=40
).map(lambda pairs: [base + late for base, late in sorted(pairs)])


def read(arrivals: list[int], wanted: Slice) -> tuple[list[int], list[int]]:
    """Lines that the slice holds, and lines that were held on the way, reading as `load_trace` does."""
    held = []
    for line, arrival_s in enumerate(arrivals):
        if wanted.takes(float(arrival_s)):
            held.append(Row(line, float(arrival_s), 1, 1))
        elif wanted.over:
            break
    return [row.line for row in wanted.cut(held)[0]], [row.line for row in held]


@given(
    ARRIVALS,
    st.integers(0, 12_000),
    st.one_of(st.just(math.inf), st.integers(1, 12_000)),
    st.one_of(st.none(), st.integers(1, 10)),
)
def test_a_slice_is_the_same_read_on_the_way_or_cut_afterwards(
    arrivals: list[int], from_s: int, length_s: float, limit: int | None
) -> None:
    start_s = min(arrivals) + from_s
    inside = [line for line, at in enumerate(arrivals) if start_s <= at < start_s + length_s]
    expected = sorted(inside, key=lambda line: arrivals[line])[:limit]
    found, held = read(arrivals, Slice(from_s, from_s + length_s, limit))
    assert found == expected
    # What is held beside the slice is near it.
    assert all(start_s - DISORDER_S <= arrivals[line] for line in held if arrivals[0] == min(arrivals))


def test_rows_far_from_the_slice_are_not_held_and_reading_ends() -> None:
    arrivals = list(range(0, 1_000_000, 100))
    found, held = read(arrivals, Slice(500_000, 501_000, None))
    assert len(found) == 10
    assert len(held) <= 10 + DISORDER_S / 100
    wanted = Slice(0, math.inf, 5)
    found, held = read(arrivals, wanted)
    assert found == held == [0, 1, 2, 3, 4]
    assert wanted.latest_s <= 400 + DISORDER_S + 100
