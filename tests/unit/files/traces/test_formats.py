"""Each published format as published, and what is wrong with a row in words."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from selector.errors import TraceError
from selector.files.trace import Trace, load_trace
from tests.loglines import decision_line, end_line

ROOT = Path(__file__).parents[4]
PUBLISHED = Path(os.environ.get("DRAFTER_SELECTOR_SHARED", ROOT.parent / "shared")) / "data" / "traces"

BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
BURSTGPT_3 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"


def read(tmp_path: Path, *lines: str, strict: bool = False) -> Trace:
    path = tmp_path / "trace"
    path.write_text("\n".join(lines))
    return load_trace(path, strict=strict)


def lengths(trace: Trace) -> list[tuple[float, int, int]]:
    return [(request.arrival_s, request.prompt_tokens, request.output_tokens) for request in trace.requests]


# ---- Azure

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"


def test_azure_2023_times_keep_their_100_ns(tmp_path: Path) -> None:
    trace = read(tmp_path, AZURE, "2023-11-16 18:15:59.9999999,1,2", "2023-11-16 18:16:00.0000001,3,4", strict=True)
    assert trace.requests[1].arrival_s == pytest.approx(2e-7, abs=1e-12)


def test_azure_2024_times_have_a_zone_and_perhaps_no_fraction(tmp_path: Path) -> None:
    rows = (
        "2024-05-10 00:00:00.009930+00:00,2162,5",
        "2024-05-10 00:00:01+00:00,1,1",
        "2024-05-10 02:00:01.5+02:00,1,2",
        "2024-05-10T00:00:02Z,1,3",
        "2024-05-10T00:00:02-01:00,1,4",
    )
    trace = read(tmp_path, AZURE, *rows, strict=True)
    assert [r.arrival_s for r in trace.requests] == pytest.approx([0, 0.99007, 1.49007, 1.99007, 3601.99007], abs=1e-9)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("2023-11-16 18:15:51.0,12", "has 2 columns instead of 3"),
        ("2023-11-16 18:15:51.0,12,3,4", "has 4 columns instead of 3"),
        ("2023-11-16 18:15:51.0,0,5", "ContextTokens is '0', not between 1 and 2,147,483,647"),
        ("2023-11-16 18:15:51.0,5,-3", "GeneratedTokens is '-3', not between 1 and 2,147,483,647"),
        ("2023-11-16 18:15:51.0,99999999999,5", "ContextTokens is '99999999999', not between 1 and 2,147,483,647"),
        ("2023-11-16 18:15:51.0,five,5", "ContextTokens is 'five', not a number"),
        ("2023-11-16 18:15:51.0,,5", "ContextTokens is '', not a number"),
        ("2023-11-16 18:15:51.0,nan,5", "ContextTokens is 'nan', not a finite number"),
        ("2023-11-16 18:15:51.0,2.5,5", "ContextTokens is '2.5', not a whole number"),
        ("2023-11-16 18:15:51.0e3,5,5", "TIMESTAMP is '2023-11-16 18:15:51.0e3', not a date and time"),
        ("2023-13-16 18:15:51.0,5,5", "TIMESTAMP is '2023-13-16 18:15:51.0', no time of the calendar"),
        ("inf,5,5", "TIMESTAMP is 'inf', not a date and time"),
    ],
)
def test_azure_rows_that_cannot_be_read(tmp_path: Path, row: str, problem: str) -> None:
    trace = read(tmp_path, AZURE, "2023-11-16 18:15:50.0,1,1", row, "2023-11-16 18:15:52.0,5.0, 7")
    assert [(bad.line, bad.problem) for bad in trace.bad_rows] == [(3, problem)]
    assert lengths(trace) == [(0, 1, 1), (2, 5, 7)]


# ---- BurstGPT


def test_burstgpt_failures_are_skipped_and_counted_even_when_strict(tmp_path: Path) -> None:
    rows = ("5,ChatGPT,472,18,490,Conversation log", "45,GPT-4,300,0,300,API log", "118,GPT-4,417,276,693,API log")
    trace = read(tmp_path, BURSTGPT, *rows, strict=True)
    assert (trace.kind, lengths(trace)) == ("burstgpt", [(0, 472, 18), (113, 417, 276)])
    assert trace.skipped == {"failed, 0 response tokens": 1}
    assert trace.bad_row_count == 0


def test_burstgpt_sessions_are_kept(tmp_path: Path) -> None:
    rows = (
        "19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log",
        "19440161.5,1722ac82,2,ChatGPT,36,29,65,Conversation log",
        "19440162.0,,2,ChatGPT,36,29,65,API log",
    )
    trace = read(tmp_path, BURSTGPT_3, *rows, strict=True)
    assert lengths(trace) == [(0, 906, 446), (51.5, 36, 29), (52, 36, 29)]
    assert [r.session_key for r in trace.requests] == ["1722ac82", "1722ac82", None]
    assert trace.requests[0].session_key is trace.requests[1].session_key


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("-1,ChatGPT,472,18,490,API log", "Timestamp is '-1', below 0"),
        ("1e999,ChatGPT,472,18,490,API log", "Timestamp is '1e999', not a finite number"),
        ("6,ChatGPT,0,18,18,API log", "Request tokens is '0', not between 1 and 2,147,483,647"),
        ("6,ChatGPT,4,-1,18,API log", "Response tokens is '-1', not between 0 and 2,147,483,647"),
        ("6,ChatGPT,4", "has 3 columns instead of 6"),
    ],
)
def test_burstgpt_rows_that_cannot_be_read(tmp_path: Path, row: str, problem: str) -> None:
    trace = read(tmp_path, BURSTGPT, "5,ChatGPT,472,18,490,API log", row)
    assert [(bad.line, bad.problem) for bad in trace.bad_rows] == [(3, problem)]


# ---- ServeGen


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("request_id,timestamp,input_tokens,output_tokens", "{n},{t},{i},{o}"),
        ("request_id,timestamp,input_tokens,output_tokens,reason_ratio", "{n},{t},{i},{o},0.608"),
        ("arrived_at_s,client_id,input_tokens,output_tokens,reason_ratio", "{t},,{i},{o},"),
    ],
)
def test_servegen_workloads(tmp_path: Path, header: str, row: str) -> None:
    values = [(0.25, 354, 373), (0.25, 7, 8), (0.5, 0, 9), (0.75, 9, 0), (1.25, 20, 1)]
    rows = [row.format(n=n, t=t, i=i, o=o) for n, (t, i, o) in enumerate(values)]
    trace = read(tmp_path, header, *rows, strict=True)
    assert (trace.kind, lengths(trace)) == ("servegen", [(0, 354, 373), (0, 7, 8), (1, 20, 1)])
    assert trace.skipped == {"drawn with 0 tokens": 2}


def test_a_servegen_row_with_a_missing_value_is_bad(tmp_path: Path) -> None:
    rows = ("0,0.5,10,20", "1,,15,25", "2,1.5,15")
    trace = read(tmp_path, "request_id,timestamp,input_tokens,output_tokens", *rows)
    assert [(bad.line, bad.problem) for bad in trace.bad_rows] == [
        (3, "timestamp is '', not a number"),
        (4, "has 3 columns instead of 4"),
    ]


# ---- Mooncake


def mooncake(**changed: Any) -> str:
    row = {"timestamp": 27482, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]} | changed
    return json.dumps({name: value for name, value in row.items() if value is not ...})


def test_mooncake_times_are_milliseconds_and_blocks_are_kept(tmp_path: Path) -> None:
    second = mooncake(timestamp=30482.5, input_length=1024, hash_ids=[46, 2366])
    trace = read(tmp_path, mooncake(), second, strict=True)
    assert (trace.kind, lengths(trace)) == ("mooncake", [(0, 600, 52), (pytest.approx(3.0005), 1024, 52)])
    assert [r.prefix_hashes for r in trace.requests] == [(46, 47), (46, 2366)]
    assert {r.prefix_block_tokens for r in trace.requests} == {512}


def test_prompts_that_share_a_block_share_its_id_in_memory(tmp_path: Path) -> None:
    trace = read(tmp_path, mooncake(hash_ids=[123_456, 1]), mooncake(hash_ids=[123_456, 2]))
    first, second = trace.requests
    assert first.prefix_hashes[0] is second.prefix_hashes[0]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (mooncake()[:-9], "is not JSON"),
        ("[1]", "is not a JSON object"),
        (mooncake(output_length=...), "has no output_length"),
        (mooncake(output_length=0), "output_length is 0, not a whole number between 1"),
        (mooncake(input_length=600.5), "input_length is 600.5, not a whole number"),
        (mooncake(input_length=True), "input_length is True, not a whole number"),
        (mooncake(timestamp=-1), "timestamp is -1, not a number of ms, 0 or more"),
        (mooncake(timestamp=float("nan")), "is not JSON"),
        (mooncake(timestamp="3"), "timestamp is '3', not a number of ms"),
        (mooncake(hash_ids=[1]), "hash_ids has 1 blocks of 512 for 600 tokens"),
        (mooncake(hash_ids=[1, "2"]), "hash_ids is [1, '2'], not a list of whole numbers"),
        (mooncake(hash_ids=None), "hash_ids is None, not a list of whole numbers"),
    ],
)
def test_mooncake_rows_that_cannot_be_read(tmp_path: Path, row: str, problem: str) -> None:
    trace = read(tmp_path, mooncake(), row, mooncake())
    assert [bad.line for bad in trace.bad_rows] == [2]
    assert problem in trace.bad_rows[0].problem
    assert [r.request_id for r in trace.requests] == ["r1", "r3"]


# ---- decision log


def log_lines() -> list[dict[str, Any]]:
    asked = {"max_output_tokens": 64, "slo_class": "chat", "tbt_target_ms": 25.0, "session_key": "s"}
    return [
        decision_line(t_s=1.5, **asked),
        end_line(t_s=2.5, accepted_tokens=33),
        *(decision_line(t_s=3.0, request_id=name, **asked) for name in "bc"),
        end_line(t_s=4.0, request_id="b", finish="failed"),
        end_line(t_s=4.0, request_id="lost"),
    ]


def start_line() -> dict[str, Any]:
    policy = {"label": "static", "sha256": "0", "params": {}}
    return {
        "v": 1, "event": "start", "wall": "2026-01-01T00:00:00Z", "version": "0", "target": "t", "policy": policy,
        "fallback": policy, "seed": 0, "backends": [],
    }  # fmt: skip


def as_log(*records: dict[str, Any]) -> list[str]:
    return [orjson.dumps(record).decode() for record in records]


def test_a_decision_log_is_a_trace_of_its_completed_requests(tmp_path: Path) -> None:
    trace = read(tmp_path, *as_log(*log_lines()), strict=True)
    (request,) = trace.requests
    assert (trace.kind, request.text_type) == ("decisions", "code")
    assert (request.prompt_tokens, request.output_tokens) == (110, 33)
    assert (request.slo_class, request.max_output_tokens, request.session_key) == ("chat", 64, "s")
    assert trace.skipped == {"failed": 1, "ended without a decision in the log": 1, "did not end in the log": 1}


def test_runs_of_a_decision_log_follow_one_another(tmp_path: Path) -> None:
    trace = read(tmp_path, *as_log(start_line(), *log_lines(), start_line(), *log_lines()), strict=True)
    # The second run begins at 4.0, where the first was last heard of.
    assert [r.arrival_s for r in trace.requests] == [0.0, 4.0]
    assert len({r.request_id for r in trace.requests}) == 2


def test_a_cut_decision_log_line_is_a_bad_row(tmp_path: Path) -> None:
    lines = [*as_log(*log_lines()), '{"v":1,"event":"en']
    trace = read(tmp_path, *lines)
    assert (len(trace.requests), [bad.line for bad in trace.bad_rows]) == (1, [7])
    assert trace.bad_rows[0].problem.startswith("is not JSON")
    with pytest.raises(TraceError, match=r"trace: line 7: is not JSON"):
        read(tmp_path, *lines, strict=True)
    wrong = log_lines()
    wrong[1]["outcome"]["accepted_tokens"] = "many"
    assert "outcome.accepted_tokens is 'many'" in read(tmp_path, *as_log(*log_lines(), *wrong)).bad_rows[0].problem


# ---- the published files, where they are


@pytest.mark.parametrize(
    ("name", "kind", "requests", "last_s"),
    [
        ("azure_2023_code.csv", "azure", 8_819, 3_435.9),
        ("azure_2023_conv.csv", "azure", 15_460, 2_626.3),
        ("mooncake_conversation.jsonl", "mooncake", 8_777, 2_652.0),
        ("mooncake_synthetic.jsonl", "mooncake", 3_993, 1_022.0),
        ("servegen_deepseek_r1_1h.csv", "servegen", 7_122, 3_600.0),
        ("servegen_m_small_1h.csv", "servegen", 17_977, 3_600.0),
    ],
)
def test_published_files_are_read_whole(name: str, kind: str, requests: int, last_s: float) -> None:
    path = PUBLISHED / name
    if not path.is_file():
        pytest.skip(f"{path} is not here; DRAFTER_SELECTOR_SHARED names the folder that holds data/traces")
    trace = load_trace(path, strict=True)
    assert (trace.kind, len(trace.requests), trace.skipped) == (kind, requests, {})
    assert trace.requests[-1].arrival_s == pytest.approx(last_s, abs=0.06)
