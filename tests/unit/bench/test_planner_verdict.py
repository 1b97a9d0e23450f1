"""The verdict of the planner's table says what its module says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

from _planner_bars import bars
from _planner_bound import ramp_bound, steady_bound
from _planner_cells import FLEETS, MIXES, fleet_of
from _planner_runs import fixed_choices, made_up
from _planner_verdict import compared, passes, worse_because


def result(j: float, attainment: float = 0.95, ttft_p99_ms: float = 100.0, lost: int = 0) -> dict[str, Any]:
    return {"j": j, "decode_j": j / 2, "attainment": {"code": attainment}, "ttft_p99_ms": ttft_p99_ms, "lost": lost}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (result(1.0), ""),
        (result(1.0, attainment=0.941), ""),
        (result(1.0, attainment=0.939), "attains 94% of code, not 95%"),
        (result(1.0, ttft_p99_ms=109.0), ""),
        (result(1.0, ttft_p99_ms=111.0), "TTFT p99 111 ms, not 100 ms"),
        (result(1.0, lost=1), "loses 1 requests"),
    ],
)
def test_what_is_worse_service(other: dict[str, Any], words: str) -> None:
    assert worse_because(other, result(1.0)) == words


def test_who_serves_worse_does_not_compete_but_is_told() -> None:
    found = compared(result(1.0), {"queues": result(0.5, ttft_p99_ms=9e3), "fair": result(0.99)})
    assert (found["best"], found["ratio"]) == ("fair", pytest.approx(1 / 0.99))
    assert (found["cheapest"], found["cheapest_ratio"]) == ("queues", 2.0)
    assert found["cheapest_fails"].startswith("TTFT")
    assert passes(found)
    assert not passes(compared(result(1.0), {"fair": result(0.97)}))


def test_better_service_for_no_more_is_a_miss_at_any_ratio() -> None:
    found = compared(result(1.0, attainment=0.90), {"better": result(1.0, attainment=0.95)})
    assert found["better_served_by"] == ["better"]
    assert not passes(found)


def test_the_bounds_fall_with_the_clients_that_share_steps_and_idle_power() -> None:
    requests = made_up(MIXES["code"], None, 200, 0, clients=16)
    bounds = [steady_bound(fleet_of(FLEETS[4]), requests, clients) for clients in (1, 4, 16, 64)]
    assert bounds == sorted(bounds, reverse=True)
    assert steady_bound(fleet_of(FLEETS[8]), requests, 16) > bounds[2], "more idle GPUs"
    assert bounds[3] < ramp_bound(4, requests, dict.fromkeys((1, 16, 64), 1.0)) < bounds[0]


def test_one_backend_of_an_arm_is_not_run_packed_too() -> None:
    assert [name for name in fixed_choices(FLEETS[4]) if name.startswith("pack:")] == []
    assert [name for name in fixed_choices(FLEETS[8]) if name.startswith("pack:")] == [
        "pack:eagle3-k1",
        "pack:dspark-8",
    ]


def ramp(ours_j: float, bound_j: float, **packed: dict[str, Any]) -> dict[str, Any]:
    results = {"planned min_energy": result(ours_j), "all static:none": result(1.0), "all pack:none": result(0.95)}
    results |= {f"all pack:{arm}": run for arm, run in packed.items()}
    return {
        "part": "ramp",
        "gpus": 4,
        "mix": "code+romansh",
        "load": "1-256-1",
        "target_ms": 10.0,
        "results": results,
        "bounds": {"planned min_energy": bound_j},
    }


def test_a_bar_is_met_missed_or_out_of_reach() -> None:
    judged = {bar.words: bar for bar in bars([ramp(0.88, 0.5), ramp(0.92, 0.5), ramp(0.92, 0.91)])}
    least_loaded = judged["ramp, 4 GPUs, 10% below the cheapest least-loaded arm that serves no worse"]
    assert (least_loaded.met, len(least_loaded.missed), len(least_loaded.out_of_reach)) == (1, 1, 1)
    assert judged["ramp, 4 GPUs, not above the cheapest packed arm that serves no worse"].met == 3
    mixed = judged["ramp, 4 GPUs, 7 % below the cheapest packed arm that serves no worse, on mixed text"]
    assert (mixed.met, len(mixed.missed), len(mixed.out_of_reach)) == (1, 1, 1)


@pytest.mark.parametrize(
    ("ours_j", "packed", "words"),
    [
        (0.80, {}, "1 of 1 cells"),
        (0.93, {"late": result(0.92, attainment=0.5)}, "1 of 1 cells"),
        (0.96, {"late": result(0.97, attainment=0.5)}, "missed: code+romansh 1-256-1 10.0 ms: 1.011"),
        (0.96, {"late": result(0.90, attainment=0.5)}, "missed: code+romansh 1-256-1 10.0 ms: 1.011"),
        (0.96, {"none": result(0.97, attainment=0.5), "late": result(0.99, attainment=0.5)}, "1 of 1 cells"),
        (
            0.96,
            {"none": result(0.93, attainment=0.6), "late": result(0.90, attainment=0.5)},
            "nobody else serves as well: code+romansh 1-256-1 10.0 ms: 1.067 of an arm that attains 50% of code",
        ),
        (0.96, {"late": result(0.90)}, "missed: code+romansh 1-256-1 10.0 ms: 1.067"),
    ],
)
def test_on_a_ramp_an_arm_that_serves_worse_keeps_no_bar_from_being_met(
    ours_j: float, packed: dict[str, dict[str, Any]], words: str
) -> None:
    judged = {bar.words: bar for bar in bars([ramp(ours_j, 0.5, **packed)])}
    assert words in str(judged["ramp, 4 GPUs, not above the cheapest packed arm that serves no worse"])


def test_who_is_served_better_for_no_more_misses_the_bar_of_steady_cells() -> None:
    row = {
        "part": "steady",
        "gpus": 4,
        "mix": "code",
        "load": "16",
        "target_ms": 10.0,
        "results": {"min_energy": result(1.0, attainment=0.9), "static:none": result(1.0, attainment=0.95)},
        "bounds": {"min_energy": 0.97},
    }
    within, within_5, oracle = list(bars([row]))  # nothing is said of cells without targets, there being none
    assert (within.met, within_5.met, oracle.met) == (0, 1, 1)
    assert within.missed == ["code 16 10.0 ms: 1.000, served better by static:none"]
