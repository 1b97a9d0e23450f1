"""The fixed part of a step, shared among the requests that can be there: prices, and the bound that they prove.

Of a step of kind k, K joules are its fixed part and α(b) − K is shared evenly by its b requests. Time is cut into
slices. In each slice the fixed part is shared out as prices: request i is charged κ per step that it makes on k in
slice t, with

    κ ≥ 0 and Σ_i κ(i, k, t) ≤ K(k)          over all requests whose window on k touches slice t

so no step is ever charged more than it costs, whoever takes part in it. A request then costs at least what its cheapest
kind charges, each of its steps in the cheapest slice of its window. Any prices give a valid bound; the ascent below
looks for good ones: whoever used a cell last time is charged more of it (exponentiated gradient).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from selector.simulator.oracle.kinds import FloatArray, IntArray
from selector.simulator.oracle.windows import Windows
from selector.simulator.oracle.work import Work

_SLICES = (12.0, 60.0)
"""Slices in a typical request's decoding, with many requests and with few."""

_WIDEST = 6.0
"""A request whose window is this many times as long as its decoding is charged no fixed part."""

_ENTRIES = 600_000
"""About the most pairs × slices that are kept."""

_ENTRIES_PER_PAIR = 250


_UNLIKELY = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Which steps of which pair can fall into which slice. An entry is a pair in a slice of its window."""

    pair: IntArray
    """Per entry, as the next three; a pair's entries are next to one another, in order of time."""
    cell: IntArray
    """Number of (kind, slice)."""
    steps: FloatArray
    """Steps that happen in this slice at the earliest."""
    reach: IntArray
    """They happen at most this many slices later."""
    cell_kind: IntArray
    """Per cell."""
    charged: npt.NDArray[np.bool_]
    """Per pair: it has entries."""


def cells_of(work: Work, windows: Windows) -> Cells:
    """Cuts time into slices, a fraction of a typical request's decoding each."""
    wide = windows.latest_end_s - work.first_token_s
    charged = np.isfinite(wide) & (work.steps > 0)
    if np.any(charged):
        typical_s = float(np.median(work.decode_s[charged]))
        charged &= np.where(charged, wide, 0.0) <= _WIDEST * (work.decode_s + typical_s)
    empty = np.empty(0, dtype=np.int64)
    nothing = Cells(pair=empty, cell=empty, steps=np.empty(0), reach=empty, cell_kind=empty, charged=charged)
    if not np.any(charged):
        return nothing
    slice_s = _slice_s(work, wide, charged)
    first = np.floor((work.first_token_s + work.least_step_s) / slice_s)
    last = np.floor(np.where(charged, windows.latest_end_s, 0.0) / slice_s)
    pairs = np.flatnonzero(charged)
    counts = (last[pairs] - first[pairs] + 1).astype(np.int64)
    counts = np.maximum(counts, 1)
    pair = np.repeat(pairs, counts)
    offset = np.arange(len(pair)) - np.repeat(np.cumsum(counts) - counts, counts)
    slot = (np.repeat(first[pairs], counts) + offset).astype(np.int64)
    # Step k ends no earlier than first token + k least steps.
    edge_s = (slot + 1) * slice_s
    done = np.floor((edge_s - work.first_token_s[pair]) / work.least_step_s[pair] + 1e-9)
    done = np.clip(done, 0.0, work.steps[pair])
    ends = np.cumsum(counts) - 1
    done[ends] = work.steps[pairs]
    steps = np.diff(done, prepend=0.0)
    starts = np.append(0, ends[:-1] + 1)
    steps[starts] = done[starts]
    clock = windows.last_step[pair] - work.steps[pair] + done
    latest_s = np.empty(len(pair))
    for kind in range(len(work.kinds)):
        mine = np.flatnonzero(work.kind[pair] == kind)
        if len(mine):
            latest_s[mine] = windows.clocks[kind].when(clock[mine])
    reach = np.floor((latest_s * (1 + 1e-9) + 1e-6) / slice_s).astype(np.int64) - slot
    reach = np.clip(reach, 0, np.repeat(counts, counts) - 1 - offset)
    slots = int(slot.max()) + 1
    used, cell = np.unique(work.kind[pair] * slots + slot, return_inverse=True)
    return Cells(
        pair=pair,
        cell=cell,
        steps=steps,
        reach=reach,
        cell_kind=used // slots,
        charged=charged,
    )


def _slice_s(work: Work, wide_s: FloatArray, charged: npt.NDArray[np.bool_]) -> float:
    pairs = int(np.sum(charged))
    slices = min(max(0.1 * _ENTRIES / pairs, _SLICES[0]), _SLICES[1])
    typical_s = float(np.median(work.decode_s[charged]))
    all_s = float(np.sum(wide_s[charged]))
    return max(typical_s / slices, all_s / min(_ENTRIES, _ENTRIES_PER_PAIR * pairs), 1e-4)


class Steps:
    """What the even shares of the steps of each pair cost, with a price on the time of each kind's servers."""

    def __init__(self, work: Work, windows: Windows) -> None:
        self._work = work
        self._groups: list[tuple[int, IntArray, list[tuple[int, IntArray, FloatArray]]]] = []
        self._largest = windows.largest_batch
        for number, kind in enumerate(work.kinds):
            mine = np.flatnonzero(work.kind == number)
            judged = mine[(work.budget_s[mine] >= 0.0) & np.isfinite(work.budget_s[mine])]
            # What a step may take on average, less what its own context takes.
            own_s = work.decode_s[judged] - work.steps[judged] * kind.least_step_s[0]
            spare_s = np.full(len(judged), np.inf)
            np.divide(work.budget_s[judged] - own_s, work.steps[judged], out=spare_s, where=work.steps[judged] > 0)
            by_batch = []
            for batch in np.unique(windows.largest_batch[judged]):
                at = windows.largest_batch[judged] == batch
                by_batch.append((int(batch), judged[at], spare_s[at]))
            self._groups.append((number, mine, by_batch))

    def free_j(self, fixed_j: FloatArray, time_w: FloatArray) -> FloatArray:
        """Per pair at least, whatever its pace.

        Given per kind: K, its part from `time_w` included, and the price of a second of one server.
        """
        free = np.empty(len(self._work.request))
        for number, mine, _ in self._groups:
            share_j = self._share_j(number, fixed_j, time_w)
            free[mine] = self._work.steps[mine] * np.minimum.accumulate(share_j)[self._largest[mine] - 1]
        return free

    def timely_j(self, fixed_j: FloatArray, time_w: FloatArray) -> FloatArray:
        """The same within its target; infinite where even a batch of one is too slow, or no target is judged.

        The mean step time is then bounded, so the least is the lower convex hull over the batches of (step time, even
        share), at that mean.
        """
        work = self._work
        timely = np.full(len(work.request), np.inf)
        for number, _, by_batch in self._groups:
            kind = work.kinds[number]
            share_j = self._share_j(number, fixed_j, time_w)
            pace_s = kind.least_step_s + kind.least_s_per_token * np.arange(len(share_j)) * work.least_context
            hull = _FallingHull()
            done = 0
            for batch, pairs, mean_s in by_batch:
                for index in range(done, batch):
                    hull.add(float(pace_s[index]), float(share_j[index]))
                done = batch
                cost = np.interp(mean_s, hull.x, hull.y)
                cost[mean_s < hull.x[0] * (1 - 1e-9)] = np.inf
                steps = work.steps[pairs]
                timely[pairs] = np.multiply(steps, cost, out=np.zeros(len(pairs)), where=steps > 0)
        return timely

    def _share_j(self, number: int, fixed_j: FloatArray, time_w: FloatArray) -> FloatArray:
        kind = self._work.kinds[number]
        whole_j = kind.alpha_j + time_w[number] * kind.least_step_s - fixed_j[number]
        share: FloatArray = whole_j / np.arange(1, len(whole_j) + 1)
        return share


class _FallingHull:
    """The falling part of the lower convex hull of points that are added in rising x."""

    def __init__(self) -> None:
        self.x: list[float] = []
        self.y: list[float] = []

    def add(self, x: float, y: float) -> None:
        """One more point."""
        if self.y and y >= self.y[-1]:
            return
        while self.x and (x <= self.x[-1] or (len(self.x) > 1 and self._above(x, y))):
            self.x.pop()
            self.y.pop()
        self.x.append(x)
        self.y.append(y)

    def _above(self, x: float, y: float) -> bool:
        """Whether the last point lies on or above the line from the one before to (x, y)."""
        (x0, x1), (y0, y1) = self.x[-2:], self.y[-2:]
        return (y1 - y0) * (x - x0) >= (y - y0) * (x1 - x0)


class Prices:
    """κ per entry, and what pairs pay under it."""

    def __init__(self, work: Work, cells: Cells) -> None:
        self._cells = cells
        self._pairs = len(work.request)
        count = np.bincount(cells.cell, minlength=len(cells.cell_kind))
        self._log = -np.log(np.maximum(count, 1))[cells.cell]
        self._part = np.empty(0)
        self.kappa_j = np.empty(0)
        level = np.floor(np.log2(cells.reach + 1)).astype(np.int64)
        self._by_level = [np.flatnonzero(level == number) for number in range(int(level.max(initial=-1)) + 1)]
        self._normalise()

    def _normalise(self) -> None:
        cells = self._cells
        if len(cells.cell) == 0:
            return
        highest = np.full(len(cells.cell_kind), -np.inf)
        np.maximum.at(highest, cells.cell, self._log)
        weight = np.exp(self._log - highest[cells.cell])
        total = np.bincount(cells.cell, weights=weight, minlength=len(cells.cell_kind))
        self._log = np.log(np.maximum(weight, 1e-30))
        self._part = weight / total[cells.cell]

    def pay_j(self, fixed_j: FloatArray) -> FloatArray:
        """With K per kind, per pair what its steps pay at least, each in the cheapest slice that it can fall into."""
        # Least over `reach` entries onwards, from two overlapping ranges of 2^level entries each.
        cells = self._cells
        self.kappa_j = self._part * fixed_j[cells.cell_kind][cells.cell]
        size = len(self.kappa_j)
        least = self.kappa_j
        each = np.empty(size)
        width = 1
        for entries in self._by_level:
            if width > 1:
                half = width // 2
                least = np.minimum(least, np.append(least[half:], np.full(min(half, size), np.inf))[:size])
            each[entries] = np.minimum(least[entries], least[entries + cells.reach[entries] - width + 1])
            width *= 2
        # Without any entry, bincount counts in integers.
        return np.bincount(cells.pair, weights=each * cells.steps, minlength=self._pairs).astype(np.float64)

    def raise_used(self, share: FloatArray, rate: float, smooth_j: float) -> None:
        """Charges those more who use a cell: `share` is the part of each pair that was chosen.

        A step uses the slices that it can fall into in proportion to exp(−κ / `smooth_j`): the gradient of a smoothed
        least.
        """
        cells, size = self._cells, len(self.kappa_j)
        if size == 0 or smooth_j <= 0.0:
            return
        likely = np.exp(-self.kappa_j / smooth_j) + _UNLIKELY
        sums = np.append(0.0, np.cumsum(likely))
        ends = np.arange(size) + cells.reach + 1
        each = cells.steps * share[cells.pair] / np.maximum(sums[ends] - sums[:-1], _UNLIKELY)
        begun = np.append(each, 0.0) - np.bincount(ends, weights=each, minlength=size + 1)
        used = likely * np.cumsum(begun)[:size]
        most = np.zeros(len(cells.cell_kind))
        np.maximum.at(most, cells.cell, used)
        self._log += rate * used / np.maximum(most, _UNLIKELY)[cells.cell]
        self._normalise()
