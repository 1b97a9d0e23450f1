"""A recording of the meter, whole or thinned, becomes power over metered time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from selector.errors import InputError
from selector.profiler.page.trace import BoardSample, binned, read_trace

RECORDED = Path(__file__).parents[3] / "data" / "nvml_h200_counter.jsonl"


def energy_j(samples: Sequence[BoardSample]) -> float:
    return sum(sample.power_w * (sample.end_s - sample.start_s) for sample in samples)


def lines(path: Path, rows: Sequence[tuple[float, int]], gpu: str = "0") -> Path:
    text = [
        json.dumps({"gpu": gpu, "t_s": t_s, "counter_mj": mj, "sm_mhz": 1980, "temperature_c": 40}) for t_s, mj in rows
    ]
    path.write_text("\n".join(text) + "\n")
    return path


def test_thinning_and_binning_keep_the_energy(tmp_path: Path) -> None:
    whole = read_trace([RECORDED])
    rows = RECORDED.read_text().splitlines()
    thinned = tmp_path / "thin.jsonl"
    thinned.write_text("\n".join([*rows[::7], rows[-1]]))
    first, last = json.loads(rows[0]), json.loads(rows[-1])
    true_j = (last["counter_mj"] - first["counter_mj"]) / 1e3
    for samples in (whole, read_trace([thinned]), binned(whole, 10)):
        assert energy_j(samples) == pytest.approx(true_j)
        assert samples[-1].end_s == pytest.approx(last["t_s"] - first["t_s"])
    assert 5 <= len(binned(whole, 10)) <= 10


def test_time_between_two_runs_and_a_counter_that_began_anew_are_left_out(tmp_path: Path) -> None:
    first = lines(tmp_path / "a", [(10.0, 0), (11.0, 100_000), (500.0, 900_000), (501.0, 1_000_000)])
    second = lines(tmp_path / "b", [(3.0, 7_000), (4.0, 207_000), (5.0, 1_000), (6.0, 301_000)])
    samples = read_trace([first, second])
    assert [sample.power_w for sample in samples] == [100.0, 100.0, 200.0, 300.0]
    assert [sample.start_s for sample in samples] == [0.0, 1.0, 2.0, 3.0]


def test_of_several_gpus_the_first_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "two"
    text = lines(tmp_path / "a", [(1.0, 0), (2.0, 50_000)]).read_text()
    path.write_text(text + lines(tmp_path / "b", [(1.0, 0), (2.0, 90_000)], gpu="1").read_text())
    assert [sample.power_w for sample in read_trace([path])] == [50.0]


def test_a_line_that_is_no_reading_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_text('{"gpu": "0"}\n')
    with pytest.raises(InputError, match=r"bad:1: is no reading of an energy meter"):
        read_trace([bad])
