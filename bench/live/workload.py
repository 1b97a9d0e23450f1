"""The requests of a cell, as they are sent and as they are simulated: the same arrivals, lengths and types."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from plan import DIRECT, LiveCell, LivePlan, Load

from selector import data
from selector.files.fleet import LoadedFleet
from selector.files.policy import load_policy_file
from selector.files.trace import Trace, TraceRequest, load_trace, with_text_types
from selector.loadgen.replay import TimedRequest
from selector.simulator.arrivals import Arrivals, ClosedLoop, OpenLoop
from selector.simulator.engine import SimulatedRequest, Simulation
from selector.simulator.trial import simulate_policy, true_acceptance

_TOKEN_IDS = range(1_000, 30_000)
"""Of random prompts: ordinary tokens in every vocabulary of the profiled targets."""
_SEARCH_STEPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one cell sends."""

    timed: list[TimedRequest]
    simulated: list[SimulatedRequest]
    rate: float | None
    """Times the trace's own rate, where it is one number."""
    clients_at: Sequence[tuple[float, int]] | None = None
    """Of a closed loop, which sends some of them."""

    def load(self) -> ClosedLoop | OpenLoop:
        """When they come."""
        return OpenLoop(self.simulated) if self.clients_at is None else ClosedLoop(self.simulated, self.clients_at)

    def arrivals(self) -> Arrivals | None:
        """The clients of one run; `None` where requests come when they are due."""
        return None if self.clients_at is None else self.load().start()


def trace_of(plan: LivePlan, folder: Path) -> Trace:
    """The plan's trace from `from_s` on, lengths cut. Raises `TraceError`."""
    shipped = {"azure_2023_conv": data.CONVERSATION_TRACE, "azure_2023_code": data.CODE_TRACE}
    trace = load_trace(data.path(shipped[plan.trace]) if plan.trace in shipped else folder / plan.trace)
    requests = tuple(
        replace(
            request,
            arrival_s=request.arrival_s - plan.from_s,
            prompt_tokens=min(request.prompt_tokens, plan.max_prompt_tokens),
            output_tokens=min(max(request.output_tokens, plan.min_output_tokens), plan.max_output_tokens),
        )
        for request in trace.requests
        if request.arrival_s >= plan.from_s
    )
    return replace(trace, requests=requests)


def warped(requests: Sequence[TraceRequest], rate: Sequence[tuple[float, float]], seconds: float) -> list[TraceRequest]:
    """The requests that come within `seconds` when the trace's clock runs `rate(t)` times as fast.

    `rate` are points (t, times) joined by straight lines, constant before the first and after the last. A request at
    trace time u comes at the t at which the integral of the rate up to t is u.
    """
    steps = 1_000
    at = [seconds * step / steps for step in range(steps + 1)]
    pace = [_between(rate, t) for t in at]
    reached = [0.0]
    for step in range(steps):
        reached.append(reached[-1] + (pace[step] + pace[step + 1]) / 2 * seconds / steps)
    coming = []
    for request in requests:
        if request.arrival_s >= reached[-1]:
            break
        step = bisect_right(reached, request.arrival_s) - 1
        share = (request.arrival_s - reached[step]) / (reached[step + 1] - reached[step])
        coming.append(replace(request, arrival_s=at[step] + share * seconds / steps))
    return coming


def _between(points: Sequence[tuple[float, float]], t: float) -> float:
    if t <= points[0][0]:
        return points[0][1]
    for (t0, y0), (t1, y1) in pairwise(points):
        if t <= t1:
            return y0 + (y1 - y0) * (t - t0) / (t1 - t0)
    return points[-1][1]


def rate_for(running: float, trace: Trace, plan: LivePlan, cell: LiveCell, loaded: LoadedFleet) -> float:
    """The constant rate at which a simulation has that many requests in the system in the mean."""
    low, high = 0.01, 1_000.0
    for _ in range(_SEARCH_STEPS):
        middle = (low * high) ** 0.5
        requests = _simulated(warped(trace.requests, [(0.0, middle)], plan.seconds), plan, cell)
        if requests and _mean_running(requests, loaded, plan, cell) < running:
            low = middle
        else:
            high = middle if requests else high
            low = low if requests else middle
    return (low * high) ** 0.5


def _mean_running(requests: Sequence[SimulatedRequest], loaded: LoadedFleet, plan: LivePlan, cell: LiveCell) -> float:
    """Requests in the system over the time of arrivals, by simulation: of the cell's arm, where its policy is one."""
    context = loaded.policy_context(cell.seed)
    name = policy_of(cell, loaded)
    policy = load_policy_file(name if name.startswith("static:") else "least_loaded").make({}, context)
    run = Simulation(context, policy, true_acceptance(loaded), seed=cell.seed).run(requests)
    inside = sum(
        min(record.outcome.finished_s, plan.seconds) - record.outcome.dispatched_s
        for record in run.records
        if record.outcome is not None and record.outcome.dispatched_s < plan.seconds
    )
    return inside / plan.seconds


def workload(
    plan: LivePlan, cell: LiveCell, trace: Trace, loaded: LoadedFleet, *, rate: float | None = None
) -> Workload:
    """The requests of a cell; equal for every policy of it where the load names a rate. `rate` replaces a search."""
    rates: Sequence[tuple[float, float]] = ()
    if cell.load.clients is None:
        rates = _rate(cell.load, trace, plan, cell, loaded) if rate is None else [(0.0, rate)]
        coming = warped(trace.requests, rates, plan.seconds)
    else:
        coming = [replace(request, arrival_s=0.0) for request in trace.requests[: cell.load.requests]]
    simulated = _simulated(coming, plan, cell)
    return Workload(
        timed=[_timed(number, request, cell.seed) for number, request in enumerate(simulated)],
        simulated=simulated,
        rate=rates[0][1] if len(rates) == 1 else None,
        clients_at=cell.load.clients,
    )


def _rate(
    load: Load, trace: Trace, plan: LivePlan, cell: LiveCell, loaded: LoadedFleet
) -> Sequence[tuple[float, float]]:
    if load.rate is not None:
        return load.rate
    assert load.running is not None
    return [(0.0, rate_for(load.running, trace, plan, cell, loaded))]


def _simulated(coming: Sequence[TraceRequest], plan: LivePlan, cell: LiveCell) -> list[SimulatedRequest]:
    early = sum(each.arrival_s < plan.seconds / 2 for each in coming) if cell.text.then else len(coming)
    typed = [*_typed(coming[:early], cell.text.mix, cell), *_typed(coming[early:], cell.text.then, cell)]
    return [
        SimulatedRequest(
            # With dummy weights an answer ends where its request says, so servers and router know its length.
            trace=replace(each, request_id=f"r{number}", max_output_tokens=each.output_tokens),
            text_type=each.text_type or "",
            slo_class="live",
            tbt_target_ms=cell.target_ms,
        )
        for number, each in enumerate(typed)
    ]


def _typed(coming: Sequence[TraceRequest], mix: Mapping[str, float], cell: LiveCell) -> Sequence[TraceRequest]:
    if not coming:
        return ()
    total = sum(mix.values())
    bare = Trace(name="live", kind="live", requests=tuple(replace(each, text_type=None) for each in coming))
    return with_text_types(bare, {name: share / total for name, share in mix.items()}, cell.seed).requests


def _timed(number: int, request: SimulatedRequest, seed: int) -> TimedRequest:
    draw = random.Random(f"live:{seed}:{number}")
    headers = {
        "x-text-type": request.text_type,
        # Emulated servers are told what the plugin reads from the rid.
        "x-emulated-text-type": request.text_type,
        "x-emulated-draw-key": str(number),
    }
    if request.tbt_target_ms is not None:
        headers["x-tbt-target-ms"] = f"{request.tbt_target_ms:g}"
    return TimedRequest(
        number=number,
        due_s=request.trace.arrival_s,
        path="/generate",
        body={
            "input_ids": draw.choices(_TOKEN_IDS, k=request.trace.prompt_tokens),
            "sampling_params": {
                "max_new_tokens": request.trace.output_tokens, "ignore_eos": True, "temperature": 0,
            },
            "stream": True,
            "rid": f"{seed % 1000:03d}{number:06d}-{request.text_type}",
        },
        headers=headers,
        text_type=request.text_type,
        tbt_target_ms=request.tbt_target_ms,
    )  # fmt: skip


def policy_of(cell: LiveCell, loaded: LoadedFleet) -> str:
    """The policy that stands for the cell's in a simulation."""
    return f"static:{loaded.fleet.backends[0].arm}" if cell.policy == DIRECT else cell.policy


def simulated_result(loaded: LoadedFleet, load: Workload, cell: LiveCell) -> dict[str, object]:
    """The same requests in the simulator, as the numbers that a live result has too."""
    return simulate_policy(loaded, load.load(), policy_of(cell, loaded), seed=cell.seed).model_dump()
