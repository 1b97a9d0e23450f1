"""The decision benchmark runs every shipped policy and prints one JSON document."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from selector.files.shipped import policy_names

SCRIPT = Path(__file__).parents[3] / "bench" / "decision_cost.py"


def test_every_policy_gets_a_row_per_fleet_size() -> None:
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), "--backends", "7", "12", "--decisions", "10"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert [(row["policy"], row["backends"]) for row in report["rows"]] == [
        (name, backends) for backends in (7, 12) for name in policy_names()
    ]
    for row in report["rows"]:
        assert row["decisions"] == 10
        assert 0.0 < row["p50_us"] <= row["p99_us"]
    assert report["host"]["cpu"]
    assert report["versions"]["python"]
