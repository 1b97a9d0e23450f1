"""`simulate`: run policies on a recorded trace over a fleet file."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from selector.cli.arguments import target_choice
from selector.cli.oraclelines import least_bound, print_bounds
from selector.cli.outputs import new_file, write_output
from selector.cli.progress import progress
from selector.cli.simulationtable import print_results
from selector.cli.tracearguments import LoadedTraces, add_trace_arguments, load_traces
from selector.errors import TraceError
from selector.files.digest import sha256_of
from selector.files.fleet import LoadedFleet, load_fleet_with_profiles
from selector.files.policy import load_policy_file
from selector.page.facts import program_facts
from selector.simulator.oracle.compared import Compared, compare_with_oracle
from selector.simulator.page.document import Page
from selector.simulator.page.provenance import fleet_facts, policy_facts
from selector.simulator.report import PolicyResult, TargetChoice
from selector.simulator.run import SimulatedRequest
from selector.simulator.trial import Trial, check_policies, prepare, run_trial

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

  what a tighter target costs, as a page to look at:
    drafter-selector simulate --trace AzureLLMInferenceTrace_conv.csv --fleet fleet.toml --policy pack \\
        --policy min_energy --tbt-target-ms 25 --tbt-target-ms 10 --tbt-target-ms 5 --html report.html

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
    parser.add_argument(
        "--tbt-target-ms",
        type=target_choice,
        action="append",
        metavar="X",
        help="one target for every request, `none` for no target; repeat to compare; default: the fleet file's classes",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of text types and accept lengths")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a self-contained page with charts there")
    parser.add_argument(
        "--decisions", type=Path, metavar="FILE", help="write the decision log of every run there, as `serve` does"
    )
    parser.add_argument(
        "--oracle", action="store_true", help="also bound what any policy could reach, knowing the future (slower)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    loaded = load_fleet_with_profiles(args.fleet)
    traces = load_traces(args)
    names: list[str] = args.policy or [loaded.fleet.policy.name]
    targets = list(dict.fromkeys(args.tbt_target_ms or [None]))
    prepared = {
        target: prepare(traces.trace, loaded, tbt_target_ms=target, rate_scale=args.rate_scale) for target in targets
    }
    check_policies(loaded, names)
    notes = Console(stderr=True, quiet=args.json, markup=False, emoji=False, highlight=False, soft_wrap=True)
    for note in traces.notes():
        notes.print(note)
    trials = []
    with (
        progress("simulating", len(targets) * len(names), quiet=args.json) as advance,
        new_file(args.decisions) if args.decisions else nullcontext() as decisions,
    ):
        for target, requests in prepared.items():
            for name in names:
                trials.append(
                    run_trial(
                        loaded,
                        requests,
                        load_policy_file(name),
                        seed=args.seed,
                        tbt_target_ms=target,
                        watched=args.html is not None,
                        log=decisions.write if decisions is not None else None,
                    )
                )
                advance()
    results = [trial.result for trial in trials]
    compared = _compare_with_oracle(args, loaded, prepared, results) if args.oracle else []
    if args.html is not None:
        write_output(args.html, _page(args, traces, loaded, trials).html())
    if args.json:
        document = {
            "results": [result.model_dump() for result in results],
            "oracle_j_per_accepted_token": least_bound(compared),
            "trace": traces.document() | {"rate_scale": args.rate_scale},
            "seed": args.seed,
        }
        if args.oracle:
            document["oracle"] = [asdict(each) for each in compared]
        print(json.dumps(document))
    else:
        width = None if sys.stdout.isatty() else _PIPE_COLUMNS
        console = Console(markup=False, emoji=False, soft_wrap=True, width=width)
        print_results(results, traces, console)
        print_bounds(compared, console)
        for written in filter(None, (args.html, args.decisions)):
            notes.print(f"wrote {written}")
    return 0


def _compare_with_oracle(
    args: argparse.Namespace,
    loaded: LoadedFleet,
    prepared: Mapping[TargetChoice, Sequence[SimulatedRequest]],
    results: Sequence[PolicyResult],
) -> list[Compared]:
    compared = []
    with progress("bounding", len(results), quiet=args.json) as advance:
        for target, requests in prepared.items():
            own = [result for result in results if result.tbt_target_ms == target]
            compared.extend(compare_with_oracle(loaded, requests, own, seed=args.seed, done=advance))
    return compared


def _page(args: argparse.Namespace, traces: LoadedTraces, loaded: LoadedFleet, trials: Sequence[Trial]) -> Page:
    results = [trial.result for trial in trials]
    files = [
        (
            f"trace {source.trace.name}",
            f"{source.path}: {source.trace.kind}, sha256 {sha256_of(source.path, 'trace', TraceError)}",
        )
        for source in traces.sources
    ]
    facts = [
        *program_facts(f"drafter-selector {shlex.join(sys.argv[1:])}"),
        *files,
        ("requests", f"{len(traces.trace.requests):,}, rate scale {args.rate_scale:g}"),
        ("text types", "; ".join(traces.summary())),
        ("seed", str(args.seed)),
        *policy_facts(results),
        *fleet_facts(loaded),
    ]
    notes = [
        "Costs and accept lengths come from the profile; the simulated servers accept what it says.",
        *traces.notes(),
    ]
    worst = max(result.extrapolated_energy_frac for result in results)
    notes.append(f"At most {worst:.1%} of a run's decode energy lies outside the profile's measured cells.")
    return Page(
        title=f"{loaded.fleet.target} on {traces.trace.name}",
        trials=trials,
        backends=loaded.specs,
        facts=facts,
        notes=notes,
    )
