"""The soak in its short form, and that it would notice what it looks for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.loglines import decision_line, end_line

BENCH = Path(__file__).parents[3] / "bench"
sys.path.insert(0, str(BENCH))
import soak  # noqa: E402 - a script, found by its folder

FINE: dict[str, Any] = {
    "ends": {"complete stream": 9},
    "in_flight": 0,
    "on_backends": 0,
    "open_files": 20,
    "most_open_files": 28,
    "unbalanced": 0,
    "told_but_not_in_log": 0,
    "exit_codes": [0, 0],
}


def test_a_few_seconds_of_every_fault_lose_nothing() -> None:
    command = [sys.executable, str(BENCH / "soak.py"), "--seconds", "8", "--event-every-s", "0.3", "--clients", "12"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert result["wrong"] == []
    assert set(soak.EVENTS) - {"mood"} <= result["events"].keys()
    assert result["asked"] > 50
    assert result["reloads"] >= 3
    assert result["router_starts"] == 2


@pytest.mark.parametrize(
    ("what", "value", "words"),
    [
        ("ends", {"stuck": 1}, "1 requests ended so: stuck"),
        ("ends", {"lost": 2}, "2 requests ended so: lost"),
        ("ends", {"500 of the router": 1}, "500 of the router"),
        ("in_flight", 1, "in_flight is 1"),
        ("on_backends", 1, "on_backends is 1"),
        ("open_files", 29, "29 files are open"),
        ("unbalanced", 1, "unbalanced is 1"),
        ("told_but_not_in_log", 3, "3 answered requests are not in the log"),
        ("exit_codes", [0, -9], "ended with [0, -9]"),
    ],
)
def test_what_must_not_be_is_said(what: str, value: object, words: str) -> None:
    assert soak.wrong(FINE) == []
    (said,) = soak.wrong({**FINE, what: value})
    assert words in said


def test_a_log_that_lacks_a_line_does_not_balance(tmp_path: Path) -> None:
    decision, end = decision_line(request_id="r1"), end_line(request_id="r1")
    retract = {"v": 1, "event": "retract", "t_s": 1.5, "id": "r1", "backend": "b0", "why": "x"}
    log = tmp_path / "log.jsonl"

    def account(*lines: object) -> tuple[int, int]:
        log.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        counts = soak.accounted(log, ["r1"])
        return counts["unbalanced"], counts["told_but_not_in_log"]

    assert account(decision, retract, decision, end) == (0, 0)
    assert account(decision, retract, end) == (1, 0)
    assert account(decision) == (1, 1)
