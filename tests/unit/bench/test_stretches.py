"""What a stretch of GPU time does when servers do not come up: the other steps still run, in order."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

STRETCHES = Path(__file__).parents[3] / "bench" / "h200" / "stretches.sh"

STEPS = """
set -euo pipefail
source "$1"
work=/nowhere missing=$2
say() { echo "$*" >&3; }
ready() { [[ " $missing " != *" $1 "* ]]; }
up() { ready "$1"; }
hold() { say "hold $2"; ready "$2"; }
launched() { say "launched $1"; wait "$2"; }
left() { echo 500; }
two_gpus() { true; }
for step in raise release live on_second; do eval "$step() { say \\"$step \\$*\\"; }"; done
sweep() { say "sweep $1 on $3 ${*:5}"; }
model() { say "model $1 on $3"; }
"stretch_$3" 3>&1
"""


def steps(stretch: str, *missing: str) -> list[str]:
    """What it did, with the fleets `missing` that do not start."""
    ran = subprocess.run(
        ["bash", "-c", STEPS, "bash", STRETCHES, " ".join(missing), stretch],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return [line.strip() for line in ran.stdout.splitlines()]


def live(done: list[str]) -> list[str]:
    """Plans that cells were measured of, with the fleet where only one."""
    return [" ".join([words[1], *words[3:]]) for words in map(str.split, done) if words[0] == "live"]


def test_two_gpus_are_used_together_and_then_apart() -> None:
    done = steps("pair")
    assert live(done)[0] == "two-gpus"
    assert sorted(live(done)[1:3]) == ["again", "three-on-one-targets"]
    assert live(done)[3:] == ["ramp depth-adaptive", "ramp depth-default"]
    assert done.index("launched compact") < done.index("live ramp 150 depth-adaptive")
    assert done.index("release depth-adaptive depth-default") < done.index("sweep compact on 0")
    assert done.count("sweep compact on 0 --arms dspark-8-compact") == 1
    first, second = ([line for line in done if line.startswith("model ") and f" on {gpu}" in line] for gpu in (0, 1))
    assert (first[0], second[0]) == ("model Qwen3-Coder-30B-A3B on 0", "model Qwen3-14B on 1")
    assert len(first) == len(second) == 10


def test_on_one_board_servers_that_are_up_come_first_and_depths_after_them() -> None:
    done = steps("board")
    plans = ["ramp depth-fixed", "three-on-one-targets", "ramp depth-adaptive", "ramp depth-default"]
    assert live(done) == plans
    assert done.index("release four-on-one") < done.index("raise ramp depth-adaptive")
    assert next(line for line in done if line.startswith("model ")) == "model Qwen3-14B on 0"
    assert live(steps("board", "four-on-one")) == []


@pytest.mark.parametrize(
    ("missing", "measured"),
    [
        (["four-on-one"], ["again", "ramp depth-adaptive", "ramp depth-default"]),
        (["four-on-second"], ["three-on-one-targets", "ramp depth-adaptive", "ramp depth-default"]),
        (["four-on-one", "four-on-second", "depth-adaptive", "depth-default"], []),
        (["depth-default"], ["two-gpus", "again", "three-on-one-targets", "ramp depth-adaptive"]),
        (["depth-adaptive"], ["two-gpus", "again", "three-on-one-targets", "ramp depth-default"]),
    ],
)
def test_servers_that_do_not_start_cost_their_own_cells_alone(missing: list[str], measured: list[str]) -> None:
    done = steps("pair", *missing)
    assert sorted(live(done)) == sorted(measured)
    assert "sweep compact on 0" in done and "model Qwen3-14B on 1" in done and "model gemma-4-12B-it on 0" in done


def test_each_board_has_a_plan_of_its_own_after_what_needs_both() -> None:
    done = steps("each")
    assert live(done)[0] == "two-gpus"
    assert sorted(live(done)[1:]) == ["ramp depth-open", "three-on-one-targets"]
    assert done.index("on_second depth-open") < done.index("raise ramp depth-chosen")
    first_model = next(number for number, line in enumerate(done) if line.startswith("model "))
    assert done.index("release three-on-one two-second depth-chosen") < first_model


@pytest.mark.parametrize(
    ("missing", "left"),
    [
        ("depth-chosen", ["two-gpus", "three-on-one-targets"]),
        ("two-second", ["three-on-one-targets"]),
        ("three-on-one", ["ramp depth-open"]),
    ],
)
def test_each_goes_on_with_the_servers_that_came_up(missing: str, left: list[str]) -> None:
    assert live(steps("each", missing)) == left


@pytest.mark.parametrize(
    ("missing", "measured"),
    [
        ([], ["asleep", "clients", "ramp depth-open", "three-on-one-targets"]),
        (["depth-open"], ["asleep", "clients", "three-on-one-targets"]),
        (["three-on-one"], ["clients", "ramp depth-open"]),
        (["depth-closed"], ["asleep", "ramp depth-open", "three-on-one-targets"]),
    ],
)
def test_boards_with_live_cells_apart_go_on_with_other_targets(missing: list[str], measured: list[str]) -> None:
    done = steps("apart", *missing)
    assert sorted(live(done)) == measured
    assert done.index("on_second depth-open") < done.index("raise ramp depth-open")
    ended = done.index("release three-on-one depth-open")
    assert all(number < ended for number, line in enumerate(done) if line.startswith(("live ramp", "live three")))
    assert ended < done.index("model Qwen3-Coder-30B-A3B on 0")
    assert done.index("release depth-closed") < done.index("model Qwen3-14B on 1")


def test_clients_come_before_other_targets_on_one_board() -> None:
    done = steps("clients")
    assert live(done) == ["clients"]
    assert done.index("release depth-closed") < next(n for n, line in enumerate(done) if line.startswith("model "))
    assert not any(" on 1" in line for line in done)
    assert live(steps("clients", "depth-closed")) == []
