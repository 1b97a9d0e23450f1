"""The energy counters of a host's GPUs, followed for as long as it runs: what `meter` serves.

One thread polls every counter; what is kept is the last value of each and the moment at which it moved, so memory does
not grow. Two answers of a monitor give the energy between the moments of their edges exactly as the board counted it:

    energy_j = (counter₂ − counter₁) / 1000      over      edge time₂ − edge time₁

A counter that falls (the driver was reloaded) or leaps beyond what the power limit allows does not move the running
total: the jump is dropped and counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from selector.errors import MeterError
from selector.profiler.energy import BoardState, EnergySource

_POLL_PAUSE_S = 0.005
_STATE_INTERVAL_S = 0.5
_LEAP_FRAC = 1.5
"""A counter moves in steps: one may seem this much above the limit, when a poll came late for the one before."""
_LEAP_SLACK_S = 0.25
_STALLED_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One GPU at its counter's last edge."""

    gpu: str
    energy_mj: int
    """Running total since the monitor began, plus the counter's value then: never falls."""
    edge_ns: int
    """Unix time of the edge."""
    power_w: float | None
    power_limit_w: float
    state: BoardState | None
    dropped_jumps: int
    """Falls and leaps of the counter that were left out."""
    stalled: bool
    """Whether the counter has not moved for seconds: an idle board's moves too."""


class _Followed:
    """One GPU's counter."""

    __slots__ = ("dropped", "edge_ns", "edge_s", "last_mj", "power_w", "source", "state", "state_s", "total_mj")

    def __init__(self, source: EnergySource, now_s: float, now_ns: int) -> None:
        self.source = source
        self.last_mj = self.total_mj = source.counter_mj()
        self.edge_s, self.edge_ns = now_s, now_ns
        self.power_w: float | None = None
        self.state: BoardState | None = None
        self.state_s = float("-inf")
        self.dropped = 0

    def poll(self, now_s: float, now_ns: int) -> None:
        counter_mj = self.source.counter_mj()
        self.power_w = self.source.instant_power_w()
        if now_s - self.state_s >= _STATE_INTERVAL_S:
            self.state, self.state_s = self.source.state(), now_s
        if counter_mj == self.last_mj:
            return
        moved_mj = counter_mj - self.last_mj
        most_mj = 1e3 * _LEAP_FRAC * self.source.power_limit_w * (now_s - self.edge_s + _LEAP_SLACK_S)
        if 0 < moved_mj <= most_mj:
            self.total_mj += moved_mj
        else:
            self.dropped += 1
        self.last_mj = counter_mj
        self.edge_s, self.edge_ns = now_s, now_ns


class EnergyMonitor:
    """A context manager: a thread polls inside it. `now_s` is monotonic seconds, `unix_ns` wall time.

    Raises `MeterError` from the constructor when a counter cannot be read.
    """

    def __init__(
        self, sources: Sequence[EnergySource], *, now_s: Callable[[], float], unix_ns: Callable[[], int]
    ) -> None:
        if not sources:
            raise MeterError("no GPU to meter")
        self._now_s, self._unix_ns = now_s, unix_ns
        self._followed = [_Followed(source, now_s(), unix_ns()) for source in sources]
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: str | None = None
        """Why polling ended, if it did."""

    def __enter__(self) -> EnergyMonitor:
        self._thread = threading.Thread(target=self._follow, name="energy-monitor", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def poll(self) -> None:
        """Reads every counter once. Raises `MeterError` when one cannot be read."""
        for followed in self._followed:
            with self._lock:
                followed.poll(self._now_s(), self._unix_ns())

    def read(self) -> list[GpuReading]:
        """Every GPU as of its last edge. Raises `MeterError` once polling has failed: old numbers are no reading."""
        if self.failure is not None:
            raise MeterError(self.failure)
        with self._lock:
            now_s = self._now_s()
            return [
                GpuReading(
                    gpu=each.source.gpu,
                    energy_mj=each.total_mj,
                    edge_ns=each.edge_ns,
                    power_w=each.power_w,
                    power_limit_w=each.source.power_limit_w,
                    state=each.state,
                    dropped_jumps=each.dropped,
                    stalled=now_s - each.edge_s > _STALLED_S,
                )
                for each in self._followed
            ]

    def _follow(self) -> None:
        while not self._stop.is_set():
            try:
                self.poll()
            except MeterError as failed:
                self.failure = str(failed)
                return
            self._stop.wait(_POLL_PAUSE_S)
