"""`simulate`: run policies on a recorded trace over a fleet file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from selector.cli.arguments import figure, positive
from selector.cli.tracearguments import LoadedTraces, add_trace_arguments, load_traces
from selector.files.fleet import load_fleet_with_profiles
from selector.simulator.report import PolicyResult
from selector.simulator.trial import check_policies, prepare, simulate_policy

NAME = "simulate"

_PIPE_COLUMNS = 160
"""Width of the output where it is no terminal; a long policy name or path stays whole."""

_EPILOG = """\
examples:
  one fixed arm against the policy that minimises energy, target 25 ms, half code and half Romansh:
    drafter-selector simulate --trace AzureLLMInferenceTrace_conv.csv --fleet fleet.toml \\
        --policy static:none --policy min_energy --tbt-target-ms 25 --text-mix code=0.5,romansh=0.5

  what another policy would have done with yesterday's traffic:
    drafter-selector simulate --trace decisions.jsonl --fleet fleet.toml --policy ./my_policy.py --json

Energy is all board energy of the fleet, idle included. A trace of token counts holds no text: the text mix is an
assumption, printed with the result.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        NAME,
        help="run policies on a recorded trace",
        description="Runs one or more policies on a recorded trace over the fleet of a fleet file, and compares them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_trace_arguments(parser)
    parser.add_argument("--fleet", required=True, type=Path, help="the TOML file that `serve --config` takes")
    parser.add_argument(
        "--policy",
        action="append",
        metavar="P",
        help="a shipped policy (min_energy, static:ARM …) or a path; repeat to compare; default: the fleet file's",
    )
    parser.add_argument("--tbt-target-ms", type=positive, metavar="X", help="one target for every request")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of text types and accept lengths")
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    loaded = load_fleet_with_profiles(args.fleet)
    traces = load_traces(args)
    requests = prepare(traces.trace, loaded, tbt_target_ms=args.tbt_target_ms, rate_scale=args.rate_scale)
    names: list[str] = args.policy or [loaded.fleet.policy.name]
    check_policies(loaded, names)
    notes = Console(stderr=True, quiet=args.json, markup=False, emoji=False, highlight=False, soft_wrap=True)
    for note in traces.notes():
        notes.print(note)
    results = []
    with Progress(console=notes, transient=True, disable=args.json or not sys.stderr.isatty()) as progress:
        task = progress.add_task("simulating", total=len(names))
        for name in names:
            results.append(simulate_policy(loaded, requests, name, seed=args.seed))
            progress.advance(task)
    if args.json:
        document = {
            "results": [result.model_dump() for result in results],
            "oracle_j_per_accepted_token": None,
            "trace": traces.document() | {"rate_scale": args.rate_scale},
            "seed": args.seed,
        }
        print(json.dumps(document))
    else:
        width = None if sys.stdout.isatty() else _PIPE_COLUMNS
        _print(results, traces, Console(markup=False, emoji=False, soft_wrap=True, width=width))
    return 0


def _print(results: Sequence[PolicyResult], traces: LoadedTraces, console: Console) -> None:
    for line in traces.summary():
        console.print(line)
    console.print(_table(results))
    for result in results:
        total = sum(result.decisions_by_arm.values()) or 1
        arms = ", ".join(f"{arm} {count / total:.0%}" for arm, count in result.decisions_by_arm.items() if count)
        console.print(f"{result.policy}: {result.requests} requests done; {arms or 'none sent anywhere'}")
        if result.requests_rejected or result.requests_dropped:
            lost = f"{result.requests_rejected} rejected, {result.requests_dropped} over every backend's context"
            console.print(f"{result.policy}: {lost}")
    worst = max(result.extrapolated_energy_frac for result in results)
    if worst > 0.05:
        console.print(f"note: up to {worst:.0%} of decode energy lies outside the profile's measured cells")


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
