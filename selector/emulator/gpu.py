"""One emulated GPU: which servers work on it, and the energy it has drawn.

    energy(t) = share of the decode and prefill energy of its servers, until t
              + idle power × time in which none of them worked, until t

The segment (step or prefill) under way counts in proportion to its time, so the counter is continuous and rises
steadily; at a segment's end it is exactly the server model's total. A server that spans several GPUs draws an equal
share of its energy from each. Idle power is that of the GPU with all its servers resident, counted once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import orjson

from selector.core.cost import IdlePower
from selector.emulator.clock import Clock


class EnergySource(Protocol):
    """A server on the GPU."""

    def energy_j(self, at_s: float) -> tuple[float, float]:
        """(decode, prefill) energy of the server until `at_s`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEnergy:
    """What a GPU has drawn since its start."""

    decode_j: float
    prefill_j: float
    idle_j: float
    """While none of its servers worked."""

    @property
    def total_j(self) -> float:
        """All of it."""
        return self.decode_j + self.prefill_j + self.idle_j


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
        self._reported_mj = {"decode_mj": 0, "prefill_mj": 0, "idle_mj": 0}

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

    def energy(self, at_s: float) -> GpuEnergy:
        """What it has drawn until `at_s`."""
        idle_s = self._idle_s + (at_s - self._idle_since_s if self.busy == 0 else 0.0)
        spent = [(share, source.energy_j(at_s)) for source, share in self._sources]
        return GpuEnergy(
            decode_j=sum(share * decode_j for share, (decode_j, _) in spent),
            prefill_j=sum(share * prefill_j for share, (_, prefill_j) in spent),
            idle_j=idle_s * self._idle.watts(len(self._sources)),
        )

    def counters_mj(self, at_s: float) -> dict[str, int]:
        """Whole millijoules that never fall, not even by rounding: `energy_mj`, as NVML counts, and its three parts."""
        energy, reported = self.energy(at_s), self._reported_mj
        parts = {"decode_mj": energy.decode_j, "prefill_mj": energy.prefill_j, "idle_mj": energy.idle_j}
        for name, joules in parts.items():
            reported[name] = max(reported[name], int(joules * 1e3))
        return {"energy_mj": sum(reported.values()), **reported}


def energy_report(gpus: Iterable[EmulatedGpu], clock: Clock) -> bytes:
    """The body of `GET /energy`, timestamps in emulated Unix time:

    {"gpus": [{"id", "energy_mj", "timestamp_ns", "decode_mj", "prefill_mj", "idle_mj"}]}

    A meter of real GPUs serves the same without the last three, which only an emulator knows.
    """
    clock.run_due()
    now_s = clock.now_s()
    timestamp_ns = int(clock.unix_s(now_s) * 1e9)
    readings = []
    for gpu in gpus:
        counters = gpu.counters_mj(now_s)
        total_mj = counters.pop("energy_mj")
        readings.append({"id": gpu.gpu_id, "energy_mj": total_mj, "timestamp_ns": timestamp_ns, **counters})
    return orjson.dumps({"gpus": readings})
