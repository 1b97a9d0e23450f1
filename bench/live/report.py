"""Live results as a table: what was measured, and how far the simulation was off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

_COMPARED = ("j_per_accepted_token", "tbt_p50_ms", "ttft_p50_ms")


def print_report(rows: Iterable[Mapping[str, Any]]) -> None:
    """Prints the table and the errors' median and worst."""
    rows = list(rows)
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
            row["policy"],
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
    console = Console(markup=False, emoji=False, width=200, soft_wrap=True)
    console.print(table)
    for name in _COMPARED:
        known = [abs(row["error"][name]) for row in rows if row["error"].get(name) is not None]
        if known:
            console.print(f"{name}: median error {median(known):.1%}, worst {max(known):.1%} over {len(known)} cells")


def _with_error(row: Mapping[str, Any], name: str, digits: int) -> str:
    value, error = row["live"][name], row["error"].get(name)
    if value is None:
        return "-"
    return f"{value:.{digits}f}" + ("" if error is None else f" ({error:+.1%})")
