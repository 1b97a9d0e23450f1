"""Traces as published and our own decision log; bad rows; text mixes."""

from pathlib import Path

import orjson
import pytest

from selector import data
from selector.errors import TraceError
from selector.files.trace import default_text_mix, load_trace, parse_text_mix, scaled, with_text_types

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:15:46.6805900,374,44\r
2023-11-16 18:15:50.9951690,396,109\r
2023-11-16 18:15:48.0000000,7,1\r
"""


def written(tmp_path: Path, text: str, name: str = "azure_conv.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


def test_azure_2023_is_read_as_published_and_sorted_by_arrival(tmp_path: Path) -> None:
    trace = load_trace(written(tmp_path, AZURE))
    assert [(r.prompt_tokens, r.output_tokens) for r in trace.requests] == [(374, 44), (7, 1), (396, 109)]
    assert trace.requests[0].arrival_s == 0.0
    assert trace.requests[2].arrival_s == pytest.approx(4.3145790, abs=1e-6)
    assert trace.kind == "azure"
    assert len({r.request_id for r in trace.requests}) == 3


def test_azure_2024_timestamps_with_a_zone(tmp_path: Path) -> None:
    rows = (
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2024-05-10 00:00:00.009930+00:00,2162,5",
        "2024-05-10 00:00:01.5+00:00,1,1",
    )
    text = "\n".join(rows)
    trace = load_trace(written(tmp_path, text))
    assert trace.requests[1].arrival_s == pytest.approx(1.49007, abs=1e-6)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("2023-11-16 18:15:51.0,12", "2 columns"),
        ("2023-11-16 18:15:51.0,0,5", "0 prompt"),
        ("2023-11-16 18:15:51.0,5,0", "0 output"),
        ("yesterday,5,5", "yesterday"),
        ("2023-11-16 18:15:51.0,five,5", "five"),
    ],
)
def test_a_bad_row_is_skipped_with_its_line_or_refused(tmp_path: Path, row: str, says: str) -> None:
    path = written(tmp_path, AZURE + row + "\r\n")
    trace = load_trace(path)
    assert len(trace.requests) == 3
    assert [bad.line for bad in trace.bad_rows] == [5]
    assert says in trace.bad_rows[0].problem
    with pytest.raises(TraceError, match=rf"azure_conv\.csv: line 5: .*{says}"):
        load_trace(path, strict=True)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "TIMESTAMP,ContextTokens,GeneratedTokens\n"])
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceError) as error:
        load_trace(written(tmp_path, text))
    assert "\n" not in str(error.value)


def test_shipped_slices_are_traces() -> None:
    for name, mix in (("azure_2023_conv_slice.csv", "conversation"), ("azure_2023_code_slice.csv", "code")):
        trace = load_trace(Path(str(data.path(name))))
        assert len(trace.requests) > 100
        assert not trace.bad_rows
        assert default_text_mix(trace) == {mix: 1.0}


def log_lines() -> list[dict[str, object]]:
    request = {
        "request_id": "a", "arrival_s": 1.5, "prompt_tokens": 100, "expected_output_tokens": 50.0,
        "max_output_tokens": 64, "text_type": "code", "text_probabilities": None, "slo_class": "chat",
        "tbt_target_ms": 25.0, "needs": [], "session_key": "s",
    }  # fmt: skip
    outcome = {
        "request_id": "a", "backend": "b0", "arm": "none", "text_type": "code", "finish": "done", "prompt_tokens": 110,
        "accepted_tokens": 33, "dispatched_s": 1.5, "finished_s": 2.5, "ttft_ms": 10.0, "tbt_ms": 5.0,
        "verify_passes": None, "accepted_drafts": None,
    }  # fmt: skip
    decision = {
        "v": 1, "event": "decision", "t_s": 1.5, "request": request, "backend": "b0", "arm": "none", "reason": "r",
        "candidates": [], "fallback": False,
    }  # fmt: skip
    later = {**decision, "t_s": 3.0, "request": {**request, "request_id": "b", "arrival_s": 3.0}}
    return [
        decision,
        {"v": 1, "event": "end", "t_s": 2.5, "outcome": outcome},
        later,
        {"v": 1, "event": "end", "t_s": 4.0, "outcome": {**outcome, "request_id": "b", "finish": "failed"}},
    ]


def test_a_decision_log_is_a_trace_of_its_completed_requests(tmp_path: Path) -> None:
    text = b"\n".join(orjson.dumps(line) for line in log_lines()).decode()
    trace = load_trace(written(tmp_path, text, "decisions.jsonl"))
    (request,) = trace.requests
    assert (request.prompt_tokens, request.output_tokens, request.text_type) == (110, 33, "code")
    assert (request.slo_class, request.max_output_tokens, request.session_key) == ("chat", 64, "s")


def test_a_cut_decision_log_line_names_its_place(tmp_path: Path) -> None:
    text = orjson.dumps(log_lines()[0]).decode() + "\n" + '{"v":1,"event":"en'
    with pytest.raises(TraceError, match=r"decisions\.jsonl:2: is not JSON"):
        load_trace(written(tmp_path, text, "decisions.jsonl"))


def test_text_mix_is_normalised_and_drawn_per_request(tmp_path: Path) -> None:
    assert parse_text_mix("code=3, romansh=1") == {"code": 0.75, "romansh": 0.25}
    assert parse_text_mix("math") == {"math": 1.0}
    trace = load_trace(Path(str(data.path("azure_2023_conv_slice.csv"))))
    typed = with_text_types(trace, parse_text_mix("code=0.5,romansh=0.5"), seed=3)
    share = sum(r.text_type == "code" for r in typed.requests) / len(typed.requests)
    assert 0.4 < share < 0.6
    assert typed == with_text_types(trace, parse_text_mix("code=0.5,romansh=0.5"), seed=3)
    assert typed != with_text_types(trace, parse_text_mix("code=0.5,romansh=0.5"), seed=4)


@pytest.mark.parametrize("mix", ["cod=1", "code=0", "code=-1", "code=x", "code=nan", "code=inf", ""])
def test_a_bad_text_mix_is_refused(mix: str) -> None:
    with pytest.raises(TraceError, match="--text-mix"):
        parse_text_mix(mix)


def test_rate_scale_divides_arrivals(tmp_path: Path) -> None:
    trace = load_trace(written(tmp_path, AZURE))
    assert scaled(trace.requests, 2.0)[2].arrival_s == pytest.approx(trace.requests[2].arrival_s / 2)
