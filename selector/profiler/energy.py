"""What a GPU's energy counter and power sensor said, and the energy of a window worked out from them.

Pure: readings in, an `EnergyWindow` or a `MeterError` out. `meter.py` takes the readings.

The counter (NVML's total energy, mJ since the driver was loaded) moves in steps about every 100 ms; each move is an
`edge`. Between two edges power is taken as constant, so the energy at any time is a linear interpolation between the
edges around it, and a window of n updates is uncertain by at most about 1/n of its energy at each end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from statistics import fmean, median
from typing import Protocol, TypeVar

import numpy as np

from selector.errors import MeterError

MIN_UPDATES = 50
"""Counter updates that a window must hold: 2 % at worst from not knowing when, within an update, it began or ended."""

OVER_LIMIT_FRAC = 0.02
"""How far above the enforced limit a mean power may read before it cannot be true."""

DISAGREEMENT_FRAC = 0.03
"""Difference of counter and integrated power above which a window is flagged."""

_STALL_INTERVALS = 10.0
"""A gap between two updates this many times the usual one means that the counter stood still."""

Item = TypeVar("Item")

Span = tuple[float, float]
"""Start and end of a stretch of time, seconds on the meter's clock."""


class ThrottleReason(StrEnum):
    """Why a GPU runs below the clock it was asked for."""

    POWER_CAP = "power_cap"
    SW_THERMAL = "sw_thermal_slowdown"
    HW_SLOWDOWN = "hw_slowdown"
    HW_THERMAL = "hw_thermal_slowdown"
    HW_POWER_BRAKE = "hw_power_brake"


REFUSED_REASONS = frozenset(ThrottleReason) - {ThrottleReason.POWER_CAP}
"""A board at its power limit is in normal use; one that is too hot or braked from outside measures something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardState:
    """Slowly changing facts of one GPU; what cannot be read is `None`."""

    sm_mhz: float | None
    temperature_c: float | None
    throttle: frozenset[ThrottleReason]
    processes: frozenset[int] | None
    """Ids of the processes that compute on the GPU."""


class EnergySource(Protocol):
    """One GPU's sensors. A reading that fails raises `MeterError`."""

    @property
    def gpu(self) -> str:
        """Id of the GPU, for messages and records."""

    @property
    def power_limit_w(self) -> float:
        """The limit the driver enforces."""

    def counter_mj(self) -> int:
        """Total energy since some past moment, millijoules."""

    def instant_power_w(self) -> float | None:
        """Power now (not NVML's average); `None` where the board does not tell."""

    def state(self) -> BoardState:
        """Clocks, temperature, throttle reasons and processes now."""


@dataclass(slots=True, kw_only=True)
class GpuTrace:
    """Readings of one GPU in order of time."""

    gpu: str
    power_limit_w: float
    edge_s: list[float] = field(default_factory=list)
    edge_j: list[float] = field(default_factory=list)
    """Counter after each edge, converted to joules here, at the edge of the program."""
    power_s: list[float] = field(default_factory=list)
    power_w: list[float] = field(default_factory=list)
    state_s: list[float] = field(default_factory=list)
    states: list[BoardState] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyWindow:
    """Energy of one or several stretches of time, all GPUs summed."""

    duration_s: float
    energy_j: float
    watts_mean: float
    counter_updates: int
    """Updates of the GPU that had fewest."""
    update_interval_s: float
    """Median time between updates, as measured, of the slowest GPU."""
    integrated_j: float | None
    """Instant power integrated over the same time; `None` where a board does not tell it."""
    disagreement_frac: float | None
    """(integrated − counter) / counter."""
    power_capped_frac: float | None
    """Share of the state readings at which a GPU was held at its power limit."""
    sm_mhz_mean: float | None
    temperature_c: float | None
    flags: tuple[str, ...]


def evaluate(
    traces: Sequence[GpuTrace],
    spans: Sequence[Span],
    *,
    min_updates: int = MIN_UPDATES,
    allowed: Callable[[int], bool] | None = None,
) -> EnergyWindow:
    """The energy of `spans`, taken together. Raises `MeterError` with the reason when it must not be used.

    `allowed` says of a process id whether it may use the GPU; `None` leaves that unchecked.
    """
    if not traces or not spans or any(end <= start for start, end in spans):
        raise MeterError("a window needs a GPU and an end after its start")
    duration_s = sum(end - start for start, end in spans)
    energies = [_counter_j(trace, spans) for trace in traces]
    updates = [sum(len(_within(trace.edge_s, trace.edge_j, span)) for span in spans) for trace in traces]
    for trace, energy_j, count in zip(traces, energies, updates, strict=True):
        if count < min_updates:
            raise MeterError(
                f"GPU {trace.gpu}: the window of {duration_s:.2f} s holds {count} counter updates; "
                f"it needs {min_updates}, measure longer"
            )
        if energy_j / duration_s > trace.power_limit_w * (1 + OVER_LIMIT_FRAC):
            raise MeterError(
                f"GPU {trace.gpu}: {energy_j / duration_s:.0f} W is above the enforced limit of "
                f"{trace.power_limit_w:.0f} W; the counter or the window is wrong"
            )
        _check_states(trace, spans, allowed)
    energy_j = sum(energies)
    integrated_j = _summed([_integrated_j(trace, spans) for trace in traces])
    disagreement = None if integrated_j is None or energy_j <= 0 else (integrated_j - energy_j) / energy_j
    flags = []
    if disagreement is None:
        flags.append("instant power unknown")
    elif abs(disagreement) > DISAGREEMENT_FRAC:
        flags.append(f"integrated power disagrees by {disagreement:+.1%}")
    states = [state for trace in traces for span in spans for state in _within(trace.state_s, trace.states, span)]
    if any(state.processes is None for state in states) or not states:
        flags.append("processes unknown")
    capped = [ThrottleReason.POWER_CAP in state.throttle for state in states]
    return EnergyWindow(
        duration_s=duration_s,
        energy_j=energy_j,
        watts_mean=energy_j / duration_s,
        counter_updates=min(updates),
        update_interval_s=max(_update_interval_s(trace, spans) for trace in traces),
        integrated_j=integrated_j,
        disagreement_frac=disagreement,
        power_capped_frac=fmean(capped) if capped else None,
        sm_mhz_mean=_mean_known([state.sm_mhz for state in states]),
        temperature_c=_mean_known([state.temperature_c for state in states]),
        flags=tuple(flags),
    )


def _within(times: Sequence[float], items: Sequence[Item], span: Span) -> Sequence[Item]:
    """The items whose time lies in a span, its end included."""
    return items[bisect_right(times, span[0]) : bisect_right(times, span[1])]


def _counter_j(trace: GpuTrace, spans: Sequence[Span]) -> float:
    total = 0.0
    for start, end in spans:
        first = bisect_right(trace.edge_s, start) - 1
        last = bisect_left(trace.edge_s, end)
        if first < 0:
            raise MeterError(f"GPU {trace.gpu}: the window begins before the first counter update")
        if last >= len(trace.edge_s):
            silent_s = end - trace.edge_s[-1]
            raise MeterError(f"GPU {trace.gpu}: the counter stands still, last update {silent_s:.2f} s before the end")
        times, joules = trace.edge_s[first : last + 1], trace.edge_j[first : last + 1]
        for (_, before), (at, after) in pairwise(zip(times, joules, strict=True)):
            if after < before:
                fall = f"by {before - after:.1f} J, {at - start:.1f} s into the window"
                raise MeterError(f"GPU {trace.gpu}: the counter went back {fall}")
        gaps = np.diff(times)
        if len(gaps) > 2 and gaps.max() > _STALL_INTERVALS * np.median(gaps):
            raise MeterError(f"GPU {trace.gpu}: the counter stood still for {gaps.max():.2f} s within the window")
        total += float(np.interp(end, times, joules) - np.interp(start, times, joules))
    return total


def _update_interval_s(trace: GpuTrace, spans: Sequence[Span]) -> float:
    first = max(bisect_right(trace.edge_s, min(start for start, _ in spans)) - 1, 0)
    last = bisect_left(trace.edge_s, max(end for _, end in spans))
    return median(b - a for a, b in pairwise(trace.edge_s[first : last + 1]))


def _integrated_j(trace: GpuTrace, spans: Sequence[Span]) -> float | None:
    total = 0.0
    for start, end in spans:
        inside = _within(trace.power_s, trace.power_w, (start, end))
        if not inside:
            return None
        times = np.array([start, *_within(trace.power_s, trace.power_s, (start, end)), end])
        # The power at a span's ends is that of the nearest reading inside it: outside, other work may have run.
        watts = np.array([inside[0], *inside, inside[-1]])
        total += float(np.sum(np.diff(times) * (watts[1:] + watts[:-1]) / 2))
    return total


def _check_states(trace: GpuTrace, spans: Sequence[Span], allowed: Callable[[int], bool] | None) -> None:
    for span in spans:
        for state in _within(trace.state_s, trace.states, span):
            harmful = state.throttle & REFUSED_REASONS
            if harmful:
                raise MeterError(f"GPU {trace.gpu}: slowed down by {', '.join(sorted(harmful))} during the window")
            foreign = [pid for pid in state.processes or () if allowed is not None and not allowed(pid)]
            if foreign:
                listed = ", ".join(map(str, sorted(foreign)))
                raise MeterError(f"GPU {trace.gpu}: another process used it during the window (pid {listed})")


def _summed(parts: Sequence[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _mean_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
