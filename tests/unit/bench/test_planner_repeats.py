"""Runs of a cell with several draws are judged as one."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

from _planner_cells import CLIENTS, FLEETS, fleet_of
from _planner_repeats import repeated
from _planner_runs import Cell, made_up, run_cell
from planner_table import all_cells, cell_of

from selector.simulator.arrivals import ClosedLoop
from selector.simulator.report import PolicyResult
from selector.simulator.run import Window

FIRST = Cell("steady", 4, "romansh", 5.0, "1")
MIX = {"romansh": 1.0}


def run(loads: list[ClosedLoop], first_seed: int) -> PolicyResult:
    window = Window(from_s=20.0, to_s=60.0)
    return repeated(
        fleet_of(FLEETS[4]), loads, "static:dspark-8", first_seed=first_seed, window=window, until_s=float("inf")
    )


def test_two_runs_as_one() -> None:
    loads = [ClosedLoop(made_up(MIX, 5.0, 200, seed, clients=4), [(0.0, 4)]) for seed in (3, 4)]
    one, two, both = run(loads[:1], 3), run(loads[1:], 4), run(loads, 3)
    assert both.energy_j == pytest.approx(one.energy_j + two.energy_j)
    assert both.accepted_tokens == one.accepted_tokens + two.accepted_tokens
    assert both.requests == one.requests + two.requests
    assert both.j_per_accepted_token == pytest.approx(both.energy_j / both.accepted_tokens)
    met = one.requests * one.attainment_by_text_type["romansh"] + two.requests * two.attainment_by_text_type["romansh"]
    assert both.attainment_by_text_type["romansh"] == pytest.approx(met / both.requests)
    assert one.ttft_p99_ms and two.ttft_p99_ms and both.ttft_p99_ms
    low, high = sorted((one.ttft_p99_ms, two.ttft_p99_ms))
    assert low <= both.ttft_p99_ms <= high


def test_a_cell_is_run_with_as_many_draws_as_it_says(tmp_path: Path) -> None:
    found = [
        run_cell(cell, tmp_path, fixed=False)["results"]["min_energy"]
        for cell in (FIRST, replace(FIRST, seed=1), replace(FIRST, repeats=2))
    ]
    assert found[0]["tokens"] != found[1]["tokens"]
    assert found[2]["tokens"] == found[0]["tokens"] + found[1]["tokens"]


def test_the_table_repeats_its_steady_cells_and_a_row_of_a_single_run_is_another_cell() -> None:
    steady = [cell for cell in all_cells(quick=False) if cell.part == "steady"]
    assert {cell.load for cell in steady} == {str(clients) for clients in CLIENTS}
    assert all(cell.repeats > 1 for cell in steady)
    assert all(cell.repeats == 1 for cell in all_cells(quick=False) if cell.part != "steady")
    single = {name: value for name, value in asdict(steady[0]).items() if name != "repeats"}
    assert cell_of(single) == replace(steady[0], repeats=1)
