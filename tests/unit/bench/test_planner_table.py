"""`planner_table.py --anew` replaces the runs of `min_energy` and nothing else."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

import planner_table
from _planner_runs import Cell, run_cell
from planner_table import run_anew

STEADY = [Cell("steady", 4, "code", None, load) for load in ("1", "4")]
RAMP = Cell("ramp", 4, "code", 10.0, "1-256-1")


def row(cell: Cell, j: float, *, fixed: bool = True) -> dict[str, Any]:
    ours = "planned min_energy" if cell.part == "ramp" else "min_energy"
    results = {"static:none": {"j": 9.0}} if fixed else {}
    found = {**asdict(cell), "results": {**results, ours: {"j": j}}, "bounds": {ours: j / 2}}
    return {**found, "plan": {"fleet": f"{j}"}} if cell.part == "ramp" else found


def test_only_runs_of_min_energy_are_replaced_and_the_first_line_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    before = [{"benchmark": "planner_table"}, *(row(cell, 2.0) for cell in (*STEADY, RAMP))]
    rows.write_text("".join(json.dumps(line) + "\n" for line in before), encoding="utf-8")

    def again(cell: Cell, traces: Path, *, fixed: bool = True) -> dict[str, Any]:
        return row(cell, 1.0, fixed=fixed)

    monkeypatch.setattr(planner_table, "run_cell", again)
    with ThreadPoolExecutor(1) as pool:
        run_anew(rows, [STEADY[1], RAMP], tmp_path, pool)
    first, *cells = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    assert cells == [row(STEADY[0], 2.0), row(STEADY[1], 1.0), row(RAMP, 1.0)]
    assert [(each["runs"], each["cells"]) for each in first["anew"]] == [
        ("min_energy", {"steady 4 GPUs": 1, "ramp 4 GPUs": 1})
    ]


def test_a_cell_is_run_without_fixed_choices(tmp_path: Path) -> None:
    found = run_cell(STEADY[0], tmp_path, fixed=False)
    assert list(found["results"]) == list(found["bounds"]) == ["min_energy"]
