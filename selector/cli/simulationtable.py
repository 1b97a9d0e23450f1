"""What `simulate` prints for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from selector.cli.arguments import figure
from selector.cli.tracearguments import LoadedTraces
from selector.simulator.page.names import target_words
from selector.simulator.report import PolicyResult


def print_results(results: Sequence[PolicyResult], traces: LoadedTraces, console: Console) -> None:
    """The results, a table for each target, and what they were run on."""
    for line in traces.summary():
        console.print(line)
    targets = list(dict.fromkeys(result.tbt_target_ms for result in results))
    for target in targets:
        own = [result for result in results if result.tbt_target_ms == target]
        if len(targets) > 1:
            console.print(f"\n{target_words(target)}")
        _print_target(own, console)
    worst = max(result.extrapolated_energy_frac for result in results)
    if worst > 0.05:
        console.print(f"note: up to {worst:.0%} of decode energy lies outside the profile's measured cells")


def _print_target(results: Sequence[PolicyResult], console: Console) -> None:
    console.print(_table(results))
    for result in results:
        total = sum(result.decisions_by_arm.values()) or 1
        arms = ", ".join(f"{arm} {count / total:.0%}" for arm, count in result.decisions_by_arm.items() if count)
        console.print(f"{result.policy}: {result.requests} requests done; {arms or 'none sent anywhere'}")
        if result.requests_rejected or result.requests_dropped:
            lost = f"{result.requests_rejected} rejected, {result.requests_dropped} over every backend's context"
            console.print(f"{result.policy}: {lost}")


def _table(results: Sequence[PolicyResult]) -> Table:
    """Fits 80 columns with policy names of 15."""
    table = Table(
        title="joules per accepted token, idle included; decode only beside it",
        box=SIMPLE_HEAD,
        show_edge=False,
        collapse_padding=True,
    )
    table.add_column("policy", overflow="fold")
    for column in ("J/token", "decode", "attained", "TBT\np50", "\np99 ms", "TTFT\np50", "\np99 ms", "W"):
        table.add_column(column, justify="right", no_wrap=True)
    best = min((r.j_per_accepted_token for r in results if r.j_per_accepted_token is not None), default=None)
    for result in results:
        lowest = result.j_per_accepted_token == best and len(results) > 1
        table.add_row(
            result.policy,
            figure(result.j_per_accepted_token, 4) + (" ◀" if lowest else ""),
            figure(result.decode_j_per_accepted_token, 4),
            "-" if result.tbt_attainment is None else f"{result.tbt_attainment:.1%}",
            figure(result.tbt_p50_ms, 2),
            figure(result.tbt_p99_ms, 2),
            figure(result.ttft_p50_ms, 0),
            figure(result.ttft_p99_ms, 0),
            figure(result.mean_power_w, 0),
        )
    return table
