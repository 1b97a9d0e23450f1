"""A load as a few levels that a planner can plan for: how much is asked for when it is quiet, and when it is busy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from selector.core.poolload import Demand, DemandKey
from selector.core.stalls import PrefillWork
from selector.files.profile import Profile
from selector.simulator.arrivals import ClosedLoop, Load
from selector.simulator.run import SimulatedRequest, Window

_LEVELS = 4
_BIN_S = 30.0
_SAMPLES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLevel:
    """What is asked for in a quarter of the time."""

    demands: tuple[Demand, ...]
    population: float | None
    """Clients that wait for answers; `None` under open arrivals."""


def load_levels(load: Load, profile: Profile, window: Window) -> tuple[LoadLevel, ...]:
    """The quarters of the measured time, from the quietest to the busiest; those without requests are left out."""
    if isinstance(load, ClosedLoop):
        return _of_clients(load, window)
    requests = [r for r in load.requests if window.from_s <= r.trace.arrival_s < window.to_s]
    if not requests:
        return ()
    work = _prefill_work(requests, profile)
    start_s, end_s = requests[0].trace.arrival_s, requests[-1].trace.arrival_s
    length_s = max(end_s - start_s, 1.0)
    bins = max(_LEVELS, round(length_s / _BIN_S))
    binned: list[list[SimulatedRequest]] = [[] for _ in range(bins)]
    for request in requests:
        binned[min(bins - 1, int((request.trace.arrival_s - start_s) / length_s * bins))].append(request)
    binned.sort(key=lambda part: sum(request.trace.output_tokens for request in part))
    levels = []
    for level in range(_LEVELS):
        parts = binned[level * bins // _LEVELS : (level + 1) * bins // _LEVELS]
        seconds = len(parts) * length_s / bins
        demands = _demands([request for part in parts for request in part], seconds, work)
        if demands:
            levels.append(LoadLevel(demands=demands, population=None))
    return tuple(levels)


def _of_clients(load: ClosedLoop, window: Window) -> tuple[LoadLevel, ...]:
    end_s = min(window.to_s, max(load.clients_at[-1][0], window.from_s + 1.0))
    step_s = (end_s - window.from_s) / _SAMPLES
    counts = sorted(_clients(load, window.from_s + (sample + 0.5) * step_s) for sample in range(_SAMPLES))
    demands = _demands(load.requests, 1.0, PrefillWork())
    quarter = _SAMPLES // _LEVELS
    means = [sum(counts[level * quarter : (level + 1) * quarter]) / quarter for level in range(_LEVELS)]
    return tuple(LoadLevel(demands=demands, population=clients) for clients in means if clients > 0.0)


def _clients(load: ClosedLoop, at_s: float) -> float:
    for (before_s, before), (after_s, after) in pairwise([*load.clients_at, (inf, load.clients_at[-1][1])]):
        if before_s <= at_s < after_s:
            return before if after_s == inf else before + (after - before) * (at_s - before_s) / (after_s - before_s)
    return 0.0


def _demands(requests: Sequence[SimulatedRequest], seconds: float, work: PrefillWork) -> tuple[Demand, ...]:
    grouped: dict[DemandKey, list[SimulatedRequest]] = {}
    for request in requests:
        grouped.setdefault((request.text_type, request.tbt_target_ms), []).append(request)
    return tuple(
        Demand(
            text_type=text_type,
            tbt_target_ms=target_ms,
            requests_per_s=len(group) / seconds,
            prompt_tokens=sum(request.trace.prompt_tokens for request in group) / len(group),
            output_tokens=sum(request.trace.output_tokens for request in group) / len(group),
            prefill_dispersion_s=work.bursts.dispersion_s,
            prefill_excess_s=work.bursts.excess_s,
        )
        for (text_type, target_ms), group in grouped.items()
    )


def _prefill_work(requests: Sequence[SimulatedRequest], profile: Profile) -> PrefillWork:
    """The prefill work of the whole load."""
    prefill = profile.cost(next(iter(profile.arms))).prefill
    work = PrefillWork(window_s=1e4)
    for request in requests:
        work.sent(prefill.stall_ms(request.trace.prompt_tokens), request.trace.arrival_s)
    return work
