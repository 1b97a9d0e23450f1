"""The command of a table of simulated cells: JSON lines that a later run goes on with, and a summary of them."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

from selector import __version__

Cell = TypeVar("Cell")


def made_by() -> dict[str, object]:
    """Versions and host of a run, for the first line of its rows."""
    return {
        "drafter-selector": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpus": os.cpu_count(),
    }


def run_table(
    about: str,
    cell_type: Callable[..., Cell],
    all_cells: Callable[[], Iterable[Cell]],
    run_cell: Callable[[Cell], dict[str, Any]],
    print_summary: Callable[[Path], None],
    provenance: Callable[[], dict[str, object]],
    run_anew: Callable[[Cell, str], object] | None = None,
) -> None:
    """Runs the cells that the file lacks, or only judges those that are there.

    `run_anew` gives one of a cell's `results` by its name; a file in which it replaced one says so in its first line.
    `provenance` is the first line of a new file, `about` the docstring of the script. `cell_type` makes a cell of the
    fields that its row names too; cells are slotted and can be compared.
    """
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("--rows", type=Path, required=True, help="JSON lines; cells that are there are not run again")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--summary", action="store_true", help="only judge the rows that are there")
    if run_anew is not None:
        parser.add_argument(
            "--anew", metavar="RUN", help="only run this one of each cell again, and put it in its place"
        )
    options = parser.parse_args()
    lines = options.rows.read_text(encoding="utf-8").splitlines() if options.rows.exists() else []
    known = [json.loads(line) for line in lines]
    fields = cell_type.__slots__  # type: ignore[attr-defined]
    cells = [cell_type(**{name: row[name] for name in fields}) for row in known if "part" in row]
    if run_anew is not None and options.anew:
        with ProcessPoolExecutor(options.processes) as pool:
            found = list(pool.map(run_anew, cells, [options.anew] * len(cells)))
        for row, result in zip((row for row in known if "part" in row), found, strict=True):
            row["results"][options.anew] = result
        known[0].setdefault("anew", {})[options.anew] = made_by()
        options.rows.write_text("".join(json.dumps(row) + "\n" for row in known), encoding="utf-8")
    elif not options.summary:
        done = set(cells)
        with options.rows.open("a", encoding="utf-8") as out, ProcessPoolExecutor(options.processes) as pool:
            if not known:
                print(json.dumps(provenance()), file=out, flush=True)
            running = [pool.submit(run_cell, cell) for cell in all_cells() if cell not in done]
            for number, future in enumerate(as_completed(running), start=1):
                print(json.dumps(future.result()), file=out, flush=True)
                print(f"{number}/{len(running)}", flush=True)
    print_summary(options.rows)
