"""The runs of one cell of `planner_table.py`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from _planner_bound import ramp_bound, steady_bound, trace_bound
from _planner_cells import (
    ARMS,
    FLEETS,
    MIXES,
    MOST_CONTEXT_TOKENS,
    OUTPUT_TOKENS,
    PROFILE,
    TRACES,
    fleet_of,
    profile,
    prompt_tokens,
)
from _planner_repeats import repeated

from selector.core.capacity import most_tokens_per_s
from selector.files.fleet import LoadedFleet
from selector.files.trace import TraceRequest, load_trace, scaled, with_text_types
from selector.simulator.arrivals import ClosedLoop, Load, OpenLoop
from selector.simulator.fleetplan import FleetLimits, FleetOption, plan_fleet
from selector.simulator.report import PolicyResult
from selector.simulator.run import SimulatedRequest, Window


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
    """Of the first run."""
    repeats: int = 1
    """Runs at one seed after the other, judged as one."""

    @property
    def key(self) -> str:
        """Names the row in the file."""
        return json.dumps(asdict(self), sort_keys=True)


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


def run_cell(cell: Cell, traces: Path, *, fixed: bool = True) -> dict[str, Any]:
    """All runs of a cell; without those of the fixed choices where `fixed` is not set."""
    results: dict[str, dict[str, object]] = {}
    bounds: dict[str, float | None] = {}

    def run(
        name: str, fleet: LoadedFleet, policy: str, loads: Sequence[Load], window: Window, until_s: float
    ) -> PolicyResult:
        result = repeated(fleet, loads, policy, first_seed=cell.seed, window=window, until_s=until_s)
        results[name] = short(result)
        return result

    def same_fleet(fleet: LoadedFleet, loads: Sequence[Load], window: Window, until_s: float) -> PolicyResult:
        choices = fixed_choices([backend.arm for backend in fleet.fleet.backends]) if fixed else []
        for policy in choices:
            run(policy, fleet, policy, loads, window, until_s)
        return run("min_energy", fleet, "min_energy", loads, window, until_s)

    def single_arms(gpus: int, load: Load, window: Window, until_s: float) -> None:
        for arm in ARMS if fixed else ():
            for policy in ("static", "pack"):
                run(f"all {policy}:{arm}", fleet_of([arm] * gpus), f"{policy}:{arm}", [load], window, until_s)

    def planned(load: Load, window: Window, until_s: float) -> FleetOption:
        limits = FleetLimits(max_context_tokens=MOST_CONTEXT_TOKENS)
        choice = plan_fleet(
            PROFILE,
            profile(),
            load,
            cell.gpus,
            limits=limits,
            window=window,
            until_s=until_s,
            seed=cell.seed,
            arms=ARMS,  # the bounds know no arms with live settings
        )
        assert choice.best.result is not None
        results["planned min_energy"] = short(choice.best.result)
        row["plan"] = {
            "fleet": choice.best.in_words,
            "runner_up": choice.runner_up.in_words if choice.runner_up else None,
        }
        return choice.best

    row: dict[str, Any] = {**asdict(cell), "results": results, "bounds": bounds}
    if cell.part == "steady":
        clients = int(cell.load)
        measured_s = {1: 200.0, 4: 200.0, 256: 120.0}.get(clients, 60.0)
        # Twice as many as the fastest fleet serves until the last of the window has ended.
        count = 20_000 if clients > 64 else 8_000
        loads = [
            ClosedLoop(
                made_up(MIXES[cell.mix], cell.target_ms, count, seed, clients=clients), [(0.0, 1), (10.0, clients)]
            )
            for seed in range(cell.seed, cell.seed + cell.repeats)
        ]
        warm_s = 120.0 if clients < 64 else 60.0
        window = Window(from_s=warm_s, to_s=warm_s + measured_s)
        fleet = fleet_of(FLEETS[cell.gpus])
        # Until the last request of the window has ended: an answer among 256 takes up to 40 s, and whose is not known.
        same_fleet(fleet, loads, window, float("inf"))
        bounds["min_energy"] = steady_bound(fleet, loads[0].requests, clients)
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
        ours = same_fleet(fleet, [open_load], window, float("inf"))
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
        same_fleet(fleet_of(arms, ["gpu0"] * 3), [load], Window(), float("inf"))
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
