"""The tables of docs/planner.md as they are printed from rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parents[3] / "bench"


def result(joules: float, attained: float | None = None) -> dict[str, Any]:
    met = {} if attained is None else {"code": attained}
    return {"j": joules, "decode_j": joules / 2, "attainment": met, "ttft_p99_ms": 100.0, "lost": 0}


def row(part: str, load: str, results: dict[str, Any], **more: Any) -> dict[str, Any]:
    target_ms = 10.0 if part == "ramp" else None
    cell = {"part": part, "gpus": 4, "mix": "code", "target_ms": target_ms, "load": load, "seed": 0, "repeats": 1}
    return {**cell, "results": results, **more}


ROWS = [
    row("steady", "16", {"min_energy": result(1.0), "static:none": result(0.8)}, bounds={"min_energy": 0.5}),
    row("steady", "4", {"min_energy": result(1.01), "static:none": result(1.0)}, bounds={"min_energy": 1.0}),
    row(
        "ramp",
        "1-256-1",
        {
            "planned min_energy": result(1.0, 0.99),
            "all static:none": result(1.2, 0.98),
            "all static:dspark-8": result(1.1, 0.97),
            "all pack:none": result(1.05, 0.5),
        },
        bounds={"planned min_energy": 0.9},
        plan={"fleet": "4 × none", "runner_up": None},
    ),
]


def printed(tmp_path: Path) -> str:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(each) + "\n" for each in ({"benchmark": "planner_table"}, *ROWS)))
    command = [sys.executable, str(BENCH / "planner_table.py"), "--rows", str(rows), "--markdown"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_a_line_a_load_with_what_passes(tmp_path: Path) -> None:
    lines = printed(tmp_path).splitlines()
    four = lines.index("| 4 | 1 | 1.010, 1.010, 1.010 | 1.010 | 1.010 | 1 |")
    assert lines[four + 1] == "| 16 | 1 | 1.250, 1.250, 1.250 | 1.250 | 2.000 | 0 |"
    assert "1 of 2 pass, 1 within 5 %, 0 without a competitor" in lines
    assert "over the oracle in the median: all: 50.5%, no target: 50.5%" in lines


def test_a_ramp_is_told_beside_the_cheapest_single_arms(tmp_path: Path) -> None:
    single = "1.1000 (0.5500), 97%, `dspark-8` | 1.0500 (0.5250), 50%, `none`"
    assert f"| 4 | code | 4 × none | 1.0000 (0.5000), 99% | {single} | 0.9000 |" in printed(tmp_path)
