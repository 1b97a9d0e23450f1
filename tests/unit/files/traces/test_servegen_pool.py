"""A workload drawn from fitted clients: its rate, its lengths, its slices, and pools that cannot be read."""

from __future__ import annotations

import csv
import gzip
import json
import math
import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from selector.errors import TraceError
from selector.files.trace import load_trace

ROOT = Path(__file__).parents[4]
PUBLISHED = Path(os.environ.get("DRAFTER_SELECTOR_SHARED", ROOT.parent / "shared")) / "data" / "traces"

BUSY = ("0,0.5,1.0,Gamma,1.2,2.0", "600,1.0,2.0,Weibull,0.6,1.0", "1200,0,0,,0,0")
QUIET = ("0,0,0,,0,0", "600,0.05,1.0,Gamma,1.0,20.0", "1200,0.1,1.0,Gamma,1.0,10.0")
LENGTHS = {"0": {"input_tokens": "{10: 0.5, 4000: 0.5}", "output_tokens": "{3: 0.5, 700: 0.5}"}}
LATE = {
    "0": {"input_tokens": "{}", "output_tokens": "{}"},
    "1200": {"input_tokens": "{5: 1.0}", "output_tokens": "{6: 1}"},
}


def chunks(folder: Path, clients: Mapping[int, tuple[tuple[str, ...], object]]) -> Path:
    """A pool as ServeGen publishes it: two files a client."""
    folder.mkdir(exist_ok=True)
    for client, (windows, dataset) in clients.items():
        (folder / f"chunk-{client}-trace.csv").write_text("\n".join(windows) + "\n")
        (folder / f"chunk-{client}-dataset.json").write_text(json.dumps(dataset))
    return folder


def packed(folder: Path, clients: Mapping[int, tuple[tuple[str, ...], object]]) -> Path:
    """The same pool in two files."""
    folder.mkdir(exist_ok=True)
    rows = [f"{client},{row}" for client, (windows, _) in clients.items() for row in windows]
    (folder / "traces.csv").write_text("\n".join(rows) + "\n")
    lines = [json.dumps({"client": client, "dataset": dataset}) for client, (_, dataset) in clients.items()]
    (folder / "datasets.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return folder


POOL = {0: (BUSY, LENGTHS), 1: (QUIET, LATE)}


def test_the_rate_and_the_lengths_are_the_clients(tmp_path: Path) -> None:
    trace = load_trace(chunks(tmp_path / "pool", POOL), seed=1)
    assert (trace.name, trace.kind) == ("pool", "servegen_pool")
    in_window = [[r for r in trace.requests if start <= r.arrival_s < start + 600] for start in (0, 600, 1200)]
    # ⌈rate × 600⌉ gaps fill a window and the last arrival is its end: one less. The quiet client has no lengths at 600.
    assert [len(requests) for requests in in_window] == [299, 599, 59]
    assert trace.skipped == {"window of a client without lengths": 1}
    assert {(r.prompt_tokens, r.output_tokens) for r in in_window[0]} == {(10, 3), (4_000, 700)}
    assert 0.4 < sum(r.prompt_tokens == 10 for r in in_window[1]) / 599 < 0.6
    assert {(r.prompt_tokens, r.output_tokens) for r in in_window[2]} == {(5, 6)}
    assert len({r.request_id for r in trace.requests}) == len(trace.requests)


def test_gaps_follow_the_fitted_distribution(tmp_path: Path) -> None:
    windows = ("0,2.0,9,Gamma,0.05,1.0", "600,2.0,1,Gamma,30.0,1.0")
    trace = load_trace(chunks(tmp_path / "pool", {0: (windows, LENGTHS)}))

    def variation(start: float) -> float:
        arrivals = [r.arrival_s for r in trace.requests if start <= r.arrival_s < start + 600]
        gaps = [b - a for a, b in pairwise(arrivals)]
        mean = sum(gaps) / len(gaps)
        return float((sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 / mean)

    # The coefficient of variation of a Gamma distribution is 1/√shape.
    assert variation(0) == pytest.approx(0.05**-0.5, rel=0.25)
    assert variation(600) == pytest.approx(30**-0.5, rel=0.15)


def test_windows_and_clients_alike_do_not_draw_alike(tmp_path: Path) -> None:
    windows = ("0,0.1,1,Gamma,1.0,1.0", "600,0.1,1,Gamma,1.0,1.0")
    trace = load_trace(chunks(tmp_path / "pool", {0: (windows, LENGTHS), 1: (windows, LENGTHS)}))
    starts = [r.arrival_s % 600 for r in trace.requests]
    assert len(starts) == len({round(start, 6) for start in starts}) == 4 * 59


def test_both_layouts_draw_the_same(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    assert load_trace(chunks(tmp_path / "a" / "pool", POOL)) == load_trace(packed(tmp_path / "b" / "pool", POOL))


def test_a_slice_of_the_day_holds_what_the_day_holds_there(tmp_path: Path) -> None:
    pool = chunks(tmp_path / "pool", POOL)
    whole = load_trace(pool, seed=5)
    part = load_trace(pool, seed=5, from_s=700, to_s=1_300)
    expected = [(r.arrival_s - 700, r.prompt_tokens) for r in whole.requests if 700 <= r.arrival_s < 1_300]
    assert [(r.arrival_s, r.prompt_tokens) for r in part.requests] == expected
    assert load_trace(pool, seed=6) != whole == load_trace(pool, seed=5)


@pytest.mark.parametrize(
    ("windows", "dataset", "says"),
    [
        (("0,0.5,1.0,Gamma,1.2",), LENGTHS, r"chunk-0-trace\.csv: line 1: has 5 columns of a window instead of 6"),
        (("0,-1,1.0,Gamma,1.2,2.0",), LENGTHS, r"line 1: rate is '-1', below 0"),
        (("0,nan,1.0,Gamma,1.2,2.0",), LENGTHS, r"line 1: rate is 'nan', not a finite number"),
        (("0,1,1.0,Pareto,1.2,2.0",), LENGTHS, r"line 1: distribution is 'Pareto', neither Gamma nor Weibull"),
        (("0,1,1.0,Gamma,0,2.0",), LENGTHS, r"line 1: shape is 0"),
        (BUSY, [], r"chunk-0-dataset\.json: is not a JSON object"),
        (BUSY, {"0": 3}, r"dataset\.json: window 0: is no table of histograms"),
        (BUSY, {"0": {"input_tokens": "{1: 1}"}}, r"client 0: window 0: output_tokens: is missing"),
        (BUSY, {"0": {"input_tokens": "{1: x}", "output_tokens": "{1: 1}"}}, r"input_tokens: is '{1: x}', not a histo"),
        (BUSY, {"0": {"input_tokens": "{1: 0.0}", "output_tokens": "{1: 1}"}}, r"input_tokens: is '{1: 0.0}', not"),
    ],
)
def test_a_pool_that_cannot_be_read(tmp_path: Path, windows: tuple[str, ...], dataset: object, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        load_trace(chunks(tmp_path / "pool", {0: (windows, dataset)}))


def test_halves_of_two_pools_are_refused(tmp_path: Path) -> None:
    pool = packed(tmp_path / "pool", POOL)
    (pool / "traces.csv").write_text("".join(f"{client},{BUSY[0]}\n" for client in (0, 7)))
    with pytest.raises(TraceError, match=r"datasets\.jsonl\.gz: line 2: is client '1', not in traces\.csv"):
        load_trace(pool)
    (pool / "traces.csv").write_text("".join(f"{client},{BUSY[0]}\n" for client in (0, 1, 7)))
    with pytest.raises(TraceError, match=r"lacks client 7"):
        load_trace(pool)


def test_the_published_pool() -> None:
    pool = PUBLISHED / "servegen_clients_deepseek_r1"
    if not pool.is_dir():
        pytest.skip(f"{pool} is not here; DRAFTER_SELECTOR_SHARED names the folder that holds data/traces")
    trace = load_trace(pool, from_s=72_000, to_s=72_600)
    with (pool / "traces.csv").open() as rows:
        fitted = [float(row[2]) for row in csv.reader(rows) if row[1] == "72000" and row[4]]
    assert sum(fitted) > 15
    # A few arrive within rounding of the end of the window.
    assert len(trace.requests) == pytest.approx(sum(math.ceil(rate * 600) - 1 for rate in fitted), abs=10)
    assert 590 < max(r.arrival_s for r in trace.requests) < 600
