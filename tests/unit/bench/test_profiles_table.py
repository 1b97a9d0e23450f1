"""The table of what was measured follows the profiles and says why the rest was not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from selector.profiler.cells import FailedStep, Origin, append_cell

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


def failed(server: str) -> FailedStep:
    origin = Origin(host="h", weights="dummy", date="2026-01-01T00:00:00+00:00")
    return FailedStep(step=f"server of {server}", reason="out of memory", origin=origin)


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


def test_a_profile_fills_its_row_and_a_failed_server_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles_table, "RAW", tmp_path)
    append_cell(tmp_path / "h200__x.cells.jsonl", failed("standalone-k3"))
    best = {("H200", "Qwen3-8B"): ("h200__x", sparse_profile())}
    cells = row(profiles_table.table(best, ("h200__x", "h200__x-no-graphs")), "Qwen3-8B")
    assert cells[3] == "`h200__x`, `h200__x-no-graphs`"
    assert cells[7:10] == ["measured", "eagle3-k1; eagle3-k3", "dspark-8"]
    assert cells[13] == "standalone-k3 failed"


def test_a_target_of_which_no_server_came_up_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles_table, "RAW", tmp_path)
    for server in ("none", "eagle3-k3"):
        append_cell(tmp_path / "h200__gemma-4-12b-it.cells.jsonl", failed(server))
    cells = row(profiles_table.table({}, ()), "gemma-4-12B")
    assert cells[7:10] == ["failed", "eagle3-k3 failed", "not yet"]
