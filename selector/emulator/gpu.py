"""One emulated GPU: which servers work on it, and the energy it has drawn.

    energy(t) = share of the decode and prefill energy of its servers, until t
              + idle power × time in which none of them worked, until t

The segment (step or prefill) under way counts in proportion to its time, so the counter is continuous and rises
steadily; at a segment's end it is exactly the server model's total. A server that spans several GPUs draws an equal
share of its energy from each. Idle power is that of the GPU with all its servers resident, counted once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import orjson

from selector.core.cost import IdlePower
from selector.emulator.clock import Clock


class EnergySource(Protocol):
    """A server on the GPU."""

    def energy_j(self, at_s: float) -> float:
        """Decode and prefill energy of the server until `at_s`."""
        ...


class EmulatedGpu:
    """Energy and occupancy of one GPU. Times are emulated seconds of one clock."""

    def __init__(self, gpu_id: str, idle: IdlePower) -> None:
        self.gpu_id = gpu_id
        self.busy = 0
        """Servers at work now; they take turns."""
        self._idle = idle
        self._sources: list[tuple[EnergySource, float]] = []
        self._idle_s = 0.0
        self._idle_since_s = 0.0
        self._reported_mj = 0

    def attach(self, source: EnergySource, share_frac: float) -> None:
        """Adds a resident server, of whose energy this GPU draws `share_frac`. Only before any of them works."""
        self._sources.append((source, share_frac))

    def started(self, at_s: float) -> None:
        """A server that was idle works from `at_s` on."""
        if self.busy == 0:
            self._idle_s += at_s - self._idle_since_s
        self.busy += 1

    def stopped(self, at_s: float) -> None:
        """A server that worked has nothing to do from `at_s` on."""
        self.busy -= 1
        if self.busy == 0:
            self._idle_since_s = at_s

    def idle_j(self, at_s: float) -> float:
        """Energy drawn until `at_s` while no server worked."""
        idle_s = self._idle_s + (at_s - self._idle_since_s if self.busy == 0 else 0.0)
        return idle_s * self._idle.watts(len(self._sources))

    def energy_j(self, at_s: float) -> float:
        """All energy drawn until `at_s`."""
        return self.idle_j(at_s) + sum(share * source.energy_j(at_s) for source, share in self._sources)

    def energy_mj(self, at_s: float) -> int:
        """The counter as NVML would give it: whole millijoules, never falling (not even by rounding)."""
        self._reported_mj = max(self._reported_mj, int(self.energy_j(at_s) * 1e3))
        return self._reported_mj


def energy_report(gpus: Iterable[EmulatedGpu], clock: Clock) -> bytes:
    """The body of `GET /energy`: `{"gpus": [{"id", "energy_mj", "timestamp_ns"}]}`, timestamps in emulated Unix time.

    The GPU-side meter serves the same shape.
    """
    clock.run_due()
    now_s = clock.now_s()
    timestamp_ns = int(clock.unix_s(now_s) * 1e9)
    readings = [
        {"id": gpu.gpu_id, "energy_mj": gpu.energy_mj(now_s), "timestamp_ns": timestamp_ns} for gpu in gpus
    ]
    return orjson.dumps({"gpus": readings})
