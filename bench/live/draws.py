"""A plan simulated over several draws of its requests: is what one run of a cell shows chance?

    python bench/live/draws.py --plan bench/live/three-on-one-targets.toml --draws 12 --json runs/draws.json

The trace stays; which text a request is of and what is accepted of it are drawn anew. A cell's row is the mean over the
draws, and the draw in which the least was attained.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from statistics import fmean
from typing import Any

from imposing import with_imposed
from plan import LivePlan, cells, load_plan
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table
from workload import simulated_result, trace_of, workload

from selector.errors import SelectorError

_FIGURES = ("j_per_accepted_token", "tbt_attainment", "tbt_p50_ms", "ttft_p99_ms")


def main() -> int:
    """0, or 2 for an input that cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, required=True, help="what to simulate (TOML)")
    parser.add_argument("--draws", type=int, default=12, help="seeds 0, 1, … (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=1, help="draws that are simulated at once")
    parser.add_argument("--json", type=Path, help="also write the figures of every draw here")
    options = parser.parse_args()
    try:
        load_plan(options.plan)
    except SelectorError as failed:
        print(f"draws.py: {failed}", file=sys.stderr)
        return 2
    with ProcessPoolExecutor(options.processes) as pool:
        drawn = pool.map(draw, repeat(options.plan), range(options.draws))
        found = list(track(drawn, "draws", total=options.draws, console=Console(stderr=True), transient=True))
    rows = {key: [each[key] for each in found] for key in found[0]} if found else {}
    print_draws(rows)
    if options.json is not None:
        about = {"plan": options.plan.name, "draws": options.draws}
        options.json.write_text(json.dumps({**about, "cells": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


def draw(path: Path, seed: int) -> dict[str, dict[str, Any]]:
    """The figures of every cell of a plan under one seed, by the cell's key."""
    return dict(_simulated(path, load_plan(path).model_copy(update={"seed": seed, "seeds_of": {}})))


def _simulated(path: Path, plan: LivePlan) -> Iterator[tuple[str, dict[str, Any]]]:
    trace = trace_of(plan, path.parent)
    for fleet in plan.fleets:
        with tempfile.TemporaryDirectory() as scratch:
            _, loaded = with_imposed(path.parent / fleet, plan, Path(scratch), path.parent)
        for cell in (each for each in cells(plan) if each.fleet == fleet):
            found = simulated_result(loaded, workload(plan, cell, trace, loaded), cell)
            yield cell.key, {name: found[name] for name in _FIGURES}


def print_draws(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Prints a line a cell: means over its draws, and the least attained."""
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    table.add_column("cell", no_wrap=True)
    for column in ("draws", "J/token", "attained", "least", "TBT p50 ms", "TTFT p99 ms", "longest"):
        table.add_column(column, justify="right", no_wrap=True)
    for key, draws in rows.items():
        attained = [each["tbt_attainment"] for each in draws if each["tbt_attainment"] is not None]
        table.add_row(
            key,
            str(len(draws)),
            f"{fmean(each['j_per_accepted_token'] for each in draws):.4f}",
            f"{fmean(attained):.1%}" if attained else "-",
            f"{min(attained):.1%}" if attained else "-",
            f"{fmean(each['tbt_p50_ms'] for each in draws):.2f}",
            f"{fmean(each['ttft_p99_ms'] for each in draws):.0f}",
            f"{max(each['ttft_p99_ms'] for each in draws):.0f}",
        )
    Console(markup=False, emoji=False, width=200, soft_wrap=True).print(table)


if __name__ == "__main__":
    raise SystemExit(main())
