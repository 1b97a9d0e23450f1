"""Live results as tables: what was measured, and how far the simulation was off, cell by cell and by plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from plan import LivePlan, cells
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

Row = Mapping[str, Any]
"""One cell of results.jsonl."""

_COMPARED = ("j_per_accepted_token", "tbt_p50_ms", "ttft_p50_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellGroup:
    """Cells whose errors are told together."""

    plan: str
    which: str
    rows: Sequence[Row]

    def errors(self, name: str) -> list[float]:
        """Of one figure, absolute: live over simulated less 1, of the cells that have both."""
        return [abs(row["error"][name]) for row in self.rows if row["error"].get(name) is not None]


def print_report(rows: Iterable[Row], plans: Mapping[Path, LivePlan]) -> None:
    """Prints the table of cells, then the errors' median and worst: by plan, and of all rows there are."""
    rows = list(rows)
    console = Console(markup=False, emoji=False, width=200, soft_wrap=True)
    console.print(_cell_table(rows))
    console.print(_error_table(cell_groups(rows, plans)))
    everything = CellGroup(plan="", which="", rows=rows)
    for name in _COMPARED:
        known = everything.errors(name)
        if known:
            console.print(f"{name}: median error {median(known):.1%}, worst {max(known):.1%} over {len(known)} cells")


def cell_groups(rows: Sequence[Row], plans: Mapping[Path, LivePlan]) -> Iterator[CellGroup]:
    """Of each plan: all cells it asks for, those of each fleet and policy, and those of loads it had once.

    Last, if there are several plans, all cells they ask for. Of cells that no plan asks for any more the row's command
    says whose they were; their loads have other names, so that nobody takes them for cells of now.
    """
    by_key = {row["key"]: row for row in rows}
    asked = {file: [cell.key for cell in cells(plan)] for file, plan in plans.items()}
    every = dict.fromkeys(key for keys in asked.values() for key in keys if key in by_key)
    for file, keys in asked.items():
        own = [by_key[key] for key in keys if key in by_key]
        yield CellGroup(plan=file.name, which="all cells", rows=own)
        for (fleet, policy), group in _grouped(own, "fleet", "policy").items():
            yield CellGroup(plan=file.name, which=f"{fleet}, {policy}", rows=group)
        once = [row for row in rows if row["key"] not in keys and _plan_name(row) == file.name]
        for (load,), group in _grouped(once, "load").items():
            yield CellGroup(plan=file.name, which=f"no longer asked for: {load}", rows=group)
    if len(plans) > 1:
        yield CellGroup(plan="these plans", which="all cells", rows=[by_key[key] for key in every])


def _grouped(rows: Iterable[Row], *names: str) -> dict[tuple[str, ...], list[Row]]:
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups


def _plan_name(row: Row) -> str | None:
    """The file that the cell was run with."""
    words = row["command"].replace("--plan=", "--plan ").split()
    return Path(words[words.index("--plan") + 1]).name if "--plan" in words[:-1] else None


def _cell_table(rows: Iterable[Row]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, title="live, and (in brackets) against the simulation")
    for column in ("fleet", "load", "text", "target", "policy"):
        table.add_column(column)
    for column in ("J/token", "W", "attained", "TBT p50", "p99", "TTFT p50", "p99", "failed", "requests"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        live = row["live"]
        table.add_row(
            row["fleet"],
            row["load"],
            row["text"],
            "-" if row["target_ms"] is None else f"{row['target_ms']:g} ms",
            f"{row['policy']}, seed {row['seed']}" if "seed" in row else row["policy"],
            _with_error(row, "j_per_accepted_token", 4),
            f"{live['energy_j'] / live['duration_s']:.0f}" if live["duration_s"] else "-",
            "-" if live["tbt_attainment"] is None else f"{live['tbt_attainment']:.1%}",
            _with_error(row, "tbt_p50_ms", 2),
            _with_error(row, "tbt_p99_ms", 2),
            _with_error(row, "ttft_p50_ms", 0),
            _with_error(row, "ttft_p99_ms", 0),
            str(live["failed"]),
            str(live["requests"]),
        )
    return table


def _error_table(groups: Iterable[CellGroup]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, title="absolute error, live over simulated: median and worst")
    for column in ("plan", "of"):
        table.add_column(column)
    for column in ("cells", "J/token", "worst", "TBT p50", "worst"):
        table.add_column(column, justify="right", no_wrap=True)
    for group in groups:
        shown = [str(len(group.rows))]
        for name in ("j_per_accepted_token", "tbt_p50_ms"):
            known = group.errors(name)
            shown += [f"{median(known):.1%}", f"{max(known):.1%}"] if known else ["-", "-"]
        table.add_row(group.plan, group.which, *shown)
    return table


def _with_error(row: Row, name: str, digits: int) -> str:
    value, error = row["live"][name], row["error"].get(name)
    if value is None:
        return "-"
    return f"{value:.{digits}f}" + ("" if error is None else f" ({error:+.1%})")
