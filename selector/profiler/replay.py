"""A recorded energy counter, played again: for tests and for trying a window rule on what a device once said."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from selector.errors import MeterError
from selector.profiler.energy import BoardState, ThrottleReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one GPU's sensors said from `t_s` on."""

    t_s: float
    counter_mj: int
    power_w: float | None
    state: BoardState


class ReplaySource:
    """An `EnergySource` over readings in order of time; `clock` says which one is now."""

    def __init__(
        self, readings: list[Reading], *, clock: Callable[[], float], gpu: str = "0", power_limit_w: float = 700.0
    ) -> None:
        if not readings:
            raise MeterError(f"GPU {gpu}: nothing was recorded")
        self.gpu = gpu
        self.power_limit_w = power_limit_w
        self._readings = readings
        self._times = [reading.t_s for reading in readings]
        self._clock = clock

    def counter_mj(self) -> int:
        return self._now().counter_mj

    def instant_power_w(self) -> float | None:
        return self._now().power_w

    def state(self) -> BoardState:
        return self._now().state

    def _now(self) -> Reading:
        return self._readings[max(bisect_right(self._times, self._clock()) - 1, 0)]


def load_recording(path: Path, *, clock: Callable[[], float]) -> list[ReplaySource]:
    """One source per GPU from the lines that `EnergyMeter` recorded. Raises `MeterError` for a line that is none."""
    readings: dict[str, list[Reading]] = {}
    limits: dict[str, float] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            processes = row["processes"]
            reading = Reading(
                t_s=row["t_s"],
                counter_mj=row["counter_mj"],
                power_w=row["power_w"],
                state=BoardState(
                    sm_mhz=row["sm_mhz"],
                    temperature_c=row["temperature_c"],
                    throttle=frozenset(ThrottleReason(reason) for reason in row["throttle"]),
                    processes=None if processes is None else frozenset(processes),
                ),
            )
            readings.setdefault(row["gpu"], []).append(reading)
            limits[row["gpu"]] = row["power_limit_w"]
        except (ValueError, KeyError, TypeError) as bad:
            raise MeterError(f"{path}:{number}: not a recorded reading ({bad})") from None
    return [
        ReplaySource(series, clock=clock, gpu=gpu, power_limit_w=limits[gpu])
        for gpu, series in sorted(readings.items())
    ]
