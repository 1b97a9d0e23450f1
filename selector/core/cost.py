"""What a decode step of one arm costs, over batch and context.

    step time T(b, c) in ms   and   step energy E(b, c) in J      b = requests in the batch, c = context tokens of each

depend on the arm, the batch and the context, not on the text or on how many drafts are accepted. They are interpolated
between measured cells:

    over context   linear between the contexts measured at a batch; beyond them by the slope of the nearest segment, or,
                   where a batch was measured at one context only, by the derived cost of reading the KV cache
    over batch     PCHIP (Fritsch & Carlson 1980: monotone, no overshoot) over log(b + 64) through the measured
                   batches, tabulated at every integer batch; beyond the largest, linear by the last segment

Both are made non-decreasing in batch and context first (isotonic regression), since more work never costs less and a
measurement's noise must not tell a planner otherwise. Whatever lies outside the measured cells is answered and flagged.

From T and E follow, with accept length a (tokens per request and step, bonus token included):

    TBT = T / a          J per accepted token = E / (b · a)          break-even accept length = E / E_none
    marginal J per accepted token of one more request = [A(b + 1) − A(b)] / a,   A(b) = E(b) − P_idle · T(b),  A(0) = 0
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.interpolate import PchipInterpolator
from scipy.optimize import isotonic_regression

from selector.core.depthtable import Line
from selector.core.prefillcost import PrefillCost
from selector.errors import DomainError

FloatArray = npt.NDArray[np.float64]

_SEGMENT_RATIO = 1.5
"""Two contexts whose ratio is below this are too close for their difference to give a slope: noise would decide it."""

_BATCH_BEND = 64.0
"""log(b + this) is straight for smaller batches, where reading the weights dominates a step, and bends for larger ones.

Chosen by leaving out cells of the first H200 profile (bench/leave_one_out.py); values from 32 to 200 do alike."""

_COVERED_WITHIN = 1e-6
"""A context this close (relative) to a measured one counts as it: sums of contexts are rounded."""

_LEAST_FRAC = 0.05
"""No slope, followed down to a shorter context, takes a cost below this share of the measured one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """One measured cell: a decode step of `batch` requests with `context_tokens` each."""

    batch: int
    context_tokens: float
    step_ms: float
    step_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSlope:
    """Derived cost of one more context token of one request: its keys and values are read once per step."""

    ms_per_token: float
    j_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEstimate:
    """Cost of one step, and whether it lies outside the measured cells."""

    step_ms: float
    step_j: float
    extrapolated: bool


class StepCost:
    """T(b, c) and E(b, c) of one arm. Immutable; a lookup costs about a microsecond.

    Raises `DomainError` from the constructor when `points` is empty or holds a batch < 1, a context < 0 or a cost ≤ 0.
    """

    __slots__ = (
        "_batches", "_context_range", "_knots", "_last_pair", "_points", "_rows", "_slope", "max_batch", "min_batch",
    )  # fmt: skip

    def __init__(self, points: Sequence[StepPoint], slope: ContextSlope | None) -> None:
        if not points:
            raise DomainError("a step cost needs at least one measured cell")
        for point in points:
            if point.batch < 1 or point.context_tokens < 0 or point.step_ms <= 0 or point.step_j <= 0:
                raise DomainError(f"not a step cost: {point}")
        self._points, self._slope = tuple(points), slope
        by_batch: dict[int, list[StepPoint]] = {}
        for point in points:
            by_batch.setdefault(point.batch, []).append(point)
        self._batches = sorted(by_batch)
        self.min_batch, self.max_batch = self._batches[0], self._batches[-1]
        measured_contexts = sorted({point.context_tokens for point in points})
        self._knots = sorted({0.0, *measured_contexts})
        self._context_range = [
            (min(p.context_tokens for p in by_batch[b]), max(p.context_tokens for p in by_batch[b]))
            for b in self._batches
        ]
        kv = slope or ContextSlope(ms_per_token=0.0, j_per_token=0.0)
        ms_table, ms_slopes = self._tabulate(by_batch, measured_contexts, "step_ms", kv.ms_per_token)
        j_table, j_slopes = self._tabulate(by_batch, measured_contexts, "step_j", kv.j_per_token)
        # Per batch the lines that start at each knot: (knot, ms there, ms per token, J there, J per token). Plain
        # tuples, since scalar lookups in numpy arrays cost ten times as much.
        self._rows: list[list[Line]] = [
            list(zip(self._knots, ms.tolist(), ms_rise, j.tolist(), j_rise, strict=True))
            for ms, ms_rise, j, j_rise in zip(
                ms_table, self._rises(ms_table, ms_slopes), j_table, self._rises(j_table, j_slopes), strict=True
            )
        ]
        self._last_pair = len(self._rows) - 2

    def _tabulate(
        self, by_batch: dict[int, list[StepPoint]], measured_contexts: list[float], value: str, kv_slope: float
    ) -> tuple[FloatArray, FloatArray]:
        """Values at context knots, and the slope beyond the last knot; one row per integer batch.

        The last row stands for one request more than the largest measured batch: with the row before it, it spans the
        line of extrapolation. Rows and slopes are non-decreasing in both directions.
        """
        knots = np.array(measured_contexts)
        grid = np.empty((len(self._batches), len(knots)))
        below, beyond = np.empty(len(self._batches)), np.empty(len(self._batches))
        for row, batch in enumerate(self._batches):
            contexts, values = _averaged(by_batch[batch], value)
            values = _non_decreasing(values)
            below[row], beyond[row] = _outer_slopes(contexts, values, kv_slope * batch)
            grid[row] = _along_contexts(knots, contexts, values, below[row], beyond[row])
        # Rows are non-decreasing, and stay so: the regression keeps the order of two columns.
        for column in range(len(knots)):
            grid[:, column] = _non_decreasing(grid[:, column])
        if knots[0] > 0.0:
            at_zero = np.maximum(grid[:, 0] - below * knots[0], _LEAST_FRAC * grid[:, 0])
            grid = np.column_stack([np.minimum.accumulate(at_zero[::-1])[::-1], grid])
        beyond = np.maximum.accumulate(beyond)
        if len(self._batches) == 1:
            # Cost in proportion to the batch: the pessimistic bound.
            growth = 1.0 + 1.0 / self.max_batch
            return np.vstack([grid, growth * grid]), np.append(beyond, growth * beyond)
        every_batch = np.arange(self.min_batch, self.max_batch + 1)
        curve = PchipInterpolator(_bent(self._batches), grid, axis=0)
        table = np.asarray(curve(_bent(every_batch)), dtype=np.float64)
        # PCHIP keeps each column monotone, but between measured batches two columns may cross.
        table = np.maximum.accumulate(table, axis=1)
        slopes = np.interp(every_batch, self._batches, beyond)
        width = self._batches[-1] - self._batches[-2]
        per_request = (grid[-1] - grid[-2]) / width
        if knots[0] > 0.0:  # what was extrapolated to context 0 must not raise what was measured
            per_request[0] = min(per_request[0], per_request[1])
        per_request = np.maximum.accumulate(per_request)
        slope_per_request = (beyond[-1] - beyond[-2]) / width
        return np.vstack([table, table[-1] + per_request]), np.append(slopes, slopes[-1] + slope_per_request)

    def _rises(self, table: FloatArray, beyond: FloatArray) -> list[list[float]]:
        """Value per token after each knot of each row of `table`: up to the next knot, and `beyond` after the last."""
        inner = np.diff(table, axis=1) / np.diff(np.array(self._knots))
        rises: list[list[float]] = np.column_stack([inner, beyond]).tolist()
        return rises

    def step(self, batch: float, context_tokens: float) -> tuple[float, float]:
        """(step_ms, step_j) of a batch (may be fractional, a mean) at a context per request.

        Raises `DomainError` for a batch < 1 or a context < 0; a value outside the grid is extrapolated. Below the
        smallest measured batch it is that batch's.
        """
        if batch < 1 or context_tokens < 0:
            raise DomainError(f"no decode step has batch {batch} at context {context_tokens}")
        position = batch - self.min_batch if batch > self.min_batch else 0
        lower = int(position)
        if lower > self._last_pair:
            lower = self._last_pair
        line = bisect_right(self._knots, context_tokens) - 1
        knot, ms, ms_per_token, j, j_per_token = self._rows[lower][line]
        beyond = context_tokens - knot
        ms += ms_per_token * beyond
        j += j_per_token * beyond
        frac = position - lower
        if frac == 0:
            return ms, j
        _, above_ms, ms_per_token, above_j, j_per_token = self._rows[lower + 1][line]
        return (
            ms + frac * (above_ms + ms_per_token * beyond - ms),
            j + frac * (above_j + j_per_token * beyond - j),
        )

    def plus(self, step_ms: float, step_j: float) -> StepCost:
        """The cost of the same steps with something in each that takes so long, and so many joules, at any load."""
        return self.with_lines(
            [
                [(knot, ms + step_ms, ms_rise, j + step_j, j_rise) for knot, ms, ms_rise, j, j_rise in row]
                for row in self._rows
            ]
        )

    def with_lines(self, rows: Sequence[Sequence[Line]]) -> StepCost:
        """The same measured cells with other costs: the `lines` of each batch from the smallest to one above the
        largest measured one, from the same knots on."""
        other = StepCost(self._points, self._slope)  # compiled classes cannot be copied
        other._rows = [list(row) for row in rows]
        return other

    def estimate(self, batch: float, context_tokens: float) -> StepEstimate:
        """Like `step`, with the flag that says whether the point lies outside the measured cells."""
        ms, j = self.step(batch, context_tokens)
        return StepEstimate(step_ms=ms, step_j=j, extrapolated=not self.covers(batch, context_tokens))

    def covers(self, batch: float, context_tokens: float) -> bool:
        """Whether the point lies inside the measured cells.

        Inside means: between the smallest and largest measured batch, and between the contexts measured at the two
        batches around it (interpolated over batch).
        """
        contexts = self.covered_contexts(batch)
        if contexts is None:
            return False
        tolerance = _COVERED_WITHIN * (1.0 + context_tokens)
        return contexts[0] - tolerance <= context_tokens <= contexts[1] + tolerance

    def lines(self, batch: int) -> Sequence[Line]:
        """T and E of one batch over the context, as a chain of lines, one from each of `context_knots` on.

        (context, ms there, ms per token beyond, J there, J per token beyond). What `step` computes, for those who ask
        for one batch many times. Raises `DomainError` for a batch < 1.
        """
        if batch < 1:
            raise DomainError(f"no decode step has batch {batch}")
        position = max(0, batch - self.min_batch)
        lower = min(position, self._last_pair)
        frac = position - lower
        if frac == 0:
            return self._rows[lower]
        mixed = []
        for low, high in zip(self._rows[lower], self._rows[lower + 1], strict=True):
            ms, ms_rise, j, j_rise = (a + frac * (b - a) for a, b in zip(low[1:], high[1:], strict=True))
            mixed.append((low[0], ms, ms_rise, j, j_rise))
        return mixed

    def covered_contexts(self, batch: float) -> tuple[float, float] | None:
        """The contexts measured at the two batches around `batch`, interpolated over batch; `None` outside them."""
        if not self.min_batch <= batch <= self.max_batch:
            return None
        upper = min(bisect_right(self._batches, batch), len(self._batches) - 1)
        lower = max(upper - 1, 0)
        (low0, high0), (low1, high1) = self._context_range[lower], self._context_range[upper]
        width = self._batches[upper] - self._batches[lower]
        frac = (batch - self._batches[lower]) / width if width else 0.0
        return low0 + frac * (low1 - low0), high0 + frac * (high1 - high0)

    @property
    def context_knots(self) -> tuple[float, ...]:
        """Contexts at which the cost bends; between two of them it is linear in the context."""
        return tuple(self._knots)


def _bent(batches: npt.ArrayLike) -> FloatArray:
    """The coordinate that is interpolated over."""
    return np.log(np.asarray(batches, dtype=np.float64) + _BATCH_BEND)


def _averaged(points: Sequence[StepPoint], value: str) -> tuple[FloatArray, FloatArray]:
    """Contexts in rising order and the mean value at each (repeats of one cell count once)."""
    by_context: dict[float, list[float]] = {}
    for point in points:
        by_context.setdefault(point.context_tokens, []).append(getattr(point, value))
    contexts = sorted(by_context)
    return np.array(contexts), np.array([np.mean(by_context[c]) for c in contexts])


def _non_decreasing(values: FloatArray) -> FloatArray:
    """The closest non-decreasing sequence (least squares)."""
    return np.asarray(isotonic_regression(values).x, dtype=np.float64)


def _along_contexts(
    knots: FloatArray, contexts: FloatArray, values: FloatArray, below: float, beyond: float
) -> FloatArray:
    """Values at `knots`: linear between the measured contexts of one batch, by the given slopes outside them."""
    inside = np.interp(knots, contexts, values)
    lower = np.maximum(values[0] - below * (contexts[0] - knots), _LEAST_FRAC * values[0])
    upper = values[-1] + beyond * (knots - contexts[-1])
    return np.where(knots < contexts[0], lower, np.where(knots > contexts[-1], upper, inside))


def _outer_slopes(contexts: FloatArray, values: FloatArray, derived: float) -> tuple[float, float]:
    """Slopes to use below the first and above the last measured context of one batch."""
    low = high = derived
    if len(contexts) > 1:
        if contexts[1] >= _SEGMENT_RATIO * contexts[0]:
            low = (values[1] - values[0]) / (contexts[1] - contexts[0])
        if contexts[-1] >= _SEGMENT_RATIO * contexts[-2]:
            high = (values[-1] - values[-2]) / (contexts[-1] - contexts[-2])
    return float(low), float(high)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlePower:
    """Board power without work.

    The first server's CUDA context keeps the clocks up and costs most (measured on an H200: 78 W bare, 121 W with one
    server, 124 W with three), so only whether there is one counts.
    """

    bare_w: float
    served_w: float
    """With at least one server resident."""

    def watts(self, servers: int) -> float:
        """Idle power of one GPU with that many servers resident."""
        return self.served_w if servers > 0 else self.bare_w


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCost:
    """Everything an arm costs on one kind of GPU."""

    arm: str
    verify_tokens: int
    """Tokens verified per request and step; the accept length cannot exceed it. 1 without a drafter."""
    step: StepCost
    prefill: PrefillCost
    idle: IdlePower
    graphs: tuple[int, ...] = ()
    """Batches, rising, to which `step` is padded (see `graphpadding`); empty where it is not."""

    def active_step_j(self, batch: float, context_tokens: float, idle_w: float) -> float:
        """A(b, c) = E(b, c) − P_idle · T(b, c): what a step costs beyond idling; 0 at batch 0."""
        if batch <= 0:
            return 0.0
        ms, j = self.step.step(batch, context_tokens)
        return j - idle_w * ms / 1e3
