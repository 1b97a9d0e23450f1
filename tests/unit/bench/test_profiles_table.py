"""The table of what was measured follows the profiles and says why the rest was not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from selector.profiler.cells import DecodeCell, DecodeRepeat, FailedStep, Origin, append_cell

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

import profiles_table

from tests.profiles import sparse_profile

BENCH = Path(profiles_table.__file__).parent


def row(text: str, start: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_shipped_table_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, BENCH / "profiles_table.py", "--check"], capture_output=True, text=True, check=False,
        cwd=BENCH.parent, env={"PYTHONPATH": str(BENCH.parent)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


ORIGIN = Origin(host="h", weights="dummy", date="2026-01-01T00:00:00+00:00")


def failed(server: str) -> FailedStep:
    return FailedStep(step=f"server of {server}", reason="out of memory", origin=ORIGIN)


def measured(arm: str) -> DecodeCell:
    repeat = DecodeRepeat(
        seed=1, step_ms=7.0, step_j=None, accept_length=2.0, context_tokens=800, steps=700, window_s=5.0, energy=None
    )
    return DecodeCell(
        arm=arm, sweep_pass="main", batch=1, prompt_tokens=512, method="steady", repeats=(repeat,), origin=ORIGIN
    )


def test_all_targets_of_the_study_and_the_gpu_nobody_has_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiles_table, "RAW", tmp_path)
    text = profiles_table.table({}, ())
    assert sum(" | H200 | " in line for line in text.splitlines()) == 11
    assert set(row(text, "all 11")[7:]) == {"no machine"}
    assert row(text, "Qwen3.6-27B")[7:] == [
        "not yet", "no hook", "not yet", "not yet", "not yet", "not yet", "no small model", "no hook",
    ]  # fmt: skip


def test_a_profile_fills_its_row_and_what_it_lacks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles_table, "RAW", tmp_path)
    raw = tmp_path / "h200__x.cells.jsonl"
    append_cell(raw, failed("standalone-k3"))
    append_cell(raw, failed("dspark-8"))
    for arm in ("eagle3-adaptive", "eagle3-k3"):
        append_cell(raw, measured(arm))
    best = {("H200", "Qwen3-8B"): ("h200__x", sparse_profile())}
    cells = row(profiles_table.table(best, ("h200__x", "h200__x-no-graphs")), "Qwen3-8B")
    assert cells[3] == "`h200__x`, `h200__x-no-graphs`"
    assert cells[7:10] == ["measured", "eagle3-k1; eagle3-k3", "dspark-8"]
    assert cells[13:15] == ["standalone-k3 failed", "eagle3-adaptive (raw cells)"]


def test_a_target_of_which_no_server_came_up_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles_table, "RAW", tmp_path)
    for server in ("none", "eagle3-k3"):
        append_cell(tmp_path / "h200__gemma-4-12b-it.cells.jsonl", failed(server))
    cells = row(profiles_table.table({}, ()), "gemma-4-12B")
    assert cells[7:10] == ["failed", "eagle3-k3 failed", "not yet"]
