"""Live cells cut into stages of time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench" / "live"))
from plan import cells, load_plan
from stages import stages

LIVE = Path(__file__).parents[3] / "bench" / "live"


def row(*points: tuple[float, float, float]) -> dict[str, object]:
    """A timeline of time, joules and tokens, with two requests in each of as many steps as tokens."""
    return {
        "timeline": [
            {"at_s": at_s, "energy_j": joules, "steps": tokens, "request_steps": 2 * tokens, "tokens": tokens}
            for at_s, joules, tokens in points
        ]
    }


def test_a_stage_is_interpolated_and_the_last_goes_to_the_end() -> None:
    found = stages([row((0, 0, 0), (10, 100, 10), (30, 500, 110))], [0.0, 5.0, 20.0, float("inf")])
    assert [stage["energy_j"] for stage in found] == pytest.approx([50, 250, 200])
    assert [stage["tokens"] for stage in found] == pytest.approx([5, 55, 50])
    assert found[0]["request_steps"] == pytest.approx(10)


def test_runs_of_several_seeds_are_summed() -> None:
    found = stages([row((0, 0, 0), (10, 100, 10)), row((0, 0, 0), (20, 400, 40))], [0.0, 10.0, float("inf")])
    assert [stage["energy_j"] for stage in found] == pytest.approx([300, 200])


def test_the_command_prints_joules_per_token_of_the_cells_of_a_plan(tmp_path: Path) -> None:
    plan = LIVE / "ramp.toml"
    wanted = next(cell for cell in cells(load_plan(plan)) if cell.fleet.endswith("depth-open.toml"))
    rows = tmp_path / "results.jsonl"
    rows.write_text(
        "".join(
            json.dumps({"key": key, **row((0, 0, 0), (18, 36, 18), (36, 360, 36))}) + "\n" for key in (wanted.key, "?")
        )
    )
    command = [sys.executable, LIVE / "stages.py", "--plan", plan, "--rows", rows, "--from-s", "0,18"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    line = next(line for line in told.splitlines() if wanted.policy in line)
    assert "2.0000 (2)" in line and "18.0000 (2)" in line
    assert len([line for line in told.splitlines() if "static:" in line]) == 1


@pytest.mark.parametrize("wrong", ["", "0,x", "6,0", "0,0"])
def test_stages_that_do_not_increase_are_refused(wrong: str, tmp_path: Path) -> None:
    command = [sys.executable, LIVE / "stages.py", "--plan", LIVE / "ramp.toml", "--rows", tmp_path, "--from-s", wrong]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 2 and "--from-s" in ran.stderr and "0,6,14" in ran.stderr
