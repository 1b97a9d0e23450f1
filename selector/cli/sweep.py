"""`sweep`: every combination of policies, traces, fleets, targets, seeds, rate scales and text mixes."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, redirect_stdout
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from selector.cli.arguments import count, figure
from selector.cli.outputs import write_output
from selector.cli.progress import progress
from selector.errors import UsageError
from selector.page.facts import program_facts
from selector.simulator.sweep.cells import Cell, CellRecord, Inputs
from selector.simulator.sweep.cluster import Cluster
from selector.simulator.sweep.folder import SweepFolder, SweepWriter
from selector.simulator.sweep.page import sentences, sweep_page
from selector.simulator.sweep.plan import plan_sweep
from selector.simulator.sweep.summary import CaseSummary, cells_csv, summarise_sweep
from selector.simulator.sweep.workers import in_this_process, on_processes

NAME = "sweep"

_PIPE_COLUMNS = 160
_MOST_ERRORS = 10
_COLUMNS = ("seeds", "J/token", "decode", "attained", "worst type", "TBT p99 ms", "TTFT p99 ms", "W", "lost")

_EPILOG = """\
example of a sweep file (paths are relative to it; only traces, fleets and policies must be given):

    version = 1
    policies = ["pack:dspark-8", "min_energy", "./mine.py"]
    tbt_targets_ms = ["classes", "none", 25, 10]     # classes: those of the fleet file
    seeds = 3                                        # 0, 1, 2; or a list
    rate_scales = [1, 2]
    text_mixes = ["own", "code=0.5,romansh=0.5"]     # own: the trace's own kind
    [[traces]]
    path = "conv.csv"
    limit = 5000
    [[fleets]]
    path = "fleet.toml"

Every finished cell is on disk at once; the same command goes on where it stopped, and runs again what depends on a file
that has changed. A cell that fails is told and the others go on; the exit code is then 1.

    drafter-selector sweep --config sweep.toml --out results --html results/report.html
    drafter-selector sweep --config sweep.toml --out results --ray auto
    drafter-selector sweep --out results --report --csv results/cells.csv
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        NAME,
        help="policies × traces × fleets × targets × seeds from one file",
        description="Simulates every combination that a sweep file names, and summarises them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="the sweep file (TOML)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where finished cells are kept")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--jobs", type=count, metavar="N", help="local processes; default: one for each CPU")
    where.add_argument("--ray", metavar="ADDRESS", help="run on this Ray cluster instead; `auto` finds a local one")
    parser.add_argument("--report", action="store_true", help="run nothing, only summarise what is in DIR")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the summary as a self-contained page")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write one line for each cell")
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    folder = SweepFolder(args.out)
    if args.report:
        if args.config or args.ray or args.jobs:
            raise UsageError("--report", "runs nothing", "leave --config, --jobs and --ray out")
        cells = folder.planned()
    elif args.config is None:
        raise UsageError("--config", "is missing", "name a sweep file, or give --report to summarise DIR")
    else:
        cells = _sweep(args, folder)
    records = folder.records()
    cases = summarise_sweep(cells, records)
    ours = [records[cell.key] for cell in cells if cell.key in records]
    if args.html is not None:
        facts = [*program_facts(f"drafter-selector {shlex.join(sys.argv[1:])}"), *_facts(folder, cells, ours)]
        write_output(args.html, sweep_page(cases, facts))
    if args.csv is not None:
        write_output(args.csv, cells_csv(cells, records))
    if args.json:
        document = {
            "cases": [case.model_dump() for case in cases],
            "cells": [record.model_dump(exclude={"traceback"}) for record in ours],
            "missing": len(cells) - len(ours),
            "failed": sum(record.result is None for record in ours),
        }
        print(json.dumps(document))
    else:
        _print(cases)
    return 1 if any(record.result is None for record in ours) else 0


def _sweep(args: argparse.Namespace, folder: SweepFolder) -> list[Cell]:
    """Runs the cells that the folder lacks."""
    inputs, cells = plan_sweep(args.config)
    with SweepWriter(folder) as writer:
        known = folder.records()
        pending = _pending(cells, known)
        writer.write_plan(cells)
        notes = Console(stderr=True, quiet=args.json, markup=False, emoji=False, highlight=False, soft_wrap=True)
        if len(pending) < len(cells):
            notes.print(f"{len(cells)} cells, {len(cells) - len(pending)} of them finished before")
        failures = done = 0
        try:
            with (
                progress("sweep", len(pending), quiet=args.json) as advance,
                closing(_records(args, inputs, pending)) as records,
                redirect_stdout(sys.stderr),  # Ray and policies print where the results are to stand alone
            ):
                for record in records:
                    writer.append(record)
                    done += 1
                    if record.error is not None:
                        failures += 1
                        if failures <= _MOST_ERRORS:
                            notes.print(f"failed: {_called(record.cell)}: {record.error}")
                    advance()
        except KeyboardInterrupt:
            notes.print(f"stopped with {len(pending) - done} cells to go; the same command goes on from here")
            raise
        if failures:
            notes.print(f"{failures} cells failed; {folder.lines} has their tracebacks")
    return cells


def _records(args: argparse.Namespace, inputs: Inputs, pending: Sequence[Cell]) -> Generator[CellRecord]:
    """Records as they are done; closing it ends what is still at work."""
    if not pending:
        return
    if args.ray:
        with Cluster(args.ray) as cluster:
            yield from cluster.run(inputs, pending)
        return
    jobs = args.jobs or len(os.sched_getaffinity(0))
    yield from in_this_process(inputs, pending) if jobs == 1 else on_processes(inputs, pending, jobs)


def _pending(cells: Sequence[Cell], known: Mapping[str, CellRecord]) -> list[Cell]:
    """Cells without a result, each key once."""
    wanted = {cell.key: cell for cell in cells}
    return [cell for key, cell in wanted.items() if key not in known or known[key].result is None]


def _called(cell: Cell) -> str:
    target = "classes" if cell.tbt_target_ms is None else cell.tbt_target_ms
    return f"{cell.policy} on {cell.trace}, {cell.fleet}, target {target}, rate {cell.rate_scale:g}, seed {cell.seed}"


def _facts(folder: SweepFolder, cells: Sequence[Cell], ours: Sequence[CellRecord]) -> list[tuple[str, str]]:
    digests = {record.cell.policy: record.result.policy_sha256 for record in ours if record.result is not None}
    codes = sorted({record.code_sha256 for record in ours})
    seeds = sorted({cell.seed for cell in cells})
    named = ((kind, name, cell) for cell in cells for kind, name in (("trace", cell.trace), ("fleet", cell.fleet)))
    files = dict.fromkeys((kind, name, cell.inputs[kind]) for kind, name, cell in named)
    return [
        ("cells", f"{len(ours)} of {len(cells)} in {folder.path}"),
        ("seeds", ", ".join(map(str, seeds))),
        *((f"{kind} {name}", f"sha256 {digest}") for kind, name, digest in files),
        ("simulator", f"sha256 {', '.join(codes) or 'none'}"),
        *((f"policy {name}", f"sha256 {digest}") for name, digest in digests.items()),
    ]


def _print(cases: Sequence[CaseSummary]) -> None:
    width = None if sys.stdout.isatty() else _PIPE_COLUMNS
    console = Console(markup=False, emoji=False, soft_wrap=True, width=width)
    for case in cases:
        table = Table(box=SIMPLE_HEAD, show_edge=False, collapse_padding=True, title=case.words, title_justify="left")
        table.add_column("policy", overflow="fold")
        for column in (
            "seeds",
            "J/token",
            "decode",
            "attained",
            "worst type",
            "TBT p99 ms",
            "TTFT p99 ms",
            "W",
            "lost",
        ):
            table.add_column(column, justify="right", no_wrap=True)
        for each in case.policies:
            table.add_row(
                each.policy,
                f"{each.seeds}" + (f", {each.failed} failed" if each.failed else ""),
                figure(each.j_per_accepted_token, 4) + (" ◀" if each.policy == case.least else ""),
                figure(each.decode_j_per_accepted_token, 4),
                "-" if each.tbt_attainment is None else f"{each.tbt_attainment:.1%}",
                "-" if each.worst_text_type_attainment is None else f"{each.worst_text_type_attainment:.1%}",
                figure(each.tbt_p99_ms, 2),
                figure(each.ttft_p99_ms, 0),
                figure(each.mean_power_w, 0),
                figure(each.requests_lost, 1),
            )
        console.print(table)
    for sentence in sentences(cases):
        console.print(sentence)
