"""`simulate`: run policies on a recorded trace over a fleet file."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console

from selector.cli.arguments import count, positive, target_choice
from selector.cli.outputs import new_file, write_output
from selector.cli.progress import progress
from selector.cli.simulationtable import print_results
from selector.errors import TraceError
from selector.files.digest import file_sha256
from selector.files.fleet import LoadedFleet, load_fleet_with_profiles
from selector.files.policy import load_policy_file
from selector.files.trace import Trace, default_text_mix, load_trace, parse_text_mix, with_text_types
from selector.simulator.page.document import Page
from selector.simulator.page.provenance import fleet_facts, policy_facts, program_facts
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
    parser.add_argument("--trace", required=True, type=Path, help="Azure LLM trace (CSV) or a decision log (JSONL)")
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
    parser.add_argument("--text-mix", metavar="MIX", help="code=0.5,romansh=0.5; default: the trace's own kind")
    parser.add_argument("--rate-scale", type=positive, default=1.0, metavar="R", help="arrivals R times as fast")
    parser.add_argument("--limit", type=count, metavar="N", help="only the first N requests")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of text types and accept lengths")
    parser.add_argument("--strict", action="store_true", help="refuse a trace with bad rows instead of skipping them")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a self-contained page with charts there")
    parser.add_argument(
        "--decisions", type=Path, metavar="FILE", help="write the decision log of every run there, as `serve` does"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    loaded = load_fleet_with_profiles(args.fleet)
    trace = load_trace(args.trace, strict=args.strict)
    mix = parse_text_mix(args.text_mix) if args.text_mix else default_text_mix(trace)
    typed = with_text_types(trace, mix, args.seed)
    names: list[str] = args.policy or [loaded.fleet.policy.name]
    targets = list(dict.fromkeys(args.tbt_target_ms or [None]))
    prepared = {
        target: prepare(typed, loaded, tbt_target_ms=target, rate_scale=args.rate_scale, limit=args.limit)
        for target in targets
    }
    check_policies(loaded, names)
    notes = Console(stderr=True, quiet=args.json, markup=False, emoji=False, highlight=False, soft_wrap=True)
    for row in trace.bad_rows[:5]:
        notes.print(f"skipped {args.trace}: line {row.line}: {row.problem}")
    if len(trace.bad_rows) > 5:
        notes.print(f"skipped {len(trace.bad_rows) - 5} more bad rows")
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
    if args.html is not None:
        write_output(args.html, _page(args, trace, mix, loaded, trials).html())
    if args.json:
        document = {
            "results": [result.model_dump() for result in results],
            "oracle_j_per_accepted_token": None,
            "trace": {
                "name": trace.name,
                "kind": trace.kind,
                "requests": len(prepared[targets[0]]),
                "bad_rows": len(trace.bad_rows),
                "rate_scale": args.rate_scale,
                "text_mix": mix if any(r.text_type is None for r in trace.requests) else None,
            },
            "seed": args.seed,
        }
        print(json.dumps(document))
    else:
        width = None if sys.stdout.isatty() else _PIPE_COLUMNS
        print_results(results, trace, mix, Console(markup=False, emoji=False, soft_wrap=True, width=width))
        for written in filter(None, (args.html, args.decisions)):
            notes.print(f"wrote {written}")
    return 0


def _page(
    args: argparse.Namespace, trace: Trace, mix: Mapping[str, float], loaded: LoadedFleet, trials: Sequence[Trial]
) -> Page:
    used = trace.requests[: args.limit]
    assumed = sum(request.text_type is None for request in used)
    shares = ", ".join(f"{name} {share:.0%}" for name, share in mix.items())
    results = [trial.result for trial in trials]
    facts = [
        *program_facts(f"drafter-selector {shlex.join(sys.argv[1:])}"),
        ("trace", f"{args.trace}: {trace.kind}, sha256 {file_sha256(args.trace, 'trace', TraceError)}"),
        ("requests", f"{len(used):,} of {len(trace.requests):,}, rate scale {args.rate_scale:g}"),
        ("text types", f"assumed: {shares}" if assumed else "the trace's own"),
        ("seed", str(args.seed)),
        *policy_facts(results),
        *fleet_facts(loaded),
    ]
    notes = ["Costs and accept lengths come from the profile; the simulated servers accept what it says."]
    if assumed:
        notes.append(
            f"The trace does not say the text type of {assumed:,} requests: each was drawn from the mix above."
        )
    if trace.bad_rows:
        notes.append(
            f"{len(trace.bad_rows):,} bad rows of the trace were skipped, the first in line {trace.bad_rows[0].line}."
        )
    worst = max(result.extrapolated_energy_frac for result in results)
    notes.append(f"At most {worst:.1%} of a run's decode energy lies outside the profile's measured cells.")
    return Page(
        title=f"{loaded.fleet.target} on {trace.name}", trials=trials, backends=loaded.specs, facts=facts, notes=notes
    )
