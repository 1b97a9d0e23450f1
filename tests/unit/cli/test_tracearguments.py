"""The options that name traces: what they take, which trace each is for, and what is recorded of them."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import pytest

from selector.cli.tracearguments import LoadedTraces, add_trace_arguments, load_traces
from selector.errors import TraceError, UsageError

HEADER = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    """40 requests, two every 10 s from 100 s on, with prompts of 1, 2, 3 … tokens."""
    return _written(tmp_path / "chat.csv", [100 + 10 * (n // 2) for n in range(40)])


@pytest.fixture
def coding(tmp_path: Path) -> Path:
    """20 requests, one every 20 s from 5 s on."""
    return _written(tmp_path / "coding.csv", [5 + 20 * n for n in range(20)])


def _written(path: Path, arrivals: list[int]) -> Path:
    path.write_text("\n".join([HEADER, *(f"{at},GPT-4,{n + 1},2,3,API log" for n, at in enumerate(arrivals))]))
    return path


def loaded(*options: object) -> LoadedTraces:
    parser = argparse.ArgumentParser()
    add_trace_arguments(parser)
    return load_traces(parser.parse_args(list(map(str, options)), argparse.Namespace(seed=0)))


def test_one_trace_keeps_its_names_and_says_what_was_assumed(chat: Path) -> None:
    traces = loaded("--trace", chat)
    assert (len(traces.trace.requests), traces.trace.requests[0].request_id) == (40, "r2")
    assert traces.document() == {
        "name": "chat",
        "kind": "burstgpt",
        "requests": 40,
        "bad_rows": 0,
        "skipped": {},
        "text_mix": {"conversation": 1.0},
        "sources": [
            {
                "path": str(chat), "name": "chat", "kind": "burstgpt", "requests": 40, "bad_rows": 0, "skipped": {},
                "rows_out_of_order": 0, "slice_s": [0.0, None], "text_mix": {"conversation": 1.0},
                "text_mix_from": "kind", "text_types_assumed": 40,
            }
        ],
    }  # fmt: skip
    assert list(traces.summary()) == ["trace chat: text conversation 100% (assumed)"]


def test_traces_are_interleaved_each_with_its_own_slice_and_mix(chat: Path, coding: Path) -> None:
    options = ("--slice", "10:30", "--slice", "0:60", "--text-mix", "news", "--text-mix", "own")
    traces = loaded("--trace", chat, "--trace", coding, *options)
    requests = traces.trace.requests
    assert [r.arrival_s for r in requests] == [0, 0, 0, 10, 10, 20, 40]
    assert [r.request_id[:2] for r in requests] == ["t0", "t0", "t1", "t0", "t0", "t1", "t1"]
    assert [r.text_type for r in requests] == ["news", "news", "conversation", "news", "news"] + ["conversation"] * 2
    answer = traces.document()
    assert (answer["name"], answer["text_mix"]) == ("chat+coding", None)
    assert [(s["slice_s"], s["text_mix"], s["text_mix_from"]) for s in answer["sources"]] == [
        ([10.0, 30.0], {"news": 1.0}, "option"),
        ([0.0, 60.0], {"conversation": 1.0}, "kind"),
    ]


def test_a_value_given_once_is_for_every_trace(chat: Path, coding: Path) -> None:
    traces = loaded("--trace", chat, "--trace", coding, "--slice", ":50", "--text-mix", "code=1,math=1")
    assert [len(source.trace.requests) for source in traces.sources] == [10, 3]
    assert set(Counter(r.text_type for r in traces.trace.requests)) == {"code", "math"}
    assert traces.document()["text_mix"] == {"code": 0.5, "math": 0.5}


def test_the_same_trace_twice_does_not_draw_the_same_text_twice(chat: Path) -> None:
    requests = loaded("--trace", chat, "--trace", chat, "--text-mix", "code=1,math=1").trace.requests
    first = [r.text_type for r in requests if r.request_id.startswith("t0.")]
    second = [r.text_type for r in requests if r.request_id.startswith("t1.")]
    assert len(first) == len(second) == 40
    assert 8 < sum(a == b for a, b in zip(first, second, strict=True)) < 32


@pytest.mark.parametrize("options", [(), ("--spread-arrivals", "10")])
def test_a_limit_is_the_beginning_of_what_there_would_be_without_it(
    chat: Path, coding: Path, options: tuple[str, ...]
) -> None:
    both = ("--trace", chat, "--trace", coding, "--text-mix", "code=1,math=1", *options)
    assert loaded(*both, "--limit", 7).trace.requests == loaded(*both).trace.requests[:7]


def test_shared_arrivals_are_spread_when_asked(chat: Path) -> None:
    requests = loaded("--trace", chat, "--spread-arrivals", "4").trace.requests
    assert [r.arrival_s for r in requests[:4]] == [0, 2, 10, 12]


def test_a_bad_row_is_refused_when_strict(chat: Path) -> None:
    chat.write_text(chat.read_text() + "\n1,2\n")
    assert list(loaded("--trace", chat).notes()) == [f"skipped {chat}: line 42: has 2 columns instead of 6"]
    with pytest.raises(TraceError, match="line 42"):
        loaded("--trace", chat, "--strict")


def test_values_for_another_number_of_traces_are_refused(chat: Path) -> None:
    with pytest.raises(UsageError, match=r"--slice: is given 2 times for 3 traces; give it once, or once per --trace"):
        loaded(*["--trace", chat] * 3, "--slice", "0:1", "--slice", "0:2")


@pytest.mark.parametrize("value", ["5", "a:b", "5:5", "9:3", "-1:3", "nan:3", "0:inf", "1:2:3", ""])
def test_a_slice_that_is_none_is_refused(chat: Path, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        loaded("--trace", chat, f"--slice={value}")
    assert "argument --slice: " in capsys.readouterr().err
