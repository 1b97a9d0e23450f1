"""The front door of traces: what is told apart, what is refused in words, and what a slice or a limit keeps."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from selector import data
from selector.errors import TraceError
from selector.files.trace import default_text_mix, load_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:15:46.6805900,374,44\r
2023-11-16 18:15:50.9951690,396,109\r
2023-11-16 18:15:48.0000000,7,1\r
"""


def written(tmp_path: Path, text: str | bytes, name: str = "azure_conv.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def seconds_file(tmp_path: Path, arrivals: list[float]) -> Path:
    """A BurstGPT file with those arrivals; the prompt of row n has n + 1 tokens."""
    rows = [f"{arrival_s},GPT-4,{number + 1},5,6,API log" for number, arrival_s in enumerate(arrivals)]
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    return written(tmp_path, "\n".join([header, *rows]))


@pytest.mark.parametrize("change", ["none", "bom", "lf", "gzip", "blank lines", "no last newline", "spaced header"])
def test_a_file_is_read_the_same_however_it_was_saved(tmp_path: Path, change: str) -> None:
    saved = AZURE.encode()
    if change == "bom":
        saved = b"\xef\xbb\xbf" + saved
    elif change == "lf":
        saved = saved.replace(b"\r\n", b"\n")
    elif change == "gzip":
        saved = gzip.compress(saved)
    elif change == "blank lines":
        saved = saved + b"\r\n \r\n"
    elif change == "no last newline":
        saved = saved[:-2]
    elif change == "spaced header":
        saved = saved.replace(b",Con", b", Con")
    trace = load_trace(written(tmp_path, saved, "conv.csv.gz" if change == "gzip" else "conv.csv"), strict=True)
    assert (trace.name, trace.kind) == ("conv", "azure")
    assert [(r.request_id, r.prompt_tokens, r.output_tokens) for r in trace.requests] == [
        ("r2", 374, 44), ("r4", 7, 1), ("r3", 396, 109),
    ]  # fmt: skip
    assert trace.requests[0].arrival_s == 0.0
    assert trace.requests[2].arrival_s == pytest.approx(4.3145790, abs=1e-9)
    assert trace.rows_out_of_order == 1


def test_equal_arrivals_keep_the_order_of_the_file(tmp_path: Path) -> None:
    trace = load_trace(seconds_file(tmp_path, [7, 5, 7, 5, 5]))
    assert [r.prompt_tokens for r in trace.requests] == [2, 4, 5, 1, 3]
    assert [r.arrival_s for r in trace.requests] == [0, 0, 0, 2, 2]


def test_a_bad_row_is_skipped_with_its_line_or_refused(tmp_path: Path) -> None:
    path = written(tmp_path, AZURE + "\r\nyesterday,5,5\r\n2023-11-16 18:15:51.0,\xff5,5\r\n2023-11-16 18:1")
    trace = load_trace(path)
    assert len(trace.requests) == 3
    assert [bad.line for bad in trace.bad_rows] == [6, 7, 8]
    assert trace.bad_row_count == 3
    assert "'yesterday'" in trace.bad_rows[0].problem
    assert trace.bad_rows[2].problem == "has 1 columns instead of 3"
    with pytest.raises(TraceError, match=r"azure_conv\.csv: line 6: TIMESTAMP is 'yesterday', .*; correct the row"):
        load_trace(path, strict=True)


def test_bytes_that_are_no_text_spoil_one_row(tmp_path: Path) -> None:
    path = written(tmp_path, AZURE.encode() + b"2023-11-16 18:15:51.0,\xff\xfe,5\r\n\x00\x01\r\n")
    trace = load_trace(path)
    assert (len(trace.requests), [bad.line for bad in trace.bad_rows]) == (3, [5, 6])


def test_of_many_bad_rows_all_are_counted_and_the_first_are_kept(tmp_path: Path) -> None:
    trace = load_trace(written(tmp_path, AZURE + "x,1,1\n" * 2_500))
    assert trace.bad_row_count == 2_500
    assert [bad.line for bad in trace.bad_rows] == list(range(5, 1_005))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty; check that it was written"),
        (" \r\n\n", "is empty"),
        ("a,b\n1,2\n", "line 1: starts with 'a,b', which is no known trace format; give a file that begins with"),
        ("\n\nTIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n", "line 3: starts with 'TIMESTAMP,NumImages"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no usable request; check"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2\n", r"no usable request \(line 2 has 2 columns instead of 3\)"),
        ('{"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [0], "chat_id": 4}', "no known trace"),
        (gzip.compress(AZURE.encode() * 90, mtime=0)[:60], "damaged gzip file"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, text: str | bytes, says: str) -> None:
    with pytest.raises(TraceError, match=says) as error:
        load_trace(written(tmp_path, text))
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(str(tmp_path))


def test_a_path_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="there is no such trace"):
        load_trace(tmp_path / "nope.csv")
    with pytest.raises(TraceError, match="is a folder without ServeGen clients"):
        load_trace(tmp_path)


def test_a_damaged_first_line_does_not_hide_the_format(tmp_path: Path) -> None:
    good = '{"timestamp": 3, "input_length": 3, "output_length": 1, "hash_ids": [0]}\n'
    path = written(tmp_path, '_length": 3}\n' + good)
    trace = load_trace(path)
    assert (trace.kind, len(trace.requests), [bad.line for bad in trace.bad_rows]) == ("mooncake", 1, [1])
    with pytest.raises(TraceError, match="line 1: stands before the trace begins"):
        load_trace(path, strict=True)


# ---- slice and limit


def test_a_slice_counts_from_the_first_arrival_and_its_arrivals_from_its_start(tmp_path: Path) -> None:
    path = seconds_file(tmp_path, [100, 110, 120, 130])
    trace = load_trace(path, from_s=10, to_s=30)
    assert [(r.prompt_tokens, r.arrival_s) for r in trace.requests] == [(2, 0), (3, 10)]
    assert [r.arrival_s for r in load_trace(path, from_s=5).requests] == [5, 15, 25]
    assert [r.prompt_tokens for r in load_trace(path, limit=2).requests] == [1, 2]
    assert [r.prompt_tokens for r in load_trace(path, from_s=10, limit=1).requests] == [2]


def test_a_slice_and_a_limit_are_exact_where_rows_are_out_of_order(tmp_path: Path) -> None:
    path = seconds_file(tmp_path, [100, 3_000, 2_000, 90, 95])
    assert [r.prompt_tokens for r in load_trace(path, limit=2).requests] == [4, 5]
    assert [r.prompt_tokens for r in load_trace(path, to_s=10).requests] == [4, 5]
    assert [r.prompt_tokens for r in load_trace(path, from_s=10, limit=2).requests] == [1, 3]
    assert load_trace(path, from_s=10, limit=2).requests[0].arrival_s == 0
    late = seconds_file(tmp_path, [0, 3_000, 1_000, 2_000])
    assert [r.prompt_tokens for r in load_trace(late, limit=3).requests] == [1, 3, 4]


def test_reading_ends_with_the_slice(tmp_path: Path) -> None:
    text = seconds_file(tmp_path, [0, 10, 20, 10_000, 10_001]).read_text()
    path = written(tmp_path, text + "\nbroken\n")
    assert load_trace(path, strict=True, to_s=15).bad_row_count == 0
    assert len(load_trace(path, strict=True, limit=3).requests) == 3
    with pytest.raises(TraceError, match="line 7"):
        load_trace(path, strict=True)


def test_an_empty_slice_says_how_long_the_trace_is(tmp_path: Path) -> None:
    path = seconds_file(tmp_path, [100, 110, 130])
    with pytest.raises(TraceError, match="has no request in the slice; the last one read arrives after 30 s; choose"):
        load_trace(path, from_s=31)


# ---- shipped


@pytest.mark.parametrize(
    ("name", "kind", "mix"),
    [
        (data.CONVERSATION_TRACE, "azure", "conversation"),
        (data.CODE_TRACE, "azure", "code"),
        (data.MOONCAKE_TRACE, "mooncake", "conversation"),
        (data.SERVEGEN_TRACE, "servegen", "conversation"),
    ],
)
def test_shipped_slices_are_traces(name: str, kind: str, mix: str) -> None:
    trace = load_trace(data.path(name), strict=True)
    assert len(trace.requests) > 100
    assert (trace.kind, trace.rows_out_of_order, trace.skipped) == (kind, 0, {})
    assert default_text_mix(trace) == {mix: 1.0}
