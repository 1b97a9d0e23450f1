"""`compare`: two policies on the same requests, seed by seed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from selector.cli.arguments import count, target_choice
from selector.cli.progress import progress
from selector.cli.tracearguments import add_trace_arguments, load_traces
from selector.errors import UsageError
from selector.files.fleet import LoadedFleet, load_fleet_with_profiles
from selector.files.policy import load_policy_file
from selector.simulator.compare import Comparison, Difference, SeedRun, compare
from selector.simulator.intervals import Interval
from selector.simulator.report import TargetChoice
from selector.simulator.saved import load_results, paired
from selector.simulator.trial import check_policies, prepare, run_trial

NAME = "compare"

_PIPE_COLUMNS = 160

_EPILOG = """\
examples:
  does min_energy use less than packing one arm, and is it no worse for anybody?
    drafter-selector compare --trace AzureLLMInferenceTrace_conv.csv --fleet fleet.toml \\
        --policy pack:dspark-8 --policy min_energy --tbt-target-ms 25 --seeds 10

  the same GPUs with other arms on them: give a fleet for each policy, in the same order:
    drafter-selector compare --trace day.csv --fleet eagle-everywhere.toml --policy least_loaded \\
        --fleet mixed.toml --policy min_energy

  two documents that `simulate --json` printed, before and after a change:
    drafter-selector compare --results before.json --results after.json

Differences are second minus first. "No worse": it completes every request that the first does, the attainment of every
text type and class is at most 1 point lower (a rejected or unfinished request is a miss), TTFT p99 at most 10 % above.
Seeds vary text types and accept lengths, not the arrivals.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        NAME,
        help="paired differences of two policies over seeds",
        description="Runs two policies on the same requests under several seeds and tells how they differ.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_trace_arguments(parser, required=False)
    parser.add_argument(
        "--fleet", type=Path, action="append", help="a fleet file for both; given twice, one for each policy"
    )
    parser.add_argument("--policy", action="append", metavar="P", help="give two; the first is compared with")
    parser.add_argument("--seeds", type=count, default=10, metavar="N", help="seeds 0 … N − 1; default: 10")
    parser.add_argument("--tbt-target-ms", type=target_choice, metavar="X", help="as `simulate --tbt-target-ms`")
    parser.add_argument(
        "--results", type=Path, action="append", metavar="FILE", help="compare two saved documents of `simulate --json`"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    comparisons, facts = _of_saved(args) if args.results else _of_runs(args)
    if args.json:
        print(json.dumps({"comparisons": [each.model_dump() for each in comparisons], **facts}))
        return 0
    width = None if sys.stdout.isatty() else _PIPE_COLUMNS
    console = Console(markup=False, emoji=False, soft_wrap=True, width=width)
    for each in comparisons:
        _print(each, console)
    return 0


def _of_saved(args: argparse.Namespace) -> tuple[list[Comparison], dict[str, object]]:
    if len(args.results) != 2 or args.trace or args.fleet or args.policy:
        raise UsageError("--results", "stands for two saved documents and nothing else", "give it twice, alone")
    first, second = (load_results(path) for path in args.results)
    names = [str(path) for path in args.results]
    return paired(first, second, names), {"results": names}


def _of_runs(args: argparse.Namespace) -> tuple[list[Comparison], dict[str, object]]:
    for option, given in (("--trace", args.trace), ("--fleet", args.fleet), ("--policy", args.policy)):
        if not given:
            raise UsageError(option, "is missing", "give it, or two --results")
    if len(args.policy) != 2:
        raise UsageError("--policy", f"is given {len(args.policy)} times", "give two policies to compare")
    if len(args.fleet) > 2:
        raise UsageError("--fleet", f"is given {len(args.fleet)} times", "give one fleet, or one for each policy")
    fleets = [load_fleet_with_profiles(path) for path in args.fleet]
    fleets = fleets * 2 if len(fleets) == 1 else fleets
    for fleet, policy in zip(fleets, args.policy, strict=True):
        check_policies(fleet, [policy])
    target: TargetChoice = args.tbt_target_ms
    sides: tuple[list[SeedRun], list[SeedRun]] = ([], [])
    with progress("comparing", 2 * args.seeds, quiet=args.json) as advance:
        for seed in range(args.seeds):
            args.seed = seed
            traces = load_traces(args)
            if seed == 0 and not args.json:
                for note in traces.notes():
                    print(note, file=sys.stderr)
            for fleet, policy, runs in zip(fleets, args.policy, sides, strict=True):
                requests = prepare(traces.trace, fleet, tbt_target_ms=target, rate_scale=args.rate_scale)
                trial = run_trial(fleet, requests, load_policy_file(policy), seed=seed, tbt_target_ms=target)
                done = (record.outcome for record in trial.run.records)
                completed = frozenset(outcome.request_id for outcome in done if outcome is not None)
                runs.append(SeedRun(result=trial.result, completed=completed))
                advance()
    names = _names(args.policy, fleets)
    facts: dict[str, object] = {
        "trace": traces.document() | {"rate_scale": args.rate_scale},
        "fleets": [fleet.where for fleet in fleets],
        "results": [[run.result.model_dump() for run in runs] for runs in sides],
    }
    return [compare(*sides, names=names)], facts


def _names(policies: Sequence[str], fleets: Sequence[LoadedFleet]) -> tuple[str, str]:
    """The policies, with their fleets where these differ."""
    if fleets[0] is fleets[1]:
        return policies[0], policies[1]
    first, second = (f"{policy} on {fleet.where}" for policy, fleet in zip(policies, fleets, strict=True))
    return first, second


def _print(comparison: Comparison, console: Console) -> None:
    table = Table(box=SIMPLE_HEAD, show_edge=False, collapse_padding=True)
    table.add_column("", overflow="fold")
    for column in ("A", "B", "B − A", "95% interval", "relative", "B better"):
        table.add_column(column, justify="right", no_wrap=True)
    for difference in comparison.differences:
        table.add_row(*_row(difference))
    console.print(f"A: {comparison.a}\nB: {comparison.b}")
    console.print(table)
    console.print(f"intervals: {comparison.interval_method}")
    console.print(comparison.verdict)
    console.print(f"seeds that are no worse on their own: {comparison.seeds_no_worse} of {comparison.seeds}")


def _row(difference: Difference) -> list[str]:
    metric = difference.metric
    if "attainment" in metric:
        return [
            metric.replace("attainment_by_text_type.", "  text type ").replace("attainment_by_class.", "  class "),
            f"{difference.a:.1%}",
            f"{difference.b:.1%}",
            f"{100 * difference.difference:+.2f} pt",
            _bounds(difference.interval, 100.0, 2),
            "",
            _wins(difference),
        ]
    digits = 4 if "per_accepted" in metric else 0 if metric in ("requests", "energy_j") else 2
    relative = "-" if difference.relative_difference is None else f"{difference.relative_difference:+.1%}"
    return [
        metric,
        f"{difference.a:.{digits}f}",
        f"{difference.b:.{digits}f}",
        f"{difference.difference:+.{digits}f}",
        _bounds(difference.interval, 1.0, digits),
        relative,
        _wins(difference),
    ]


def _wins(difference: Difference) -> str:
    equal = f", {difference.equal} equal" if difference.equal else ""
    return f"{difference.b_better} of {difference.seeds}{equal}"


def _bounds(interval: Interval | None, factor: float, digits: int) -> str:
    if interval is None:
        return "-"
    return f"{factor * interval.low:+.{digits}f} … {factor * interval.high:+.{digits}f}"
