"""`min_energy` against fixed choices: one JSON row per cell, resumable, and a summary.

    python bench/planner_table.py --rows bench/results/planner_table.jsonl --traces DIR          runs what is missing
    python bench/planner_table.py --rows bench/results/planner_table.jsonl --summary             judges what is there
    python bench/planner_table.py --rows bench/results/planner_table.jsonl --traces DIR --anew   only `min_energy` again

Parts
    steady   closed loop of 1 … 256 clients × five text mixes × TBT targets × 4 and 8 GPUs, on a given mixed fleet:
             `min_energy` against every fixed choice on that fleet; each cell several times, judged as one
    ramp     closed loop of 1 → 256 → 1 clients, target 10 ms; `min_energy` on the fleet that `plan` picks against as
             many GPUs that all run one arm (least loaded, and packed)
    trace    recorded arrivals scaled to fill the given fleet to 30 % and 80 %; against both
    shared   one GPU with three co-located arms whose text changes from code to Romansh to conversation

A cell's requests are the same for every policy (the same seeds), and so is what each of them would be accepted on an
arm. The profile's costs and accept lengths are taken as the truth. Beside the runs a row has what no policy can beat
(_planner_bound.py). An arm with one backend is run with `static` alone: `pack` does the same there.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from _cell_table import made_by
from _planner_cells import CLIENTS, FLEETS, MIXES, PROFILE, REPEATS, TARGETS_MS, TRACES
from _planner_markdown import tables
from _planner_runs import Cell, run_cell
from _planner_verdict import print_summary, read_rows

from selector.errors import TraceError


def all_cells(quick: bool) -> Iterator[Cell]:
    """Every cell; with `quick` a tenth of them."""
    for gpus in FLEETS:
        for load in (16, 64) if quick else CLIENTS:
            for mix in ("code", "code+romansh") if quick else MIXES:
                for target_ms in (None, 10.0) if quick else TARGETS_MS:
                    yield Cell("steady", gpus, mix, target_ms, str(load), repeats=REPEATS[load])
    for gpus in FLEETS:
        for mix in ("code", "ten types") if quick else MIXES:
            yield Cell("ramp", gpus, mix, 10.0, "1-256-1")
    for gpus in (4,) if quick else FLEETS:
        for trace, (_, mix) in TRACES.items():
            for fill in ("0.3", "0.8"):
                yield Cell("trace", gpus, mix, 25.0, f"{trace} {fill}")
    yield Cell("shared", 1, "code, romansh, conversation", None, "16")


def main() -> None:
    """Runs the missing cells, or judges."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=Path, required=True, help="JSON lines; cells that are there are not run again")
    parser.add_argument("--traces", type=Path, default=Path("data/traces"), help="folder of the recorded traces")
    parser.add_argument("--quick", action="store_true", help="a tenth of the cells")
    parser.add_argument("--part", action="append", choices=("steady", "ramp", "trace", "shared"))
    parser.add_argument("--gpus", action="append", type=int, choices=tuple(FLEETS), help="fleets of so many alone")
    parser.add_argument("--load", action="append", help="cells of that load alone: clients, or a trace and its fill")
    parser.add_argument("--mix", action="append", choices=tuple(MIXES), help="cells of that text alone")
    parser.add_argument("--target-ms", action="append", type=float, help="cells of that target alone")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--anew", action="store_true", help="run min_energy alone in the cells that are there, in place of its runs"
    )
    parser.add_argument("--summary", action="store_true", help="only judge the rows that are there")
    parser.add_argument("--markdown", action="store_true", help="only print the tables of docs/planner.md")
    parser.add_argument("--plot", type=Path, help="write a figure (needs matplotlib)")
    options = parser.parse_args()
    wanted = [
        cell
        for cell in all_cells(options.quick)
        if cell.part in (options.part or [cell.part])
        and cell.gpus in (options.gpus or [cell.gpus])
        and cell.load in (options.load or [cell.load])
        and cell.mix in (options.mix or [cell.mix])
        and cell.target_ms in (options.target_ms or [cell.target_ms])
    ]
    done = cells_in(options.rows) if options.rows.exists() else set()
    if options.markdown:
        print("\n\n".join(tables(read_rows(options.rows))))
        return
    if options.anew:
        with ProcessPoolExecutor(options.processes) as pool:
            run_anew(options.rows, [cell for cell in wanted if cell.key in done], options.traces, pool)
    elif not options.summary:
        cells = [cell for cell in wanted if cell.key not in done]
        with options.rows.open("a", encoding="utf-8") as out, ProcessPoolExecutor(options.processes) as pool:
            if not done:
                print(json.dumps(provenance()), file=out, flush=True)
            running = {pool.submit(run_cell, cell, options.traces): cell for cell in cells}
            for number, future in enumerate(as_completed(running), start=1):
                cell = running[future]
                words = f"{number}/{len(cells)} {cell.part} {cell.gpus} GPUs {cell.mix} {cell.load} {cell.target_ms}"
                try:
                    print(json.dumps(future.result()), file=out, flush=True)
                except TraceError as unread:
                    words += f": left out, {unread}"
                print(words, flush=True)
    print_summary(options.rows, options.plot)
    there = cells_in(options.rows)
    left = Counter(f"{cell.part} {cell.gpus} GPUs" for cell in all_cells(quick=False) if cell.key not in there)
    if left:
        print("cells of the whole table not run:", ", ".join(f"{count} of {words}" for words, count in left.items()))


def run_anew(rows: Path, cells: Sequence[Cell], traces: Path, pool: Executor) -> None:
    """Puts new runs of `min_energy`, with their bounds and plans, in place of those of the cells that the file has.

    Right where nothing changed that the fixed choices run on. The first line of the file says how many were replaced,
    when, and by what.
    """
    lines = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    row_of = {cell_of(line).key: line for line in lines if "part" in line}
    found = pool.map(partial(run_cell, traces=traces, fixed=False), cells)
    for number, (cell, again) in enumerate(zip(cells, found, strict=True), start=1):
        row = row_of[cell.key]
        row["results"] |= again["results"]
        row["bounds"] |= again["bounds"]
        if "plan" in again:
            row["plan"] = again["plan"]
        print(f"{number}/{len(cells)}", flush=True)
    parts = Counter(f"{cell.part} {cell.gpus} GPUs" for cell in cells)
    when = datetime.now(UTC).date().isoformat()
    lines[0].setdefault("anew", []).append({"runs": "min_energy", "cells": parts, "date": when, **made_by()})
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def cell_of(row: Mapping[str, Any]) -> Cell:
    """The cell that a row is of."""
    return Cell(**{name: row[name] for name in Cell.__slots__ if name in row})


def cells_in(rows: Path) -> set[str]:
    """Keys of the cells that a file has."""
    return {cell_of(row).key for row in read_rows(rows)}


def provenance() -> dict[str, object]:
    """What made the rows."""
    return {
        "benchmark": "planner_table",
        "profile": PROFILE,
        **made_by(),
    }


if __name__ == "__main__":
    main()
