"""Joules per token of live cells stage by stage: who is best at which load of one run?

    python bench/live/stages.py --plan bench/live/ramp.toml --rows bench/results/h200_live.jsonl --fleet depth-open

Every cell is cut into stages; a stage's joules and tokens, those of all seeds together, are
interpolated from the row's timeline, which engines and boards tell every 1.5 s. With the mean batch of its steps.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from plan import cells, load_plan
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from run import done

from selector.errors import SelectorError, UsageError

_STAGE_S = 9.0
_COUNTED = ("energy_j", "steps", "request_steps", "tokens")


def main() -> int:
    """0, or 2 for an input that cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, required=True, help="what was run (TOML)")
    parser.add_argument("--rows", type=Path, required=True, help="the results")
    parser.add_argument("--fleet", help="only the cells of this fleet of the plan")
    parser.add_argument("--from-s", help="when stages begin, separated by commas (default: every 9 s)")
    args = parser.parse_args()
    try:
        plan = load_plan(args.plan)
        edges = _edges(args.from_s, plan.seconds)
    except SelectorError as failed:
        print(f"stages.py: {failed}", file=sys.stderr)
        return 2
    rows = done(args.rows)
    found: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for cell in cells(plan):
        if args.fleet in (None, Path(cell.fleet).stem) and cell.key in rows:
            found.setdefault((Path(cell.fleet).stem, cell.text.name, cell.policy), []).append(rows[cell.key])
    Console(markup=False, emoji=False, width=200, soft_wrap=True).print(_table(found, edges))
    return 0


def _edges(given: str | None, seconds: float) -> list[float]:
    """Where stages begin, and no end of the last. Raises `UsageError`."""
    if given is None:
        return [*map(float, np.arange(0.0, seconds, _STAGE_S)), np.inf]
    try:
        begins = [float(word) for word in given.split(",")]
    except ValueError:
        begins = []
    if not begins or begins != sorted(set(begins)):
        raise UsageError("--from-s", f"is {given!r}", "give seconds that increase, such as 0,6,14")
    return [*begins, np.inf]


def stages(rows: Sequence[Mapping[str, Any]], edges: Sequence[float]) -> list[dict[str, float]]:
    """Of each stage from one of the edges (s) to the next: the sums of `_COUNTED` over all rows."""
    total = np.zeros((len(edges), len(_COUNTED)))
    for row in rows:
        at_s = [point["at_s"] for point in row["timeline"]]
        total += np.array([np.interp(edges, at_s, [point[name] for point in row["timeline"]]) for name in _COUNTED]).T
    return [dict(zip(_COUNTED, map(float, end - start), strict=True)) for start, end in itertools.pairwise(total)]


def _table(found: Mapping[tuple[str, str, str], Sequence[Mapping[str, Any]]], edges: Sequence[float]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, title="J/token (mean batch)")
    for column in ("fleet", "text", "policy"):
        table.add_column(column)
    table.add_column("runs", justify="right")
    for start, end in itertools.pairwise(edges):
        words = f"{start:g}-{end:g} s" if np.isfinite(end) else f"{start:g} s on"
        table.add_column(words, justify="right", no_wrap=True)
    for key, rows in found.items():
        told = []
        for stage in stages(rows, edges):
            batch = stage["request_steps"] / stage["steps"] if stage["steps"] else 0.0
            told.append(f"{stage['energy_j'] / stage['tokens']:.4f} ({batch:.0f})" if stage["tokens"] else "-")
        table.add_row(*key, str(len(rows)), *told)
    return table


if __name__ == "__main__":
    raise SystemExit(main())
