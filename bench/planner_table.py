"""`min_energy` against fixed choices: one JSON row per cell, resumable, and a summary.

    python bench/planner_table.py --rows bench/results/planner_table.jsonl --traces DIR          runs what is missing
    python bench/planner_table.py --rows bench/results/planner_table.jsonl --summary             judges what is there

Parts
    steady   closed loop of 1 … 256 clients × five text mixes × TBT targets × 4 and 8 GPUs, on a given mixed fleet:
             `min_energy` against every fixed choice on that fleet
    ramp     closed loop of 1 → 256 → 1 clients, target 10 ms; `min_energy` on the fleet that `plan` picks against as
             many GPUs that all run one arm (least loaded, and packed)
    trace    recorded arrivals scaled to fill the given fleet to 30 % and 80 %; against both
    shared   one GPU with three co-located arms whose text changes from code to Romansh to conversation

A cell's requests are the same for every policy (the same seeds), and so is what each of them would be accepted on an
arm. The profile's costs and accept lengths are taken as the truth. Beside the runs a row has what no policy can beat
(_planner_bound.py). An arm with one backend is run with `static` alone: `pack` does the same there.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random

from _cell_table import made_by
from _planner_bound import ramp_bound, steady_bound, trace_bound
from _planner_cells import (
    ARMS,
    CLIENTS,
    FLEETS,
    MIXES,
    MOST_CONTEXT_TOKENS,
    OUTPUT_TOKENS,
    PROFILE,
    TARGETS_MS,
    TRACES,
    fleet_of,
    profile,
    prompt_tokens,
)
from _planner_verdict import print_summary, read_rows

from selector.core.capacity import most_tokens_per_s
from selector.errors import TraceError
from selector.files.fleet import LoadedFleet
from selector.files.trace import TraceRequest, load_trace, scaled, with_text_types
from selector.simulator.arrivals import ClosedLoop, Load, OpenLoop
from selector.simulator.fleetplan import FleetLimits, FleetOption, plan_fleet
from selector.simulator.report import PolicyResult
from selector.simulator.run import SimulatedRequest, Window
from selector.simulator.trial import simulate_policy


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the table."""

    part: str
    gpus: int
    mix: str
    target_ms: float | None
    load: str
    """Clients of a steady cell, the trace and its fill of the fleet for a trace cell."""
    seed: int = 0

    @property
    def key(self) -> str:
        """Names the row in the file."""
        return json.dumps(asdict(self), sort_keys=True)


def all_cells(quick: bool) -> Iterator[Cell]:
    """Every cell; with `quick` a tenth of them."""
    for gpus in FLEETS:
        for load in (16, 64) if quick else CLIENTS:
            for mix in ("code", "code+romansh") if quick else MIXES:
                for target_ms in (None, 10.0) if quick else TARGETS_MS:
                    yield Cell("steady", gpus, mix, target_ms, str(load))
    for gpus in FLEETS:
        for mix in ("code", "ten types") if quick else MIXES:
            yield Cell("ramp", gpus, mix, 10.0, "1-256-1")
    for gpus in (4,) if quick else FLEETS:
        for trace, (_, mix) in TRACES.items():
            for fill in ("0.3", "0.8"):
                yield Cell("trace", gpus, mix, 25.0, f"{trace} {fill}")
    yield Cell("shared", 1, "code, romansh, conversation", None, "16")


def made_up(
    mix: Mapping[str, float], target_ms: float | None, count: int, seed: int, *, clients: int
) -> list[SimulatedRequest]:
    """Requests of a mix for so many clients, with lengths drawn from the ranges of `_planner_cells`."""
    draw = Random(f"planner_table:{seed}")
    names, weights = list(mix), list(mix.values())
    requests = []
    for number in range(count):
        text_type = draw.choices(names, weights)[0]
        trace = TraceRequest(
            request_id=f"r{number}",
            arrival_s=0.0,
            prompt_tokens=draw.randint(*prompt_tokens(clients)),
            output_tokens=draw.randint(*OUTPUT_TOKENS),
            text_type=text_type,
        )
        requests.append(
            SimulatedRequest(trace=trace, text_type=text_type, slo_class="default", tbt_target_ms=target_ms)
        )
    return requests


def fixed_choices(arms: Sequence[str]) -> list[str]:
    """What a fleet of several arms can be run with besides `min_energy`."""
    counts = Counter(arms)
    packed = [f"pack:{arm}" for arm, count in counts.items() if count > 1]
    return [*(f"static:{arm}" for arm in counts), *packed, "affinity", "batch_threshold", "goodput", "greedy_energy"]


def run_cell(cell: Cell, traces: Path) -> dict[str, object]:
    """All runs of a cell."""
    results: dict[str, dict[str, object]] = {}
    bounds: dict[str, float | None] = {}

    def run(name: str, fleet: LoadedFleet, policy: str, load: Load, window: Window, until_s: float) -> PolicyResult:
        result = simulate_policy(fleet, load, policy, seed=cell.seed, window=window, until_s=until_s)
        results[name] = short(result)
        return result

    def same_fleet(fleet: LoadedFleet, load: Load, window: Window, until_s: float) -> PolicyResult:
        for policy in fixed_choices([backend.arm for backend in fleet.fleet.backends]):
            run(policy, fleet, policy, load, window, until_s)
        return run("min_energy", fleet, "min_energy", load, window, until_s)

    def single_arms(gpus: int, load: Load, window: Window, until_s: float) -> None:
        for arm in ARMS:
            for policy in ("static", "pack"):
                run(f"all {policy}:{arm}", fleet_of([arm] * gpus), f"{policy}:{arm}", load, window, until_s)

    def planned(load: Load, window: Window, until_s: float) -> FleetOption:
        limits = FleetLimits(max_context_tokens=MOST_CONTEXT_TOKENS)
        choice = plan_fleet(
            PROFILE, profile(), load, cell.gpus, limits=limits, window=window, until_s=until_s, seed=cell.seed
        )
        assert choice.best.result is not None
        results["planned min_energy"] = short(choice.best.result)
        row["plan"] = {
            "fleet": choice.best.in_words,
            "runner_up": choice.runner_up.in_words if choice.runner_up else None,
        }
        return choice.best

    row: dict[str, object] = {**asdict(cell), "results": results, "bounds": bounds}
    if cell.part == "steady":
        clients = int(cell.load)
        measured_s = {1: 200.0, 4: 200.0, 256: 120.0}.get(clients, 60.0)
        requests = made_up(MIXES[cell.mix], cell.target_ms, 40_000, cell.seed, clients=clients)
        load = ClosedLoop(requests, [(0.0, 1), (10.0, clients)])
        warm_s = 120.0 if clients < 64 else 60.0
        window = Window(from_s=warm_s, to_s=warm_s + measured_s)
        fleet = fleet_of(FLEETS[cell.gpus])
        same_fleet(fleet, load, window, window.to_s + 30.0)
        bounds["min_energy"] = steady_bound(fleet, load.requests, clients)
    elif cell.part == "ramp":
        requests = made_up(MIXES[cell.mix], cell.target_ms, 40_000, cell.seed, clients=256)
        load = ClosedLoop(requests, [(0.0, 1), (150.0, 256), (300.0, 1)])
        window = Window(from_s=0.0, to_s=300.0)
        single_arms(cell.gpus, load, window, 400.0)
        planned(load, window, 400.0)
        bounds["planned min_energy"] = ramp_bound(cell.gpus, load.requests, dict.fromkeys(range(1, 257), 1.0))
    elif cell.part == "trace":
        name, _, fill = cell.load.rpartition(" ")
        fleet = fleet_of(FLEETS[cell.gpus])
        open_load, row["requests_per_s"] = recorded(fleet, traces, name, float(fill), cell)
        window = Window()
        ours = same_fleet(fleet, open_load, window, float("inf"))
        bounds["min_energy"] = trace_bound(fleet, open_load.requests, ours, cell.seed)
        single_arms(cell.gpus, open_load, window, float("inf"))
        best = planned(open_load, window, float("inf"))
        assert best.result is not None
        bounds["planned min_energy"] = trace_bound(fleet_of(best.arms), open_load.requests, best.result, cell.seed)
    else:
        third = [
            made_up({text: 1.0}, None, 1_500, cell.seed, clients=int(cell.load))
            for text in ("code", "romansh", "conversation")
        ]
        changing = [request for part in third for request in part]
        load = ClosedLoop(
            [
                replace(request, trace=replace(request.trace, request_id=f"r{number}"))
                for number, request in enumerate(changing)
            ],
            [(0.0, int(cell.load))],
        )
        arms = ("none", "eagle3-k1", "dspark-8")
        same_fleet(fleet_of(arms, ["gpu0"] * 3), load, Window(), float("inf"))
    return row


def recorded(fleet: LoadedFleet, traces: Path, name: str, fill: float, cell: Cell) -> tuple[OpenLoop, float]:
    """The trace at the rate that fills the fleet to `fill` of what it can do within the target, and that rate."""
    file, mix = TRACES[name]
    trace = with_text_types(load_trace(traces / file), {mix: 1.0}, cell.seed)
    requests = [r for r in trace.requests if r.prompt_tokens + r.output_tokens <= MOST_CONTEXT_TOKENS][:6_000]
    prompt = sum(r.prompt_tokens for r in requests) / len(requests)
    output = sum(r.output_tokens for r in requests) / len(requests)
    context = fleet.policy_context()
    most = sum(
        most_tokens_per_s(spec, mix, prompt, output, context.acceptance, tbt_target_ms=cell.target_ms)
        for spec in context.backends
    )
    rate = len(requests) / (requests[-1].arrival_s - requests[0].arrival_s)
    wanted = fill * most / output
    return OpenLoop(
        [
            SimulatedRequest(
                trace=request, text_type=str(request.text_type), slo_class="default", tbt_target_ms=cell.target_ms
            )
            for request in scaled(requests, wanted / rate)
        ]
    ), wanted


def short(result: PolicyResult) -> dict[str, object]:
    """What the verdict needs of a run."""
    return {
        "requests": result.requests,
        "lost": result.requests_rejected + result.requests_unfinished,
        "j": result.j_per_accepted_token,
        "decode_j": result.decode_j_per_accepted_token,
        "attainment": result.attainment_by_text_type,
        "ttft_p99_ms": result.ttft_p99_ms,
        "tbt_p99_ms": result.tbt_p99_ms,
        "tokens": result.accepted_tokens,
        "extrapolated": result.extrapolated_energy_frac,
        "arms": {arm: count for arm, count in result.decisions_by_arm.items() if count},
    }


def main() -> None:
    """Runs the missing cells, or judges."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=Path, required=True, help="JSON lines; cells that are there are not run again")
    parser.add_argument("--traces", type=Path, default=Path("data/traces"), help="folder of the recorded traces")
    parser.add_argument("--quick", action="store_true", help="a tenth of the cells")
    parser.add_argument("--part", action="append", choices=("steady", "ramp", "trace", "shared"))
    parser.add_argument("--gpus", action="append", type=int, choices=tuple(FLEETS), help="fleets of so many alone")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--summary", action="store_true", help="only judge the rows that are there")
    parser.add_argument("--plot", type=Path, help="write a figure (needs matplotlib)")
    options = parser.parse_args()
    if not options.summary:
        done = cells_in(options.rows) if options.rows.exists() else set()
        cells = [
            cell
            for cell in all_cells(options.quick)
            if cell.key not in done
            and cell.part in (options.part or [cell.part])
            and cell.gpus in (options.gpus or [cell.gpus])
        ]
        with options.rows.open("a", encoding="utf-8") as out, ProcessPoolExecutor(options.processes) as pool:
            if not done:
                print(json.dumps(provenance()), file=out, flush=True)
            running = {pool.submit(run_cell, cell, options.traces): cell for cell in cells}
            for number, future in enumerate(as_completed(running), start=1):
                cell = running[future]
                words = f"{number}/{len(cells)} {cell.part} {cell.gpus} GPUs {cell.mix} {cell.load} {cell.target_ms}"
                try:
                    print(json.dumps(future.result()), file=out, flush=True)
                except TraceError as unread:
                    words += f": left out, {unread}"
                print(words, flush=True)
    print_summary(options.rows, options.plot)
    there = cells_in(options.rows)
    left = Counter(f"{cell.part} {cell.gpus} GPUs" for cell in all_cells(quick=False) if cell.key not in there)
    if left:
        print("cells of the whole table not run:", ", ".join(f"{count} of {words}" for words, count in left.items()))


def cells_in(rows: Path) -> set[str]:
    """Keys of the cells that a file has."""
    return {Cell(**{name: row[name] for name in Cell.__slots__}).key for row in read_rows(rows)}


def provenance() -> dict[str, object]:
    """What made the rows."""
    return {
        "benchmark": "planner_table",
        "profile": PROFILE,
        **made_by(),
    }


if __name__ == "__main__":
    main()
