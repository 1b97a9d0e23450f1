"""`demo`: the whole thing on a laptop, real prompts on a recorded trace across an emulated fleet."""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import aiohttp
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from selector import data
from selector.cli.arguments import figure, positive
from selector.core.texttype import classify, extract
from selector.files.fleet import LoadedFleet, load_fleet_with_profiles
from selector.files.textmodel import shipped_text_model
from selector.files.trace import Trace, TraceRequest, load_trace
from selector.loadgen.live import LiveResult, free_ports, run_policy, running_process
from selector.loadgen.prompts import PromptSource
from selector.loadgen.replay import Answer, TimedRequest
from selector.simulator.engine import SimulatedRequest
from selector.simulator.report import PolicyResult
from selector.simulator.trial import check_policies, prepare, simulate_policy

NAME = "demo"

_ARMS = ("none", "eagle3-k3", "dspark-8", "dflash-16")
_POLICIES = (
    *(f"static:{arm}" for arm in _ARMS),
    "least_loaded",
    "batch_threshold",
    "goodput",
    "greedy_energy",
    "min_energy",
)
_TARGET_MS = 25.0
_REFRESH_PER_S = 0.5

_DESCRIPTION = """\
Starts four emulated H200s (none, eagle3-k3, dspark-8, dflash-16) and the router, replays a slice of the Azure 2023
conversation and code traces with real prompts under one policy after the other, and compares joules per accepted token,
TBT and TTFT. Then it runs the same slice in the simulator and shows both side by side. No GPU, no network; about five
minutes.
"""

_EXAMPLES = """\
examples:
  everything; and at half speed, for a small or busy machine:
    drafter-selector demo
    drafter-selector demo --time-scale 0.5

  two policies on a short slice, under twice the load:
    drafter-selector demo --seconds 5 --rate-scale 2 --policy static:none --policy min_energy

"""

_WITH_GPUS = """\
Costs come from the shipped profile, measured on one H200; what is emulated is the clock and the text of the answers.
With GPUs: write a fleet file, `drafter-selector check --config fleet.toml --launch-commands` prints the SGLang command
line of every backend, and `drafter-selector serve --config fleet.toml` routes to them.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        NAME,
        help="see it work on this machine: emulated fleet, router, recorded trace",
        description=_DESCRIPTION,
        epilog=_EXAMPLES + _WITH_GPUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--policy", action="append", metavar="P", help="only these policies; repeat for several")
    parser.add_argument("--seconds", type=positive, default=15.0, metavar="S", help="real seconds of arrivals a policy")
    parser.add_argument(
        "--time-scale", type=positive, default=0.5, metavar="X", help="emulated seconds per real second; default: 0.5"
    )
    parser.add_argument(
        "--rate-scale", type=positive, default=3.0, metavar="R", help="arrivals R times as fast; default: 3"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of prompts, text types and accept lengths")
    parser.add_argument("--profile", default="h200__qwen3-8b", metavar="P", help="the profile to emulate")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep fleet file and decision logs there")
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    console = Console(quiet=args.json)
    started = time.monotonic()
    if args.keep is not None:
        args.keep.mkdir(parents=True, exist_ok=True)
        return _demo(args, args.keep, console, started)
    with tempfile.TemporaryDirectory(prefix="drafter-selector-demo-") as folder:
        return _demo(args, Path(folder), console, started)


def _demo(args: argparse.Namespace, folder: Path, console: Console, started: float) -> int:
    fleet_file = folder / "fleet.toml"
    fleet_file.write_text(_fleet_toml(args.profile), encoding="utf-8")
    loaded = load_fleet_with_profiles(fleet_file)
    slice_ = trace_slice(seconds=args.seconds * args.time_scale, rate_scale=args.rate_scale)
    timed, simulated = bind(slice_, loaded, args.seed)
    policies: Sequence[str] = args.policy or _POLICIES
    check_policies(loaded, policies)
    console.print(_DESCRIPTION)
    console.print(
        f"slice: {len(timed)} requests ({sum(r.text_type == 'code' for r in timed)} code, the rest conversation) in "
        f"{timed[-1].due_s:.1f} s, target {_TARGET_MS:g} ms per token, time scale {args.time_scale:g}"
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        live, emulator_lag_ms = runner.run(_live(args, folder, fleet_file, loaded, timed, policies, console))
    results = [simulate_policy(loaded, simulated, policy, seed=args.seed) for policy in policies]
    if args.json:
        document = {
            "requests": len(timed),
            "live": [asdict(result) for result in live],
            "simulated": [result.model_dump() for result in results],
            "emulator_lag_p99_ms": emulator_lag_ms,
            "client_lag_p99_ms": max(result.client_lag_p99_ms for result in live),
            "wall_s": time.monotonic() - started,
        }
        print(json.dumps(document))
    else:
        console.print(_policies_table(live))
        console.print(_against_table(live, results))
        worst = max(result.client_lag_p99_ms for result in live)
        console.print(
            f"event-loop lag p99: emulator {emulator_lag_ms:.2f} ms, load generator {worst:.2f} ms; "
            f"{time.monotonic() - started:.0f} s in all"
        )
        if max(worst, emulator_lag_ms) > 1.0:
            console.print("this machine was busy: above 1 ms of lag, repeat with a smaller --time-scale, such as 0.5")
        console.print(_WITH_GPUS)
    failed = [result for result in live if result.failed]
    for result in failed:
        console.print(f"{result.policy}: {result.failed} requests failed, the first with: {result.first_error}")
    return 1 if failed else 0


def trace_slice(*, seconds: float, rate_scale: float) -> list[tuple[TraceRequest, str]]:
    """The first `seconds` (after scaling) of both shipped traces, merged by arrival, each with its text type."""
    merged: list[tuple[TraceRequest, str]] = []
    for name, text_type in ((data.CONVERSATION_TRACE, "conversation"), (data.CODE_TRACE, "code")):
        trace = load_trace(data.path(name))
        for request in trace.requests:
            arrival_s = request.arrival_s / rate_scale
            if arrival_s < seconds:
                merged.append((replace(request, arrival_s=arrival_s), text_type))
    return sorted(merged, key=lambda pair: pair[0].arrival_s)


def bind(
    merged: Sequence[tuple[TraceRequest, str]], loaded: LoadedFleet, seed: int
) -> tuple[list[TimedRequest], list[SimulatedRequest]]:
    """The same requests for the replay (real prompts) and for the simulator (their lengths and draw keys)."""
    prompts = PromptSource(seed)
    timed: list[TimedRequest] = []
    traced: list[TraceRequest] = []
    for number, (request, text_type) in enumerate(merged):
        body = prompts.body(text_type, request.prompt_tokens, number)
        timed.append(
            TimedRequest(
                number=number,
                due_s=request.arrival_s,
                body={
                    "model": loaded.fleet.target,
                    **body.fields,
                    "max_tokens": request.output_tokens,
                    "ignore_eos": True,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                },
                # The emulator's ground truth; the router does not read it.
                headers={"x-emulated-text-type": text_type, "x-emulated-draw-key": str(number)},
                text_type=text_type,
                tbt_target_ms=_TARGET_MS,
            )
        )
        traced.append(
            replace(
                request,
                request_id=f"r{number}",
                prompt_tokens=body.prompt_tokens,
                max_output_tokens=request.output_tokens,
                text_type=text_type,
            )
        )
    trace = Trace(name="azure_2023_slice", kind="azure", requests=tuple(traced))
    simulated = prepare(trace, loaded, tbt_target_ms=_TARGET_MS)
    # The router has to classify the prompts; the simulated policy is told the same.
    text_model = shipped_text_model()
    estimates = [classify(extract(request.body), text_model) for request in timed]
    return timed, [
        replace(request, seen_text_type=estimate.text_type, seen_text_probabilities=estimate.probabilities)
        for request, estimate in zip(simulated, estimates, strict=True)
    ]


async def _live(
    args: argparse.Namespace,
    folder: Path,
    fleet_file: Path,
    loaded: LoadedFleet,
    timed: Sequence[TimedRequest],
    policies: Sequence[str],
    console: Console,
) -> tuple[list[LiveResult], float]:
    emulate = ("emulate", "--fleet", str(fleet_file), "--time-scale", str(args.time_scale), "--seed", str(args.seed))
    results = []
    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[now]}"),
    )
    energy_urls = [f"{backend.url}/energy" for backend in loaded.fleet.backends]
    async with running_process(*emulate):
        # Drawing takes milliseconds of the load generator's loop: rarely enough to stay out of its lag.
        progress_bars = Progress(
            *columns, TimeElapsedColumn(), console=console, disable=args.json, refresh_per_second=_REFRESH_PER_S
        )
        with progress_bars as progress:
            for policy in policies:
                task = progress.add_task(policy, total=len(timed), now="")
                seen: list[Answer] = []

                def show(answer: Answer, task: object = task, seen: list[Answer] = seen) -> None:
                    seen.append(answer)
                    times = [each.tbt_ms for each in seen[-50:] if each.tbt_ms is not None]
                    now = f"TBT {sum(times) / len(times):5.2f} ms" if times else ""
                    progress.update(task, advance=1, now=now)  # type: ignore[arg-type]  # rich's TaskID is a NewType

                result = await run_policy(
                    policy,
                    fleet_file=fleet_file,
                    energy_urls=energy_urls,
                    requests=timed,
                    time_scale=args.time_scale,
                    seed=args.seed,
                    decision_log=folder / f"decisions-{policy.replace(':', '-')}.jsonl",
                    on_answer=show,
                )
                progress.update(task, now=f"{result.j_per_accepted_token or 0:.3f} J/token")
                results.append(result)
        lag_ms = await _emulator_lag_ms(loaded)
    return results, lag_ms


async def _emulator_lag_ms(loaded: LoadedFleet) -> float:
    """The largest p99 loop lag of the emulated servers, in real ms."""
    async with aiohttp.ClientSession() as session:
        lags = []
        for backend in loaded.fleet.backends:
            async with session.get(f"{backend.url}/emulator") as response:
                lags.append(float((await response.json())["lag_p99_ms"]))
    return max(lags)


def _fleet_toml(profile: str) -> str:
    lines = ['version = 1\ntarget = "Qwen3-8B"\n']
    for index, (arm, port) in enumerate(zip(_ARMS, free_ports(len(_ARMS)), strict=True)):
        lines.append(
            f'[[backends]]\nname = "{arm}-0"\nurl = "http://127.0.0.1:{port}"\narm = "{arm}"\n'
            f'gpus = ["emulated:{index}"]\nprofile = "{profile}"\n'
        )
    lines.append(f'[slo]\ndefault_class = "chat"\n[slo.classes.chat]\ntbt_target_ms = {_TARGET_MS}\n')
    return "\n".join(lines)


def _policies_table(live: Sequence[LiveResult]) -> Table:
    table = Table(title="live: emulated fleet behind the router; joules per accepted token, idle included")
    for column in ("policy", "J/token", "decode only", "attained", "TBT p50", "p99 ms", "TTFT p50", "p99 ms", "arms"):
        table.add_column(column, justify="left" if column in ("policy", "arms") else "right", no_wrap=column != "arms")
    best = min((result.j_per_accepted_token or float("inf") for result in live), default=0.0)
    for result in live:
        total = sum(result.decisions_by_arm.values()) or 1
        arms = " ".join(f"{arm} {count / total:.0%}" for arm, count in sorted(result.decisions_by_arm.items()))
        table.add_row(
            result.policy,
            figure(result.j_per_accepted_token, 3) + (" ◀" if result.j_per_accepted_token == best else ""),
            figure(result.decode_j_per_accepted_token, 3),
            "-" if result.tbt_attainment is None else f"{result.tbt_attainment:.1%}",
            figure(result.tbt_p50_ms, 2),
            figure(result.tbt_p99_ms, 2),
            figure(result.ttft_p50_ms, 0),
            figure(result.ttft_p99_ms, 0),
            arms,
        )
    return table


def _against_table(live: Sequence[LiveResult], simulated: Sequence[PolicyResult]) -> Table:
    table = Table(title="the same slice in the simulator")
    for column in ("policy", "J/token live", "simulated", "off by", "TBT p50 live", "simulated", "off by"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for one, other in zip(live, simulated, strict=True):
        table.add_row(
            one.policy,
            figure(one.j_per_accepted_token, 3),
            figure(other.j_per_accepted_token, 3),
            _off(one.j_per_accepted_token, other.j_per_accepted_token),
            figure(one.tbt_p50_ms, 2),
            figure(other.tbt_p50_ms, 2),
            _off(one.tbt_p50_ms, other.tbt_p50_ms),
        )
    return table


def _off(live: float | None, simulated: float | None) -> str:
    return "-" if not live or simulated is None else f"{simulated / live - 1:+.1%}"
