"""What the backends did when: the raw material of a timeline of load, batch, arm and power.

A simulation given a recorder tells it every stretch of work, one prefill pass or a run of decode steps in which nothing
changed, and every stretch in which a GPU idled. Power is constant over a stretch (to within the slope of the step cost
over a few steps), so energy / duration of all stretches is the fleet's power, and their sum is its energy. A run
without a recorder pays nothing for this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


class Stretch(NamedTuple):
    """A stretch of time in which a backend worked without a change. Stretches of a backend follow in order."""

    start_s: float
    end_s: float
    prefill: bool
    """A prefill pass; else decode steps."""
    batch: int
    """Requests decoding; during prefill they stand still."""
    waiting: int
    """Requests waiting or prefilling, as of the start."""
    energy_j: float


class Recorder(Protocol):
    """What a simulation tells its recorder."""

    def worked(self, backend: str, stretch: Stretch) -> None:
        """A backend worked; told when the stretch is over."""
        ...

    def idled(self, gpu: str, start_s: float, end_s: float, power_w: float) -> None:
        """None of the servers on a GPU worked between the two times."""
        ...


class Timeline:
    """A recorder that keeps everything, and gives means over any bins."""

    def __init__(self) -> None:
        self.stretches: dict[str, list[Stretch]] = {}
        """By backend."""
        self.idle: dict[str, list[tuple[float, float, float]]] = {}
        """By GPU: (start_s, end_s, power_w)."""

    def worked(self, backend: str, stretch: Stretch) -> None:
        """Keeps it."""
        self.stretches.setdefault(backend, []).append(stretch)

    def idled(self, gpu: str, start_s: float, end_s: float, power_w: float) -> None:
        """Keeps it."""
        if end_s > start_s:
            self.idle.setdefault(gpu, []).append((start_s, end_s, power_w))

    def batch(self, backend: str, edges_s: Sequence[float]) -> FloatArray:
        """Mean number of requests decoding in each bin between two `edges_s` (rising, shape (bins + 1,))."""
        return self._means(backend, edges_s, lambda stretch: stretch.batch)

    def waiting(self, backend: str, edges_s: Sequence[float]) -> FloatArray:
        """Mean number of requests waiting or prefilling in each bin."""
        return self._means(backend, edges_s, lambda stretch: stretch.waiting)

    def working_frac(self, backend: str, edges_s: Sequence[float]) -> FloatArray:
        """Share of each bin in which the backend worked."""
        return self._means(backend, edges_s, lambda stretch: 1.0)

    def backend_power_w(self, backend: str, edges_s: Sequence[float]) -> FloatArray:
        """Mean power that the backend's own work drew in each bin."""
        return self._means(backend, edges_s, lambda stretch: stretch.energy_j / (stretch.end_s - stretch.start_s))

    def power_w(self, edges_s: Sequence[float]) -> FloatArray:
        """Mean power of the whole fleet in each bin, idle GPUs included."""
        power = np.zeros(len(edges_s) - 1)
        for backend in self.stretches:
            power += self.backend_power_w(backend, edges_s)
        for spans in self.idle.values():
            starts, ends, watts = np.array(spans, dtype=np.float64).T
            power += _bin_means(starts, ends, watts, edges_s)
        return power

    def energy_j(self) -> float:
        """Of all that was recorded."""
        work_j = sum(stretch.energy_j for stretches in self.stretches.values() for stretch in stretches)
        return work_j + sum((end - start) * watts for spans in self.idle.values() for start, end, watts in spans)

    def _means(self, backend: str, edges_s: Sequence[float], value: _Value) -> FloatArray:
        stretches = [stretch for stretch in self.stretches.get(backend, ()) if stretch.end_s > stretch.start_s]
        if not stretches:
            return np.zeros(len(edges_s) - 1)
        return _bin_means(
            np.array([stretch.start_s for stretch in stretches]),
            np.array([stretch.end_s for stretch in stretches]),
            np.array([value(stretch) for stretch in stretches], dtype=np.float64),
            edges_s,
        )


class _Value(Protocol):
    def __call__(self, stretch: Stretch, /) -> float: ...


def _bin_means(starts: FloatArray, ends: FloatArray, values: FloatArray, edges_s: Sequence[float]) -> FloatArray:
    """Time-weighted means over bins of a value that holds from each start to its end, and is 0 in between."""
    edges = np.asarray(edges_s, dtype=np.float64)
    corners = np.column_stack([starts, ends]).ravel()
    grown = np.cumsum(values * (ends - starts))
    integral = np.column_stack([grown - values * (ends - starts), grown]).ravel()
    return np.asarray(np.diff(np.interp(edges, corners, integral)) / np.diff(edges), dtype=np.float64)
