"""The router in front of running servers, measured against what the simulator says of the same requests.

    python bench/live/run.py --plan bench/live/one-server.toml --out runs/live --models models      # on a GPU host
    python bench/live/run.py --plan bench/live/one-server.toml --out runs/live --emulate            # anywhere
    python bench/live/run.py --plan bench/live/one-server.toml --out runs/live --report
    python bench/live/run.py --plan bench/live/two-gpus.toml --rows bench/results/h200_live.jsonl --report
    python bench/live/run.py --plan bench/live/one-server.toml --out runs/live --resimulate

Starts the servers of a fleet once, and then for every cell a router of its own; each finished cell is a line of
OUT/results.jsonl at once, and a later run goes on with what is missing. Cells of one `static` arm that differ by the
target alone are one run, since nobody looks at it. `--stop-after` ends before a cell that would
not fit. Servers that several plans use are started once with `--hold FLEET`, which runs until it is told to end, and
used with `--running`. See plan.py for the file, README.md for what came out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from board import Board, engine_totals, engines
from hostcpu import cpu_times, shares
from hostspeed import HostSpeed
from imposing import imposed_lengths, with_imposed
from plan import DIRECT, LiveCell, LivePlan, cells, load_plan
from report import print_report
from servers import emulated, energy_of, metered, real, started
from workload import Workload, simulated_result, trace_of, workload

from selector.errors import SelectorError, UpstreamError, UsageError
from selector.files.fleet import LoadedFleet
from selector.files.trace import Trace
from selector.loadgen.live import LiveResult, attainment, read_energy, run_policy, summarise
from selector.loadgen.replay import Answer, LagWatch, Replay

_OVERHEAD_S = 15.0
"""Of a cell beside its arrivals: the router's start, the last answers, the pause."""
_PAUSE_S = 2.0
_START_S = 100.0
"""A guess at how long a real server takes to be ready."""


def main() -> int:
    """0: every cell is there or time is up; 1: a cell failed; 2: an input that cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--plan", type=Path, action="append", required=True, help="what to run (TOML); with --report also several times"
    )
    parser.add_argument("--out", type=Path, help="folder of results.jsonl, logs and decision logs")
    parser.add_argument("--rows", type=Path, help="with --report: the results, where they are not in --out")
    parser.add_argument("--models", type=Path, help="folder of target and draft models, on a GPU host")
    parser.add_argument("--emulate", action="store_true", help="emulated servers instead of real ones")
    parser.add_argument("--hold", metavar="FLEET", help="only start the servers of this fleet, and hold them up")
    parser.add_argument(
        "--one-by-one", action="store_true", help="start servers one after another, whatever the plan says"
    )
    parser.add_argument("--fleet", metavar="NAME", help="only the cells of this fleet of the plan")
    parser.add_argument("--running", action="store_true", help="the fleets' servers are up already; leave them up")
    parser.add_argument(
        "--resimulate", action="store_true", help="only simulate anew what was measured, with the profile as it is now"
    )
    parser.add_argument("--time-scale", type=float, default=1.0, help="with --emulate: emulated seconds a second")
    parser.add_argument("--stop-after", type=float, help="seconds after which no cell is started that would not fit")
    parser.add_argument("--report", action="store_true", help="only show the results there are")
    parser.add_argument("--list", action="store_true", help="only show the cells, and how many requests each sends")
    args = parser.parse_args()
    began_s = time.monotonic()
    try:
        plans = {file: load_plan(file) for file in args.plan}
        if args.report:
            print_report(done(_rows_file(args)).values(), plans)
            return 0
        if len(plans) > 1 or args.rows is not None:
            raise UsageError(
                "--plan given several times, or --rows", "are for --report alone", "add it, or run one plan"
            )
        if args.out is None:
            raise UsageError("--out", "is missing", "give the folder for results")
        [(args.plan, plan)] = plans.items()
        if args.one_by_one:
            plan = plan.model_copy(update={"servers": plan.servers.model_copy(update={"at_once": False})})
        return asyncio.run(_run(args, plan, began_s))
    except SelectorError as failed:
        print(f"run.py: {failed}", file=sys.stderr)
        return 2


def _rows_file(args: argparse.Namespace) -> Path:
    """What there is to report. Raises `UsageError`."""
    if (args.rows is None) == (args.out is None):
        raise UsageError("--report", "shows the results of --out or of --rows", "give one of both")
    if args.rows is None:
        return results_of(args.out)
    if not args.rows.is_file():
        raise UsageError("--rows", f"{args.rows} is no file", "give the results.jsonl of a run")
    return Path(args.rows)


async def _run(args: argparse.Namespace, plan: LivePlan, began_s: float) -> int:
    args.out.mkdir(parents=True, exist_ok=True)
    if args.models is None and not (args.emulate or args.list or args.running or args.resimulate):
        print("run.py: --models is missing; give the folder of model folders, or --emulate", file=sys.stderr)
        return 2
    if args.hold is not None:
        return await _hold(args, plan)
    trace = trace_of(plan, args.plan.parent)
    finished = done(results_of(args.out))
    if args.resimulate:
        _resimulate(args, plan, trace, finished)
        return 0
    status = 0
    if args.fleet is not None and args.fleet not in map(_stem, plan.fleets):
        there = ", ".join(map(_stem, plan.fleets))
        raise UsageError("--fleet", f"is {args.fleet!r}, which the plan does not have", f"choose one of {there}")
    for fleet in plan.fleets:
        if args.fleet not in (None, _stem(fleet)):
            continue
        asked = [cell for cell in cells(plan) if cell.fleet == fleet]
        left = [cell for cell in asked if cell.key not in finished]
        fleet_file, loaded = with_imposed(args.plan.parent / fleet, plan, args.out / Path(fleet).stem, args.plan.parent)
        if args.list:
            for cell in asked:
                sent = len(workload(plan, cell, trace, loaded).timed)
                print(f"{'left' if cell in left else 'done'}  {sent:5} requests  {cell.key}")
        elif left:
            status = max(status, await _run_fleet(args, plan, trace, left, fleet_file, loaded, began_s))
    if not args.list:
        print_report(done(results_of(args.out)).values(), {args.plan: plan})
    return status


def _stem(fleet: str) -> str:
    return Path(fleet).stem


async def _hold(args: argparse.Namespace, plan: LivePlan) -> int:
    """The servers of one fleet until SIGTERM or Ctrl-C."""
    here = args.plan.parent
    fleet_file, loaded = with_imposed(here / args.hold, plan, args.out / Path(args.hold).stem, here)
    logs = fleet_file.parent / "logs"
    logs.mkdir(exist_ok=True)
    end = asyncio.Event()
    for wanted in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(wanted, end.set)
    servers: AbstractAsyncContextManager[object]
    if args.emulate:
        servers = emulated(fleet_file, plan, loaded, args.time_scale)
    else:
        servers = started(plan, loaded, args.models, logs, imposed_lengths(loaded))
    async with servers:
        print(f"ready {args.hold}", flush=True)
        await end.wait()
    return 0


def _resimulate(
    args: argparse.Namespace, plan: LivePlan, trace: Trace, finished: Mapping[str, Mapping[str, Any]]
) -> None:
    """Writes every finished cell of the plan again, with the simulation of the same requests by the present profile.

    The requests are those of the row: their rate is taken from it, not searched for again.
    """
    anew = dict(finished)
    for fleet in plan.fleets:
        _, loaded = with_imposed(args.plan.parent / fleet, plan, args.out / Path(fleet).stem, args.plan.parent)
        for cell in cells(plan):
            row = finished.get(cell.key)
            if cell.fleet == fleet and row is not None:
                load = workload(plan, cell, trace, loaded, rate=row["rate"])
                simulated = simulated_result(loaded, load, cell)
                anew[cell.key] = {**row, "seed": cell.seed, **compared(row["live"], simulated)}
    lines = "".join(json.dumps(row) + "\n" for row in anew.values())
    results_of(args.out).write_text(lines, encoding="utf-8")
    print_report(anew.values(), {args.plan: plan})


async def _run_fleet(
    args: argparse.Namespace,
    plan: LivePlan,
    trace: Trace,
    left: Sequence[LiveCell],
    fleet_file: Path,
    loaded: LoadedFleet,
    began_s: float,
) -> int:
    """The cells of one fleet, whose servers run for all of them."""
    scale = args.time_scale if args.emulate else 1.0
    cell_s = plan.seconds / scale + _OVERHEAD_S
    start_s = 0.0 if args.emulate or args.running else _START_S * len(loaded.fleet.backends)

    def fits(seconds: float) -> bool:
        return args.stop_after is None or time.monotonic() - began_s + seconds <= args.stop_after

    if not fits(start_s + cell_s):
        print(
            f"no time left to start {fleet_file.parent.name}: {len(left)} cells are left for the next run", flush=True
        )
        return 0
    logs = fleet_file.parent / "logs"
    logs.mkdir(exist_ok=True)
    servers: AbstractAsyncContextManager[list[str]]
    if args.emulate:
        servers = nullcontext(energy_of(loaded)) if args.running else emulated(fleet_file, plan, loaded, scale)
    elif args.running:
        servers = metered(loaded)
    else:
        servers = real(plan, loaded, args.models, logs, imposed_lengths(loaded))
    failed = 0
    async with servers as energy_urls:
        waiting = list(left)
        while waiting:
            if not fits(cell_s):
                print(f"stopping in time; {len(waiting)} cells are left for the next run", flush=True)
                break
            cell, *waiting = waiting
            load = workload(plan, cell, trace, loaded)
            print(f"{cell.key}: {len(load.timed)} requests", flush=True)
            try:
                row, answers = await measured(args, plan, cell, load, fleet_file, loaded, energy_urls, scale)
            except UpstreamError as broken:
                print(f"FAILED {cell.key}: {broken}", file=sys.stderr, flush=True)
                failed += 1
                continue
            same = [other for other in waiting if same_run(cell, other, loaded)]
            waiting = [other for other in waiting if other not in same]
            with results_of(args.out).open("a", encoding="utf-8") as file:
                for each in (row, *(at_another_target(row, answers, other, load, loaded) for other in same)):
                    file.write(json.dumps(each) + "\n")
            live, error = row["live"], row["error"]
            shown = {name: "-" if value is None else f"{value:+.1%}" for name, value in error.items()}
            energy = f"{live['j_per_accepted_token'] or 0:.4f} J/token ({shown['j_per_accepted_token']} of simulated)"
            tbt = f"TBT p50 {live['tbt_p50_ms'] or 0:.2f} ms ({shown['tbt_p50_ms']})"
            print(f"   {energy}, {tbt}, {live['failed']} failed", flush=True)
            await asyncio.sleep(_PAUSE_S)
    return 1 if failed else 0


async def measured(
    args: argparse.Namespace,
    plan: LivePlan,
    cell: LiveCell,
    load: Workload,
    fleet_file: Path,
    loaded: LoadedFleet,
    energy_urls: Sequence[str],
    scale: float,
) -> tuple[dict[str, Any], list[Answer]]:
    """One cell, live, then simulated: its row, and what the router answered. Raises `UpstreamError`."""
    answers: list[Answer] = []
    board, before, processors = Board(energy_urls, loaded), await engine_totals(loaded), cpu_times()
    sampling = asyncio.create_task(board.follow())
    try:
        async with HostSpeed() as speed:
            if cell.policy == DIRECT:
                live = await _direct(load, loaded, energy_urls, scale)
            else:
                name = "".join(letter if letter.isalnum() else "-" for letter in cell.key)
                live = await run_policy(
                    cell.policy,
                    fleet_file=fleet_file,
                    energy_urls=energy_urls,
                    requests=load.timed,
                    time_scale=scale,
                    seed=cell.seed,
                    decision_log=fleet_file.parent / f"decisions-{name}.jsonl",
                    on_answer=answers.append,
                    arrivals=load.arrivals(),
                )
    finally:
        sampling.cancel()
    host_cpu = shares(processors, cpu_times())
    simulated = simulated_result(loaded, load, cell)
    row = {
        "key": cell.key,
        "fleet": fleet_file.parent.name,
        "load": cell.load.name,
        "text": cell.text.name,
        "target_ms": cell.target_ms,
        "policy": cell.policy,
        "seed": cell.seed,
        "servers": "emulated" if args.emulate else "real",
        "requests_sent": live.requests + live.failed,
        "rate": load.rate,
        **compared(asdict(live), simulated),
        "engine": engines(before, await engine_totals(loaded)),
        "board": board.summary(),
        "host_cpu": host_cpu,
        "host_speed": speed.summary(),
        "timeline": board.timeline(),
        "host": platform.node(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
    }
    return row, answers


def same_run(cell: LiveCell, other: LiveCell, loaded: LoadedFleet) -> bool:
    """Whether the cells differ by a target that nobody looks at: neither their policy nor an engine."""
    arm = cell.policy.removeprefix("static:")
    looked_at = arm == cell.policy or any(
        profile.arms[arm].takes_tbt_target for profile in loaded.profiles.values() if arm in profile.arms
    )
    return not looked_at and replace(other, target_ms=cell.target_ms) == cell


def at_another_target(
    row: Mapping[str, Any], answers: Sequence[Answer], other: LiveCell, load: Workload, loaded: LoadedFleet
) -> dict[str, Any]:
    """The row of a cell that the same run is of (`same_run`): what differs is who is in time."""
    live = {**row["live"], "tbt_attainment": attainment(answers, other.target_ms)}
    own = [replace(request, tbt_target_ms=other.target_ms) for request in load.simulated]
    simulated = simulated_result(loaded, replace(load, simulated=own), other)
    return {**row, "key": other.key, "target_ms": other.target_ms, "run_of": row["key"], **compared(live, simulated)}


async def _direct(load: Workload, loaded: LoadedFleet, energy_urls: Sequence[str], scale: float) -> LiveResult:
    """The requests straight to the first backend."""
    async with aiohttp.ClientSession() as session:
        before = await read_energy(session, energy_urls)
        async with LagWatch() as lag:
            answers = await Replay(
                str(loaded.fleet.backends[0].url), load.timed, time_scale=scale, arrivals=load.arrivals()
            ).run()
        after = await read_energy(session, energy_urls)
    return summarise(DIRECT, answers, before, after, lag.lags_ms)


def compared(live: Mapping[str, Any], simulated: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a row that says what was measured, what was simulated and how far they are apart."""
    kept = {name: value for name, value in simulated.items() if name not in ("wall_s", "policy_sha256")}
    return {"live": live, "simulated": kept, "error": errors(live, simulated)}


def errors(live: Mapping[str, Any], simulated: Mapping[str, Any]) -> dict[str, float | None]:
    """Live over simulated less 1; `None` where either has no number."""
    names = (
        "j_per_accepted_token", "decode_j_per_accepted_token", "tbt_p50_ms", "tbt_p99_ms", "ttft_p50_ms", "ttft_p99_ms",
    )  # fmt: skip
    return {
        name: live[name] / simulated[name] - 1 if live[name] is not None and simulated[name] else None for name in names
    }


def results_of(out: Path) -> Path:
    """The file of results in a folder."""
    return out / "results.jsonl"


def done(file: Path) -> dict[str, dict[str, Any]]:
    """Results by key; none without the file."""
    if not file.exists():
        return {}
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return {row["key"]: row for row in rows}


if __name__ == "__main__":
    raise SystemExit(main())
