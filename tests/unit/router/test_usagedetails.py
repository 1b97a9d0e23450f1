"""Drafts in a usage: what is known, in the one place, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selector.core.speccounts import SpecCounts
from selector.router.usagedetails import with_drafts

SPEC = SpecCounts(verify_passes=3, accepted_drafts=5, proposed_drafts=9)
KNOWN = {"accepted_prediction_tokens": 5, "rejected_prediction_tokens": 4}
USAGE = {"prompt_tokens": 2, "total_tokens": 10, "completion_tokens": 8, "completion_tokens_details": None}
LEAVES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8)
VALUES = LEAVES | st.lists(LEAVES, max_size=2) | st.dictionaries(st.text(max_size=5) | st.just("usage"), LEAVES)


@given(
    st.dictionaries(st.text(max_size=5), VALUES, max_size=3),
    st.dictionaries(st.text(max_size=5), VALUES, max_size=3),
    st.sampled_from([None, {}, {"reasoning_tokens": 3}]),
    st.sampled_from([None, 1]),
    st.booleans(),
    st.sampled_from([(b"", b""), (b"data: ", b"\n\n"), (b"data: ", b"\r\n\r\n")]),
)
def test_only_the_usage_changes_and_only_by_the_drafts(
    before: dict[str, Any],
    after: dict[str, Any],
    details: object,
    indent: int | None,
    ascii_only: bool,
    frame: tuple[bytes, bytes],
) -> None:
    indent = None if frame[0] else indent
    usage = {**USAGE, "completion_tokens_details": details, "ü": "世"}
    parts = [json.dumps(part, indent=indent, ensure_ascii=ascii_only).encode() for part in (before, usage, after)]
    head = parts[0].rstrip()[:-1] + (b"," if before else b"")
    tail = (b"," if after else b"") + parts[2].lstrip()[1:]
    document = frame[0] + head + b'"usage" : ' + parts[1] + tail + frame[1]
    if "usage" in after:  # the last of two fields of one name counts
        return
    filled = with_drafts(document, SPEC)
    assert filled.startswith(frame[0] + head + b'"usage" : {')
    assert filled.endswith(tail + frame[1])
    expected = {**usage, "completion_tokens_details": {**(details if isinstance(details, dict) else {}), **KNOWN}}
    assert orjson.loads(filled[len(frame[0]) :]) == {**before, "usage": expected, **after}


@pytest.mark.parametrize(
    ("spec", "details"),
    [
        (SpecCounts(verify_passes=3, accepted_drafts=5), {"accepted_prediction_tokens": 5}),
        # SGLang's 0 for a number that it does not know
        (SpecCounts(verify_passes=3, accepted_drafts=5, proposed_drafts=0), {"accepted_prediction_tokens": 5}),
        (
            SpecCounts(verify_passes=0, accepted_drafts=0, proposed_drafts=0),
            {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
        ),
    ],
)
def test_a_count_that_is_not_known_is_absent(spec: SpecCounts, details: dict[str, int]) -> None:
    usage = orjson.loads(with_drafts(orjson.dumps({"usage": USAGE}), spec))["usage"]
    assert usage["completion_tokens_details"] == details


@pytest.mark.parametrize(
    ("completion_tokens", "spec", "accepted", "rejected"),
    [
        # as a server answered with a limit of 60: 4 of the last pass were cut off
        (60, SpecCounts(verify_passes=19, accepted_drafts=44, proposed_drafts=95), 41, 51),
        # the first token, a pass that left 4 drafts and its own, a pass of which nothing but its own was left
        (7, SpecCounts(verify_passes=2, accepted_drafts=4, proposed_drafts=14), 4, 10),
        (6, SpecCounts(verify_passes=1, accepted_drafts=7, proposed_drafts=7), 5, 0),
        (1, SpecCounts(verify_passes=0, accepted_drafts=0), 0, None),
    ],
)
def test_drafts_that_were_cut_off_the_answer_are_in_no_count(
    completion_tokens: int, spec: SpecCounts, accepted: int, rejected: int | None
) -> None:
    usage = {**USAGE, "completion_tokens": completion_tokens}
    details = orjson.loads(with_drafts(orjson.dumps({"usage": usage}), spec))["usage"]["completion_tokens_details"]
    assert details.get("accepted_prediction_tokens") == accepted
    assert details.get("rejected_prediction_tokens") == rejected
    assert spec.verify_passes + accepted <= completion_tokens


@pytest.mark.parametrize(
    "spec",
    [
        None,
        SpecCounts(verify_passes=3, accepted_drafts=-1, proposed_drafts=9),
        SpecCounts(verify_passes=3, accepted_drafts=7, proposed_drafts=6),
        SpecCounts(verify_passes=9, accepted_drafts=0, proposed_drafts=9),  # more passes than tokens
        SpecCounts(verify_passes=-1, accepted_drafts=0, proposed_drafts=9),
    ],
)
def test_nothing_is_said_from_counts_that_are_not_there_or_cannot_be(spec: SpecCounts | None) -> None:
    document = orjson.dumps({"usage": USAGE})
    assert with_drafts(document, spec) is document


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b'"usage"',
        b'["usage"]',
        b'{"usage":null}',
        b'{"usage":{}}',
        b'{"usage":{"completion_tokens":null}}',
        b'{"usage":{"completion_tokens":8,"completion_tokens_details":[1]}}',
        b'{"usage":{"completion_tokens":8',
        b'{"x":{"usage":{"completion_tokens":8}}}',
        b'{"usage":{"completion_tokens":8,"completion_tokens_details":{"accepted_prediction_tokens":1}}}',
        b'{"usage":{"completion_tokens":8,"completion_tokens_details":{"rejected_prediction_tokens":0}}}',
        b'{"usage":' + b"[" * 3000,
        b'{"usage":{"completion_tokens":8,"x":"\xff"}}',
    ],
)
def test_whatever_has_no_usage_to_add_to_or_says_it_already_stays(document: bytes) -> None:
    assert with_drafts(document, SPEC) is document


def test_a_null_count_is_no_count() -> None:
    usage = {**USAGE, "completion_tokens_details": dict.fromkeys(KNOWN)}
    filled = orjson.loads(with_drafts(orjson.dumps({"usage": usage}), SPEC))
    assert filled["usage"]["completion_tokens_details"] == KNOWN
