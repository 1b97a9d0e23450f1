"""`plan`: which fleet serves a load at the least energy."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from selector.cli.arguments import count, figure, positive
from selector.core.types import TEXT_TYPES
from selector.errors import UsageError
from selector.files.profile import Profile, load_profile
from selector.files.trace import TraceRequest, default_text_mix, load_trace, parse_text_mix, scaled, with_text_types
from selector.simulator.arrivals import OpenLoop
from selector.simulator.fleetplan import TTFT_P99_MS, FleetLimits, FleetOption, FleetPlan, plan_fleet, plan_fleet_size
from selector.simulator.run import SimulatedRequest

NAME = "plan"

_EPILOG = """\
how it decides:
  The trace is cut into four levels, from its quietest to its busiest quarter. Fleets of the profile's arms are ranked
  by what the planner of min_energy expects them to need at those levels; the best few are then simulated on the trace
  with min_energy, and the one that needs the fewest joules per accepted token among those that keep the targets is
  named, with the runner-up. A fleet of one arm alone is always among those simulated.

examples:
  four H200s for Azure's conversations, nine answers in ten within 25 ms a token:
    drafter-selector plan --profile h200__qwen3-8b --trace AzureLLMInferenceTrace_conv.csv --tbt-target-ms 25 --gpus 4

  as many GPUs as need least energy, for twice the traffic, and the fleet file to go on with:
    drafter-selector plan --profile h200__qwen3-8b --trace conv.csv --rate-scale 2 --tbt-target-ms 25 --write fleet.toml
    drafter-selector simulate --trace conv.csv --rate-scale 2 --fleet fleet.toml --tbt-target-ms 25

exit code 0 if the named fleet keeps the targets, 1 if none that was tried does (the best of them is still printed).
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        NAME,
        help="which fleet serves a trace at the least energy",
        description="Finds how many backends of which arm serve a trace at the fewest joules per accepted token within "
        "a target on the time between tokens, and checks the answer by simulation.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--profile", required=True, metavar="P", help="measured costs of the arms: a name or a path")
    parser.add_argument("--trace", required=True, type=Path, help="a recorded trace, as `simulate` reads them")
    parser.add_argument(
        "--tbt-target-ms", type=positive, metavar="X", help="the target of every request; default: none"
    )
    parser.add_argument("--gpus", type=count, metavar="N", help="so many GPUs; default: as many as need least energy")
    parser.add_argument("--most-gpus", type=count, default=16, metavar="N", help="bound without --gpus (16)")
    parser.add_argument(
        "--arms", metavar="A,B", help="only these arms; default: all of the profile but those with a live setting"
    )
    parser.add_argument("--text-mix", metavar="MIX", help="code=0.5,romansh=0.5; default: the trace's own kind")
    parser.add_argument("--rate-scale", type=positive, default=1.0, metavar="R", help="arrivals R times as fast")
    parser.add_argument("--limit", type=count, metavar="N", help="only the first N requests")
    parser.add_argument("--attainment", type=float, default=0.9, metavar="F", help="share that must meet it (0.9)")
    parser.add_argument(
        "--ttft-p99-ms",
        type=positive,
        default=TTFT_P99_MS,
        metavar="X",
        help="bound on the p99 time to the first token",
    )
    parser.add_argument("--tried", type=count, default=8, metavar="K", help="fleets to simulate per size (8)")
    parser.add_argument("--max-running-requests", type=count, default=64, metavar="N", help="of each backend (64)")
    parser.add_argument("--max-kv-tokens", type=count, default=400_000, metavar="N", help="of each backend (400000)")
    parser.add_argument("--max-context-tokens", type=count, default=8_192, metavar="N", help="of each backend (8192)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of text types and accept lengths")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the fleet as a fleet file; never overwrites")
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    if not 0.0 < args.attainment < 1.0:
        raise UsageError("--attainment", f"is {args.attainment}", "give a share such as 0.9")
    profile = load_profile(args.profile)
    arms = _arms(args.arms, profile)
    if args.write is not None and args.write.exists():
        raise UsageError(str(args.write), "exists already", "name a file that does not")
    trace = load_trace(args.trace)
    mix = parse_text_mix(args.text_mix) if args.text_mix else default_text_mix(trace)
    requests = scaled(with_text_types(trace, mix, args.seed).requests[: args.limit], args.rate_scale)
    fitting = [r for r in requests if r.prompt_tokens + r.output_tokens <= args.max_context_tokens]
    if not fitting:
        problem = f"has no request within {args.max_context_tokens} tokens of context"
        raise UsageError(str(args.trace), problem, "raise --max-context-tokens")
    load = OpenLoop([_request(request, args.tbt_target_ms) for request in fitting])
    limits = FleetLimits(
        max_running_requests=args.max_running_requests,
        max_kv_tokens=args.max_kv_tokens,
        max_context_tokens=args.max_context_tokens,
    )
    chosen = {"limits": limits, "arms": arms, "quantile": args.attainment, "tried": args.tried, "seed": args.seed}
    chosen["ttft_p99_ms"] = args.ttft_p99_ms
    if args.gpus is not None:
        plan = plan_fleet(args.profile, profile, load, args.gpus, **chosen)
    else:
        plan = plan_fleet_size(args.profile, profile, load, args.most_gpus, **chosen)
    if args.write is not None:
        args.write.write_text(
            fleet_toml(plan.best, profile, args.profile, limits, args.tbt_target_ms), encoding="utf-8"
        )
    why = in_words(plan, args.tbt_target_ms, args.attainment, args.ttft_p99_ms)
    if args.json:
        print(json.dumps(_document(plan, why, len(fitting), len(requests) - len(fitting))))
    else:
        console = Console(markup=False, emoji=False, highlight=False, soft_wrap=True)
        console.print(_table(plan))
        for line in why:
            console.print(line)
        if len(requests) > len(fitting):
            console.print(
                f"{len(requests) - len(fitting)} requests over {args.max_context_tokens} tokens were left out"
            )
        if args.write is not None:
            console.print(f"fleet file: {args.write}")
    return 0 if plan.feasible else 1


def _arms(named: str | None, profile: Profile) -> list[str]:
    """Arms named, or those that need nothing but their launch line.

    One with a live setting is a mode of another arm, in a server that has to be prepared for it, and may come from a
    sweep on another board: to be asked for.
    """
    plain = [name for name, arm in profile.arms.items() if arm.live_setting is None]
    arms = [arm.strip() for arm in named.split(",")] if named else plain
    for arm in arms:
        if arm not in profile.arms:
            raise UsageError("--arms", f"{arm!r} is not in the profile", f"choose from {', '.join(profile.arms)}")
    return arms


def _request(request: TraceRequest, target_ms: float | None) -> SimulatedRequest:
    text_type = request.text_type or TEXT_TYPES[0]
    return SimulatedRequest(trace=request, text_type=text_type, slo_class="default", tbt_target_ms=target_ms)


def in_words(plan: FleetPlan, target_ms: float | None, attainment: float, ttft_p99_ms: float) -> list[str]:
    """Why this fleet: what it saves against the runner-up and the best single arm, or what it cannot do."""
    best, result = plan.best, plan.best.result
    assert result is not None
    lines = [f"best: {best.in_words}, {figure(result.j_per_accepted_token, 4)} J per accepted token"]
    for option in plan.options[1:]:
        if option is plan.runner_up or len(set(option.arms)) == 1:
            kind = "runner-up" if option is plan.runner_up else "single arm"
            lines.append(f"{kind}: {option.in_words}, {_against(option, best)}")
    if not plan.feasible:
        lost = result.requests_rejected + result.requests_unfinished
        missed = [f"{name} {share:.0%}" for name, share in result.attainment_by_text_type.items() if share < attainment]
        reasons = [f"{lost} requests are lost"] if lost else []
        if missed:
            reasons.append(f"{', '.join(missed)} within {target_ms:g} ms, and {attainment:.0%} was asked for")
        if best.ttft_p99_ms > ttft_p99_ms:
            reasons.append(f"requests queue: TTFT p99 is {best.ttft_p99_ms:.0f} ms, not {ttft_p99_ms:g} ms")
        if not best.expected_within_targets:
            reasons.append("no arm is within the target even at batch 1, or the busiest quarter needs more GPUs")
        lines.append(f"infeasible: {'; '.join(reasons)}")
    return lines


def _against(option: FleetOption, best: FleetOption) -> str:
    one, other = option.result, best.result
    if one is None or other is None or not one.j_per_accepted_token or not other.j_per_accepted_token:
        return "did not serve a token"
    words = f"{one.j_per_accepted_token / other.j_per_accepted_token - 1.0:+.1%} J per accepted token"
    if option.worst_attainment < best.worst_attainment - 0.01:
        words += f", attains {option.worst_attainment:.0%} instead of {best.worst_attainment:.0%}"
    return words


def _document(plan: FleetPlan, why: list[str], requests: int, left_out: int) -> dict[str, object]:
    return {
        "feasible": plan.feasible,
        "best": _option(plan.best),
        "runner_up": _option(plan.runner_up) if plan.runner_up else None,
        "options": [_option(option) for option in plan.options],
        "why": why,
        "requests": requests,
        "requests_left_out": left_out,
    }


def _option(option: FleetOption) -> dict[str, object]:
    return {
        "fleet": {arm: option.arms.count(arm) for arm in dict.fromkeys(option.arms)},
        "gpus": len(option.arms),
        "expected_decode_j_per_accepted_token": option.expected_j_per_accepted_token,
        "expected_within_targets": option.expected_within_targets,
        "simulated": option.result.model_dump() if option.result else None,
    }


def _table(plan: FleetPlan) -> Table:
    table = Table(title="fleets simulated with min_energy, idle and prefill included", box=SIMPLE_HEAD, show_edge=False)
    table.add_column("fleet", overflow="fold")
    for column in ("J/token", "decode", "attained", "TBT p99", "TTFT p99", "W"):
        table.add_column(column, justify="right", no_wrap=True)
    for option in plan.options:
        result = option.result
        assert result is not None
        table.add_row(
            option.in_words,
            figure(result.j_per_accepted_token, 4) + (" ◀" if option is plan.best else ""),
            figure(result.decode_j_per_accepted_token, 4),
            f"{option.worst_attainment:.1%}" if result.attainment_by_text_type else "-",
            figure(result.tbt_p99_ms, 2),
            figure(result.ttft_p99_ms, 0),
            figure(result.mean_power_w, 0),
        )
    return table


def fleet_toml(
    option: FleetOption, profile: Profile, profile_name: str, limits: FleetLimits, target_ms: float | None
) -> str:
    """A fleet file for the fleet; the URLs of its servers are to be filled in."""
    lines = ["version = 1", f"target = {json.dumps(profile.target.name)}", ""]
    for index, arm in enumerate(option.arms):
        gpus = ", ".join(json.dumps(f"host0:{index * profile.gpu.count + gpu}") for gpu in range(profile.gpu.count))
        lines += [
            "[[backends]]",
            f'name = "b{index}-{arm}"',
            '# url = "http://127.0.0.1:30000"    # needed by serve',
            f"arm = {json.dumps(arm)}",
            f"gpus = [{gpus}]",
            f"profile = {json.dumps(profile_name)}",
            f"max_running_requests = {limits.max_running_requests}",
            f"max_kv_tokens = {limits.max_kv_tokens}",
            f"max_context_tokens = {limits.max_context_tokens}",
            "",
        ]
    lines += ["[slo]", 'default_class = "default"', "[slo.classes.default]"]
    if target_ms is not None:
        lines.append(f"tbt_target_ms = {target_ms:g}")
    lines += ["", "[policy]", 'name = "min_energy"', ""]
    return "\n".join(lines)
