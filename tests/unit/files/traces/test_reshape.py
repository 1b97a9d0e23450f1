"""Rates, shared arrivals, merging, and text types for traces that do not say."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selector import data
from selector.errors import TraceError
from selector.files.trace import (
    Trace,
    TraceRequest,
    default_text_mix,
    load_trace,
    merged,
    parse_text_mix,
    scaled,
    spread,
    with_text_types,
)
from selector.files.traces.request import remade


def request(number: int, arrival_s: float, **more: object) -> TraceRequest:
    return replace(
        TraceRequest(request_id=f"r{number}", arrival_s=arrival_s, prompt_tokens=number + 1, output_tokens=2), **more
    )


def trace(*arrivals: float, name: str = "t", **more: object) -> Trace:
    return Trace(name=name, kind="k", requests=tuple(request(n, at, **more) for n, at in enumerate(arrivals)))


def test_a_remade_request_loses_no_field() -> None:
    full = TraceRequest(
        request_id="a", arrival_s=1.0, prompt_tokens=2, output_tokens=3, max_output_tokens=4, text_type="code",
        slo_class="c", session_key="s", prefix_hashes=(1,), prefix_block_tokens=16,
    )  # fmt: skip
    defaults = {field.name: field.default for field in fields(full)}
    assert all(getattr(full, name) != default for name, default in defaults.items())
    assert remade(full, arrival_s=9.0, text_type="math") == replace(full, arrival_s=9.0, text_type="math")


def test_rate_scale_divides_arrivals() -> None:
    assert [r.arrival_s for r in scaled(trace(0, 3, 5).requests, 2.0)] == [0, 1.5, 2.5]
    assert scaled(trace(0, 3).requests, 1.0) == trace(0, 3).requests


# ---- shared arrivals


def test_shared_arrivals_are_spread_up_to_the_next() -> None:
    steps = trace(0, 0, 0, 3, 6, 6)
    assert [r.arrival_s for r in spread(steps, 3).requests] == [0, 1, 2, 3, 6, 7.5]
    assert [r.arrival_s for r in spread(steps, 0.3).requests] == pytest.approx([0, 0.1, 0.2, 3, 6, 6.15])
    assert [r.arrival_s for r in spread(steps, 99).requests] == [0, 1, 2, 3, 6, 55.5]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=40).map(sorted), st.floats(1e-3, 100))
def test_spreading_keeps_order_and_stays_before_the_next_arrival(arrivals: list[int], over_s: float) -> None:
    before = trace(*map(float, arrivals))
    after = spread(before, over_s)
    assert [r.request_id for r in after.requests] == [r.request_id for r in before.requests]
    moved = [r.arrival_s for r in after.requests]
    assert moved == sorted(moved)
    for old, new in zip(arrivals, moved, strict=True):
        following = min((at for at in arrivals if at > old), default=float("inf"))
        assert old <= new <= min(old + over_s, following)


# ---- merging


def test_merged_traces_keep_apart_what_only_has_the_same_name() -> None:
    first = trace(0, 5, session_key="s", prefix_hashes=(1, 2), prefix_block_tokens=512)
    both = merged([first, replace(first, name="u", kind="l", bad_row_count=3, skipped={"x": 1})])
    assert [r.request_id for r in both.requests] == ["t0.r0", "t1.r0", "t0.r1", "t1.r1"]
    assert [r.session_key for r in both.requests[:2]] == ["t0.s", "t1.s"]
    one, other = (set(r.prefix_hashes) for r in both.requests[:2])
    assert not one & other
    assert both.requests[0].prefix_hashes == both.requests[2].prefix_hashes
    assert (both.name, both.kind, both.bad_row_count, both.skipped) == ("t+u", "k+l", 3, {"x": 1})


def test_one_trace_alone_is_itself() -> None:
    alone = trace(0, 1, 2)
    assert merged([alone]) is alone
    assert [r.request_id for r in merged([alone], limit=2).requests] == ["r0", "r1"]


SORTED = st.lists(st.integers(0, 9), min_size=1, max_size=9).map(sorted)


@given(st.lists(SORTED, min_size=2, max_size=4), st.integers(1, 9))
def test_merging_loses_nothing_and_sorts(arrivals: list[list[int]], limit: int) -> None:
    traces = [trace(*map(float, one)) for one in arrivals]
    both = merged(traces)
    assert [r.arrival_s for r in both.requests] == sorted(at for one in arrivals for at in one)
    assert len({r.request_id for r in both.requests}) == sum(map(len, arrivals))
    assert merged(traces, limit=limit).requests == both.requests[:limit]


# ---- text types


def test_text_mix_is_normalised_and_drawn_per_request() -> None:
    mix = parse_text_mix("code=3, romansh=1")
    assert mix == {"code": 0.75, "romansh": 0.25}
    assert parse_text_mix("math") == {"math": 1.0}
    plain = trace(*range(4_000))
    typed = with_text_types(plain, mix, seed=3)
    drawn = [r.text_type for r in typed.requests]
    assert 0.72 < Counter(drawn)["code"] / len(drawn) < 0.78
    pairs = Counter(pairwise(drawn))
    assert pairs["romansh", "romansh"] / len(drawn) == pytest.approx(1 / 16, abs=0.015)
    assert typed == with_text_types(plain, mix, seed=3)
    for other in (with_text_types(plain, mix, seed=4), with_text_types(plain, mix, seed=3, stream=1)):
        same = sum(a == b.text_type for a, b in zip(drawn, other.requests, strict=True)) / len(drawn)
        assert same == pytest.approx(0.75**2 + 0.25**2, abs=0.04)
    shorter = replace(plain, requests=plain.requests[:100])
    assert with_text_types(shorter, mix, seed=3).requests == typed.requests[:100]


def test_what_the_trace_says_stays() -> None:
    said = trace(0, 1, 2, text_type="news")
    assert with_text_types(said, {"code": 1.0}, seed=0) is said
    partly = replace(said, requests=(*said.requests, request(3, 3.0)))
    assert [r.text_type for r in with_text_types(partly, {"code": 1.0}, seed=0).requests] == ["news"] * 3 + ["code"]


@pytest.mark.parametrize(
    ("name", "mix"),
    [
        ("AzureLLMInferenceTrace_code", "code"),
        ("AzureLLMInferenceTrace_conv", "conversation"),
        ("toolagent_trace", "agentic"),
        ("mooncake_synthetic", "long_document"),
        ("BurstGPT_1", "conversation"),
    ],
)
def test_the_own_kind_of_a_trace_is_what_its_name_says(name: str, mix: str) -> None:
    assert default_text_mix(trace(0, name=name)) == {mix: 1.0}


@pytest.mark.parametrize("mix", ["cod=1", "code=0", "code=-1", "code=x", "code=nan", "code=inf", ""])
def test_a_bad_text_mix_is_refused(mix: str) -> None:
    with pytest.raises(TraceError, match="--text-mix"):
        parse_text_mix(mix)


def test_the_shipped_mooncake_slice_has_prefixes_to_reuse() -> None:
    slice_ = load_trace(Path(data.path(data.MOONCAKE_TRACE)))
    known: set[int] = set()
    reused = 0
    for one in slice_.requests:
        reused += sum(block in known for block in one.prefix_hashes)
        known.update(one.prefix_hashes)
    assert 0.05 < reused / sum(len(one.prefix_hashes) for one in slice_.requests) < 0.9
    shared = [r.arrival_s for r in slice_.requests]
    assert len(set(shared)) < len(shared) / 3
