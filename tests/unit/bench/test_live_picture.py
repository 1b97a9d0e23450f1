"""The picture of live results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
PICTURE = Path(__file__).parents[3] / "bench" / "live" / "picture.py"


def drawn(tmp_path: Path, fleet: str, *more: str) -> subprocess.CompletedProcess[str]:
    cells = [
        ("some", "code", "min_energy", 0.3, 0.97), ("some", "code", "static:none", 0.4, None),
        ("more", "code", "min_energy", 0.2, 1.0), ("more", "code", "min_energy", 0.2, 0.9),
    ]  # fmt: skip
    cells += [(load, "code", "min_energy", 0.3, 1.0) for load in "abcd"] if fleet == "many" else []
    rows = [
        {
            "fleet": "many" if load in "abcd" else "three",
            "load": load, "text": text, "target_ms": 10.0, "policy": policy,
            "live": {"j_per_accepted_token": joules, "tbt_attainment": attained},
            "simulated": {"j_per_accepted_token": 0.3},
        }
        for load, text, policy, joules, attained in cells
    ]  # fmt: skip
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    words = ["--rows", tmp_path / "results.jsonl", "--fleet", fleet, "--out", tmp_path / "live.svg", *more]
    return subprocess.run([sys.executable, PICTURE, *words], capture_output=True, text=True, check=False)


def test_every_policy_and_what_it_attained_is_in_the_picture(tmp_path: Path) -> None:
    assert drawn(tmp_path, "three").returncode == 0
    svg = (tmp_path / "live.svg").read_text(encoding="utf-8")
    for words in ("some,", "more,", "code, 10 ms", "min_energy", "97%", "95%", "J per accepted token"):
        assert f"<!-- {words} -->" in svg, words


def test_many_panels_stand_in_rows(tmp_path: Path) -> None:
    assert drawn(tmp_path, "many").returncode == 0
    assert (tmp_path / "live.svg").read_text(encoding="utf-8").count("<!-- min_energy -->") == 4


def test_a_fleet_without_rows_is_an_error_that_says_so(tmp_path: Path) -> None:
    failed = drawn(tmp_path, "four")
    assert failed.returncode == 2
    assert "has no row of the fleet 'four'" in failed.stderr


def test_runs_under_several_seeds_are_one_bar_with_what_they_attain_in_the_mean(tmp_path: Path) -> None:
    assert drawn(tmp_path, "three", "--load", "more").returncode == 0
    svg = (tmp_path / "live.svg").read_text(encoding="utf-8")
    assert svg.count("<!-- 95% -->") == 1 and "97%" not in svg and "some" not in svg


def test_a_load_that_no_row_has_is_an_error_that_says_so(tmp_path: Path) -> None:
    failed = drawn(tmp_path, "three", "--load", "most")
    assert failed.returncode == 2 and "under the load 'most'" in failed.stderr
