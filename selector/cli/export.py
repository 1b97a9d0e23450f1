"""`export`: what an engine needs to choose its own draft depth, computed from a profile's measured costs."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from random import Random

from rich.console import Console

from selector.cli.arguments import count, positive
from selector.cli.outputs import write_output
from selector.cli.scheduletable import default_notes, print_report
from selector.core.adaptiveschedule import planned_schedule
from selector.core.depthchoice import ChoiceOptions
from selector.core.depthsurvival import DEFAULT_OUTPUT_TOKENS, DEFAULT_QUANTILE, SlowRequests, accept_lengths
from selector.core.depthtable import Chain, Line
from selector.core.scheduleaim import Aim
from selector.core.sglangadaptive import DEFAULT_SCHEDULES
from selector.errors import UsageError
from selector.files.adaptiveconfig import adaptive_config_text
from selector.files.depthcosts import (
    REST_VARIABLE,
    DepthCosts,
    depth_costs,
    survivals_of_length,
    survivals_of_text,
)
from selector.files.depthfile import FORMAT, Depth, DepthFile, Prefill, options_of
from selector.files.launchflags import graph_batches, prefill_graphs
from selector.files.profile import Profile, load_profile
from selector.files.schedulereport import (
    SEED,
    compared_at,
    explanation,
    schedule_of,
    schedule_report,
)

NAME = "export"

_EPILOG = """\
examples:
  drafter-selector export sglang-adaptive --profile h200__qwen3-8b --tbt-target-ms 10 --text-type code \\
      --out adaptive.json          # for sglang's --speculative-adaptive-config
  drafter-selector export depths --profile h200__qwen3-8b --text-type conversation --out depths.json
      # for the plugin: DRAFTER_SELECTOR_DEPTHS=depths.json python3 -m sglang.launch_server --speculative-adaptive …

Costs are the profile's arms by draft depth (eagle3-k1, eagle3-k3 …) and none; depths without an arm are left out, or
with --interpolate taken between the measured ones. At depth 0 the draft reads along: a pass of it is added to none,
unless --draft-rests. docs/in-engine.md says when to use which.
"""

DEFAULT_BAND_FRAC = 0.15
DEFAULT_CONTEXT_TOKENS = 1_024.0
_BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Where a schedule is worked out when the profile does not say which batches have CUDA graphs."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its two kinds of file."""
    parser = subparsers.add_parser(
        NAME,
        help="write what an engine needs to choose its own draft depth",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    adaptive = kinds.add_parser(
        "sglang-adaptive",
        help="the file for SGLang's --speculative-adaptive-config",
        description="Candidate depths per batch tier: the cheapest in J per accepted token within the TBT target.",
    )
    _add_common(adaptive, target_required=True)
    adaptive.add_argument(
        "--context-tokens",
        type=float,
        default=DEFAULT_CONTEXT_TOKENS,
        metavar="C",
        help=f"context per request that costs are compared at (default {DEFAULT_CONTEXT_TOKENS:g})",
    )
    adaptive.add_argument(
        "--accept-band", type=float, metavar="FRAC", help="how far accept lengths may be off (default: the spread)"
    )
    adaptive.add_argument("--batches", metavar="B,B…", help="batches with a CUDA graph (default: the profile's)")
    adaptive.add_argument(
        "--compare-with",
        choices=sorted(DEFAULT_SCHEDULES),
        default=max(DEFAULT_SCHEDULES),
        help="SGLang release whose default schedule is compared with",
    )
    adaptive.set_defaults(run=run_adaptive)
    depths = kinds.add_parser(
        "depths",
        help="the file that the engine plugin chooses depths by",
        description="Step costs by depth and what is known of acceptance, for the plugin (selector.engine).",
    )
    _add_common(depths, target_required=False)
    depths.add_argument(
        "--headroom",
        type=float,
        default=ChoiceOptions().headroom_frac,
        metavar="FRAC",
        help="share of a target kept free, beside that of the time which prompts take",
    )
    depths.set_defaults(run=run_depths)


def _add_common(parser: argparse.ArgumentParser, *, target_required: bool) -> None:
    parser.add_argument("--profile", required=True, metavar="P", help="name of a shipped profile, or path")
    target_help = "time between tokens that is to be met"
    if not target_required:
        target_help += " by requests that bring no target of their own (default: none)"
    parser.add_argument("--tbt-target-ms", type=positive, required=target_required, metavar="X", help=target_help)
    accept = parser.add_mutually_exclusive_group(required=True)
    accept.add_argument("--text-type", metavar="T", help="take the accept length from the profile")
    accept.add_argument("--accept-length", type=float, metavar="L", help="tokens per request and step")
    parser.add_argument(
        "--accept-depth", type=count, metavar="K", help="depth at which --accept-length holds (default: the deepest)"
    )
    parser.add_argument("--algorithm", help="which of the profile's algorithms, if it has several with depths")
    parser.add_argument(
        "--launch-flags",
        type=shlex.split,
        default=(),
        metavar="FLAGS",
        help="flags of the server beyond the profile's, in quotes; lists of CUDA graphs among them pad what is priced",
    )
    parser.add_argument(
        "--load",
        choices=("open", "closed"),
        default="open",
        help="requests come by themselves (open), or clients wait for their answers before they send more (closed)",
    )
    parser.add_argument("--interpolate", action="store_true", help="add depths between the measured ones")
    parser.add_argument(
        "--draft-rests",
        action="store_true",
        help=f"for servers with {REST_VARIABLE}=1, whose draft does not read along at depth 0",
    )
    parser.add_argument("--quantile", type=float, default=DEFAULT_QUANTILE, metavar="Q", help="of a request's TBT")
    parser.add_argument(
        "--output-tokens", type=positive, default=DEFAULT_OUTPUT_TOKENS, metavar="N", help="tokens of an answer"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="file to write (default: standard output)")


def run_adaptive(args: argparse.Namespace) -> int:
    """Writes the schedule, and on standard error what it is expected to give. Raises `InputError`."""
    profile, costs = _profile_and_costs(args)
    survivals, spread_frac, origin = _survivals(args, profile, costs)
    band_frac = args.accept_band if args.accept_band is not None else spread_frac or DEFAULT_BAND_FRAC
    if not 0.0 <= band_frac < 1.0:
        raise UsageError("--accept-band", f"is {band_frac:g}", "give a share below 1, such as 0.15")
    aim = Aim(
        table=costs.table,
        survivals=survivals,
        slow=_slow(args, spread_frac),
        context_tokens=_context(args),
        target_ms=args.tbt_target_ms,
        band_frac=band_frac,
        open_load=args.load == "open",
        idle_w=profile.served_idle_w,
    )
    graphs = _batches(args, profile)
    batches = graphs or tuple(batch for batch in _BATCHES if batch <= costs.table.max_batch)
    planned = planned_schedule(aim, batches, Random(SEED))
    schedule = schedule_of(planned)
    report = schedule_report(aim, schedule, batches, args.compare_with, graphs)
    notes = [*costs.notes, *default_notes(report, args.compare_with)]
    about = {
        "profile": args.profile,
        "load": compared_at(aim),
        "depths_from": {str(depth): arm for depth, arm in costs.arms.items()},
        "tbt_target_ms": args.tbt_target_ms,
        "tbt_quantile": args.quantile,
        "context_tokens": aim.context_tokens,
        "accept_length": f"{accept_lengths(survivals)[-1]:.3f} at depth {len(survivals)}, {origin}; ±{band_frac:.0%}",
        "compared_with": f"the default schedule of SGLang {args.compare_with}, and the best fixed depth",
    }
    start_depth = max(depth for tier in schedule.values() for depth in tier.candidate_steps)
    text = adaptive_config_text(schedule, explanation(about=about, report=report, start_depth=start_depth, notes=notes))
    print_report(
        Console(stderr=True, markup=False, soft_wrap=True),
        report,
        notes,
        open_load=aim.open_load,
        quantile=args.quantile,
        release=args.compare_with,
    )
    _write(args.out, text)
    return 0


def run_depths(args: argparse.Namespace) -> int:
    """Writes the plugin's file. Raises `InputError`."""
    profile, costs = _profile_and_costs(args)
    survivals, spread_frac, origin = _survivals(args, profile, costs)
    _slow(args, spread_frac)
    if not 0.0 <= args.headroom < 1.0:
        raise UsageError("--headroom", f"is {args.headroom:g}", "give a share below 1, such as 0.1")
    file = DepthFile(
        format=FORMAT,
        version=1,
        profile=args.profile,
        target=profile.target.name,
        algorithm=costs.algorithm,
        notes=costs.notes,
        depths=tuple(
            Depth(depth=depth, arm=arm, rows=_rounded(costs.table.chains(depth))) for depth, arm in costs.arms.items()
        ),
        survivals=_rounded_curve(survivals),
        survivals_from=origin,
        survivals_of={} if args.text_type is None else _survivals_of_texts(profile, costs),
        prefill=_prefill(profile, costs.deepest_arm),
        quantile=args.quantile,
        spread_frac=spread_frac,
        output_tokens=args.output_tokens,
        tbt_target_ms=args.tbt_target_ms,
        options=options_of(
            ChoiceOptions(
                headroom_frac=args.headroom,
                open_load=args.load == "open",
                idle_w=profile.served_idle_w,
            )
        ),
    )
    console = Console(stderr=True, markup=False)
    for note in costs.notes:
        console.print(f"note: {note}")
    _write(args.out, file.model_dump_json() + "\n")
    return 0


def _profile_and_costs(args: argparse.Namespace) -> tuple[Profile, DepthCosts]:
    profile = load_profile(args.profile).with_flags(args.launch_flags)
    costs = depth_costs(
        profile,
        args.profile,
        algorithm=args.algorithm,
        interpolate=args.interpolate,
        draft_rests=args.draft_rests,
    )
    return profile, costs


def _survivals(args: argparse.Namespace, profile: Profile, costs: DepthCosts) -> tuple[tuple[float, ...], float, str]:
    """Survivals up to the deepest depth, the relative spread between requests, and where both are from."""
    deepest = costs.table.depths[-1]
    if args.text_type is not None:
        if args.accept_depth is not None:
            raise UsageError("--accept-depth", "goes with --accept-length", "leave it out")
        curve, spread_frac = survivals_of_text(profile, costs, args.text_type)
        kind = profile.provenance[profile.arms[costs.deepest_arm].acceptance[args.text_type].provenance].kind
        return curve, spread_frac, f"{args.text_type}, {kind}"
    at_depth = deepest if args.accept_depth is None else args.accept_depth
    return survivals_of_length(args.accept_length, at_depth, deepest), 0.0, "as given"


def _survivals_of_texts(profile: Profile, costs: DepthCosts) -> dict[str, tuple[float, ...]]:
    texts = sorted(profile.arms[costs.deepest_arm].acceptance)
    return {text: _rounded_curve(survivals_of_text(profile, costs, text)[0]) for text in texts}


def _prefill(profile: Profile, name: str) -> Prefill:
    """Of the arm that drafts most: its drafter goes over prompts too."""
    arm = profile.arms[name]
    floor = arm.prefill_pass
    return Prefill(
        arm=name,
        points=tuple((point.prompt_tokens, point.ms) for point in arm.prefill or profile.prefill),
        floor_ms=floor.ms if floor else 0.0,
        beside_ms=round(profile.prefill_cost(name).beside_ms, 4),
        resume_ms=floor.resume_ms if floor else 0.0,
        graphs=prefill_graphs(profile.launched_with(name)),
    )


def _rounded_curve(survivals: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(survival, 6) for survival in survivals)


def _slow(args: argparse.Namespace, spread_frac: float) -> SlowRequests:
    if not 0.0 < args.quantile < 1.0:
        raise UsageError("--quantile", f"is {args.quantile:g}", "give a number between 0 and 1, such as 0.9")
    return SlowRequests.at(args.quantile, spread_frac=spread_frac, output_tokens=args.output_tokens)


def _context(args: argparse.Namespace) -> float:
    if not 0.0 <= args.context_tokens < float("inf"):
        raise UsageError("--context-tokens", f"is {args.context_tokens:g}", "give 0 or more")
    return float(args.context_tokens)


def _batches(args: argparse.Namespace, profile: Profile) -> tuple[int, ...]:
    if args.batches is None:
        return graph_batches(profile.common_flags)
    try:
        found = tuple(sorted({int(word) for word in args.batches.split(",")}))
    except ValueError:
        found = ()
    if not found or found[0] < 1:
        raise UsageError("--batches", f"is {args.batches!r}", "give whole numbers, such as 1,8,32,64")
    return found


def _rounded(chains: Sequence[Chain]) -> tuple[Chain, ...]:
    """To what measurements can tell; a table at full precision is three times as long."""

    def short(line: Line) -> Line:
        context, ms, ms_rise, j, j_rise = (float(f"{value:.6g}") for value in line)
        return context, ms, ms_rise, j, j_rise

    return tuple(tuple(map(short, chain)) for chain in chains)


def _write(path: Path | None, text: str) -> None:
    if path is None:
        print(text, end="")
    else:
        write_output(path, text)
