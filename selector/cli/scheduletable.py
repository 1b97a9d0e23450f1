"""What an exported schedule is expected to give, as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from selector.files.schedulereport import ScheduleReport


def default_notes(report: ScheduleReport, release: str) -> list[str]:
    """What the comparison with the default schedule of an SGLang release leaves out."""
    left_out = sorted({depth for batch in report.batches for depth in batch.sglang_default_left_out})
    if not left_out:
        return []
    depths = " and ".join(map(str, left_out))
    return [f"SGLang {release}'s default schedule also has depth {depths}, not measured and left out of the comparison"]


def print_report(
    console: Console, report: ScheduleReport, notes: Sequence[str], *, open_load: bool, quantile: float, release: str
) -> None:
    """The rows of `report`, then the notes."""
    compared = "at the same tokens a second, J above idle" if open_load else "at the same batch, J"
    table = Table(box=SIMPLE_HEAD, title=f"expected, decode only: {compared} per accepted token", title_justify="left")
    for column in ("batch", "depths", "J/token", f"TBT p{quantile * 100:g}", "best depth", "to it"):
        table.add_column(column, justify="right")
    for column in (f"to {release}'s own", f"to depth {report.one_depth} for all"):
        table.add_column(column, justify="right")
    for each in report.batches:
        table.add_row(
            str(each.batch),
            ", ".join(map(str, each.candidates)),
            f"{each.j_per_accepted_token:.4f}",
            f"{each.tbt_ms:.2f} ms" + ("" if each.meets_target else ", misses"),
            str(each.best_fixed_depth),
            _saving(each.j_per_accepted_token, each.best_fixed_j_per_accepted_token),
            _saving(each.j_per_accepted_token, each.sglang_default_j_per_accepted_token),
            _saving(each.j_per_accepted_token, each.one_depth_j_per_accepted_token),
        )
    console.print(table)
    for note in notes:
        console.print(f"note: {note}")


def _saving(ours: float, theirs: float | None) -> str:
    return "-" if theirs is None else f"{ours / theirs - 1.0:+.1%}"
