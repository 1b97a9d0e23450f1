"""The live report tells by plan how far the simulation was off, and leaves no row out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench"
LIVE = BENCH / "live"

PLAN = """\
version = 1
fleets = [{fleets}]
trace = "azure_2023_conv"
policies = ["static:none", "min_energy"]

[[loads]]
name = "few"
running = 2

[[loads]]
name = "many"
running = 40

[[texts]]
name = "code"
mix = {{ code = 1.0 }}

[servers]
model = "m"
"""

Errors = tuple[float | None, float | None]
"""Of J/token and of TBT p50."""


def row(fleet: str, load: str, policy: str, errors: Errors, command: str) -> dict[str, object]:
    live = dict.fromkeys(
        ("j_per_accepted_token", "tbt_p50_ms", "tbt_p99_ms", "ttft_p50_ms", "ttft_p99_ms", "tbt_attainment"), 1.0
    )
    return {
        "key": f"{fleet} | {load} | code | no target | {policy}",
        "fleet": fleet,
        "load": load,
        "text": "code",
        "target_ms": None,
        "policy": policy,
        "live": {**live, "energy_j": 9.0, "duration_s": 3.0, "failed": 0, "requests": 4},
        "error": {"j_per_accepted_token": errors[0], "tbt_p50_ms": errors[1]},
        "command": f"bench/live/run.py {command} --out somewhere",
    }


ROWS = [
    row("one", "few", "static:none", (-0.010, 0.100), "--plan there/first.toml"),
    row("one", "many", "static:none", (0.030, -0.200), "--plan there/first.toml"),
    row("one", "few", "min_energy", (0.080, None), "--plan there/first.toml"),
    row("two", "few", "min_energy", (-0.500, 0.700), "--plan there/second.toml"),
    row("one", "some, once", "static:none", (0.900, 0.950), "--plan=there/first.toml"),
    row("two", "few", "pack:none", (0.910, 0.960), "--plan there/first.toml"),
    row("three", "few", "static:none", (0.990, 0.990), "--plan there/third.toml"),
]


def report(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, LIVE / "run.py", *arguments, "--report"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def groups(printed: str) -> list[tuple[str, ...]]:
    """Plan, which cells, how many; median and worst of J/token and of TBT p50."""
    lines = printed[printed.index("absolute error") :].splitlines()[3:]
    return [tuple(re.split(r" {2,}", line.strip())) for line in lines if not re.match(r"\w+: median|^\s*$", line)]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "first.toml").write_text(PLAN.format(fleets='"fleets/one.toml"'))
    (tmp_path / "second.toml").write_text(PLAN.format(fleets='"fleets/two.toml"'))
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(each) + "\n" for each in ROWS))
    return tmp_path


FIRST: Sequence[tuple[str, ...]] = [
    ("first.toml", "all cells", "3", "3.0%", "8.0%", "15.0%", "20.0%"),
    ("first.toml", "one, static:none", "2", "2.0%", "3.0%", "15.0%", "20.0%"),
    ("first.toml", "one, min_energy", "1", "8.0%", "8.0%", "-", "-"),
    ("first.toml", "no longer asked for: some, once", "1", "90.0%", "90.0%", "95.0%", "95.0%"),
    ("first.toml", "no longer asked for: few", "1", "91.0%", "91.0%", "96.0%", "96.0%"),
]


def test_a_plans_own_cells_are_told_apart_from_those_it_had_once(here: Path) -> None:
    of_rows = report("--plan", here / "first.toml", "--rows", here / "results.jsonl")
    assert groups(of_rows.stdout) == FIRST
    assert "j_per_accepted_token: median error 50.0%, worst 99.0% over 7 cells" in of_rows.stdout
    assert "tbt_p50_ms: median error 82.5%, worst 99.0% over 6 cells" in of_rows.stdout
    assert report("--plan", here / "first.toml", "--out", here).stdout == of_rows.stdout


def test_several_plans_are_told_together_too(here: Path) -> None:
    plans = ("--plan", here / "first.toml", "--plan", here / "second.toml")
    assert groups(report(*plans, "--rows", here / "results.jsonl").stdout) == [
        *FIRST,
        ("second.toml", "all cells", "1", "50.0%", "50.0%", "70.0%", "70.0%"),
        ("second.toml", "two, min_energy", "1", "50.0%", "50.0%", "70.0%", "70.0%"),
        ("these plans", "all cells", "4", "5.5%", "50.0%", "20.0%", "70.0%"),
    ]


def test_a_plan_of_which_nothing_ran_yet_has_no_errors(here: Path) -> None:
    (here / "third.toml").write_text(PLAN.format(fleets='"fleets/four.toml"'))
    (nothing, *_) = groups(report("--plan", here / "third.toml", "--out", here).stdout)
    assert nothing == ("third.toml", "all cells", "0", "-", "-", "-", "-")


def test_every_shipped_row_is_of_some_plan() -> None:
    rows = BENCH / "results" / "h200_live.jsonl"
    plans = [file for file in sorted(LIVE.glob("*.toml")) if not file.name.startswith("held-")]
    told = groups(report(*(word for file in plans for word in ("--plan", file)), "--rows", rows).stdout)
    *of_plans, together = told
    own = sum(int(group[2]) for group in of_plans if group[1] == "all cells")
    once = sum(int(group[2]) for group in of_plans if group[1].startswith("no longer"))
    assert own == int(together[2])
    assert own + once == len(rows.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--report"], "give one of both"),
        (["--report", "--out", ".", "--rows", "x.jsonl"], "give one of both"),
        (["--report", "--rows", "nothing.jsonl"], "nothing.jsonl is no file"),
        (["--plan", "second.toml", "--out", "."], "--report alone"),
        (["--rows", "results.jsonl", "--out", "."], "--report alone"),
        ([], "--out: is missing"),
    ],
)
def test_options_that_do_not_go_together_are_refused(here: Path, arguments: list[str], message: str) -> None:
    command: list[str | Path] = [sys.executable, LIVE / "run.py", "--plan", "first.toml", *arguments]
    ran = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert message in ran.stderr
