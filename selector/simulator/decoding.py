"""The batch that one server decodes: which requests are in it, and what its next steps take and cost.

Between two changes of the batch its context grows by the same amount at every step, and cost is linear in the context
between the knots of the cost model. A run of steps is therefore a few pieces whose times and energies are arithmetic
series, however long it is.

    mean context of step k    c + k g        c = Σ contexts / b,  g = Σ growth / b
    piece of n steps          time  n T(b, c) + T' g n (n − 1) / 2        likewise energy

Servers that share a GPU take turns (`core.contention`); the step under way when the pace changes is done in part at
either pace.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from selector.core.contention import turns_energy, turns_slowdown
from selector.core.cost import StepCost
from selector.simulator.job import Job, Totals
from selector.simulator.series import series, steps_within

Piece = tuple[int, float, float, float, float, bool]
"""Steps in which nothing but the context changes, linearly: how many; ms of the first, and by how much each is longer
than the one before; J likewise; whether the first is inside the measured cells. Many are made, hence a plain tuple."""


@dataclass(slots=True)
class _Begun:
    """The step under way, when its pace changed since it began."""

    elapsed_ms: float
    """From its beginning to the last change of pace."""
    todo_frac: float
    """The part of it that was left then."""
    spent_j: float
    """What the other part took."""


class _Lines(NamedTuple):
    """The step cost of one batch over the context, as a chain of lines."""

    starts: list[float]
    """Contexts where the cost bends, or measured cells begin or end; infinity, where none begins any more."""
    lines: list[tuple[float, float, float, float, float, bool]]
    """From each of them on: its context, ms there, ms per token beyond, J, J per token, and whether it was measured."""


def _lines_of(cost: StepCost, batch: int) -> _Lines:
    knots, known = cost.context_knots, cost.lines(batch)
    low, high = cost.covered_contexts(batch) or (inf, inf)
    starts = sorted({*knots, *(edge for edge in (low, high) if edge < inf)})
    lines = []
    for start in starts:
        knot, ms, ms_per_token, j, j_per_token = known[bisect_right(knots, start) - 1]
        beyond = start - knot
        covered = low <= start < high or (start == high and low == high)
        lines.append((start, ms + ms_per_token * beyond, ms_per_token, j + j_per_token * beyond, j_per_token, covered))
    return _Lines([*starts, inf], lines)


class Decoding:
    """The running requests of a server, in the order in which they joined."""

    __slots__ = (
        "_begun", "_cost", "_ends", "_energy_frac", "_known", "_lines_of", "_pieces", "_sequence", "_share_j",
        "_slowdown", "_totals", "changed", "growth", "jobs", "kv_tokens", "parts", "plan_ms", "plan_steps", "step",
        "until_step",
    )  # fmt: skip

    def __init__(self, cost: StepCost, totals: Totals) -> None:
        self.jobs: dict[Hashable, Job] = {}
        self.step = 0
        """Decode steps finished."""
        self.kv_tokens = 0.0
        """Sum of the contexts."""
        self.growth = 0.0
        """By how much that sum grows per step."""
        self.plan_ms = 0.0
        self.plan_steps = 0
        self.changed = False
        """Set when a request joins or leaves, for whoever takes it back."""
        self.until_step: float = inf
        """The step up to which the next plan may go."""
        self.parts: list[tuple[float, float]] | None = None
        """If a list, what `run` did is added to it piece by piece: (ms, J)."""
        self._pieces: list[Piece] = []
        """The plan; empty when it has to be made anew."""
        self._begun: _Begun | None = None
        self._cost = cost
        self._lines_of: dict[int, _Lines] = {}
        self._known: dict[StepCost, dict[int, _Lines]] = {cost: self._lines_of}
        self._totals = totals
        self._ends: list[tuple[int, int, Job]] = []
        self._sequence = 0
        self._share_j = 0.0
        """Sum over all steps of step energy / batch: what a request that was there all the time has used."""
        self._slowdown = 1.0
        self._energy_frac = 1.0

    # ---- who is there

    def join(self, job: Job) -> None:
        """A request whose draws are known enters the batch."""
        steps_left = job._steps_needed - job._steps_before
        job._started_step = self.step
        job._share_start_j = self._share_j
        job._growth = (job.output_tokens - job._joined_tokens) / steps_left
        job._end_step = self.step + steps_left
        self.jobs[job.key] = job
        self.kv_tokens += job.prompt_tokens + job._joined_tokens
        self.growth += job._growth
        self._sequence += 1
        heappush(self._ends, (job._end_step, self._sequence, job))
        self._pieces = []
        self.changed = True

    def leave(self, job: Job) -> None:
        """A running request leaves, at the end or before it."""
        steps = self.step - job._started_step
        grown = job._growth * steps
        del self.jobs[job.key]
        totals = self._totals
        if self.step != job._end_step:
            # The sums grew by the mean per step; one that leaves early delivered what its own draws say.
            correction = job.delivered(self.step) - job._joined_tokens - grown
            totals.accepted_tokens += correction
        self.kv_tokens -= job.prompt_tokens + job._joined_tokens + grown
        self.growth -= job._growth
        job.decode_j += self._share_j - job._share_start_j
        job._steps_before += steps
        job.verify_passes = job._steps_before
        job._end_step = -1
        self._pieces = []
        self.changed = True
        if not self.jobs:
            self.kv_tokens = self.growth = 0.0  # what rounding left
            self._ends.clear()

    def due(self) -> Job | None:
        """A request that has its last token, if there is one."""
        if self.jobs and self.next_end() <= self.step:
            return self._ends[0][2]
        return None

    def next_end(self) -> int:
        """The step after which the next request leaves. The batch must not be empty."""
        ends = self._ends
        while ends[0][2]._end_step != ends[0][0]:
            heappop(ends)
        return ends[0][0]

    # ---- what steps cost

    def follow(self, cost: StepCost) -> None:
        """Steps cost that from now on. None may be under way."""
        self._cost = cost
        self._lines_of = self._known.setdefault(cost, {})
        self._pieces = []

    def take_turns(self, busy_servers: int, elapsed_ms: float) -> None:
        """That many servers share the GPU from now on, `elapsed_ms` after the step under way began."""
        slowdown, energy_frac = turns_slowdown(busy_servers), turns_energy(busy_servers)
        if slowdown == self._slowdown:
            return
        if self.jobs and elapsed_ms > 0.0:
            begun = self._begun or _Begun(0.0, 1.0, 0.0)
            ms, j = self._whole_step()
            done_frac = min(begun.todo_frac, (elapsed_ms - begun.elapsed_ms) / ms)
            self._begun = _Begun(elapsed_ms, begun.todo_frac - done_frac, begun.spent_j + done_frac * j)
        self._slowdown, self._energy_frac = slowdown, energy_frac
        self._pieces = []

    def step_cost(self) -> tuple[float, float]:
        """(ms, J) of the step that comes next or is under way, from its beginning."""
        ms, j = self._whole_step()
        begun = self._begun
        if begun is None:
            return ms, j
        return begun.elapsed_ms + begun.todo_frac * ms, begun.spent_j + begun.todo_frac * j

    def _whole_step(self) -> tuple[float, float]:
        batch = len(self.jobs)
        context = self.kv_tokens / batch
        starts, lines = self._lines(batch)
        start, ms, ms_per_token, j, j_per_token, _ = lines[bisect_right(starts, context) - 1]
        beyond = context - start
        return (ms + ms_per_token * beyond) * self._slowdown, (j + j_per_token * beyond) * self._energy_frac

    def _lines(self, batch: int) -> _Lines:
        found = self._lines_of.get(batch)
        if found is None:
            found = self._lines_of[batch] = _lines_of(self._cost, batch)
        return found

    def plan(self, room_tokens: float) -> float:
        """Plans the steps up to the next end or `until_step`, or until `room_tokens` more are in the KV cache.

        Returns their time in ms. The plan stays until the batch or the pace changes, or steps are done. The batch must
        not be empty.
        """
        if self._pieces:
            return self.plan_ms
        batch = len(self.jobs)
        end = self.next_end()
        steps = (end if end <= self.until_step else int(self.until_step)) - self.step
        growth = self.growth
        if room_tokens < steps * growth:
            steps = max(1, int(room_tokens / growth))
        context, rise = self.kv_tokens / batch, growth / batch
        starts, lines = self._lines(batch)
        slowdown, energy_frac = self._slowdown, self._energy_frac
        pieces: list[Piece] = []
        plan_ms = 0.0
        left = steps
        line = bisect_right(starts, context) - 1
        if self._begun is not None:
            ms, j = self.step_cost()
            pieces.append((1, ms, 0.0, j, 0.0, lines[line][5]))
            plan_ms += ms
            left -= 1
            context += rise
        while left:
            while starts[line + 1] <= context:
                line += 1
            start, ms, ms_per_token, j, j_per_token, covered = lines[line]
            beyond = context - start
            count = left
            if context + rise * left > starts[line + 1]:
                count = min(left, int((starts[line + 1] - context) / rise) + 1)
            ms = (ms + ms_per_token * beyond) * slowdown
            slope_ms = ms_per_token * rise * slowdown
            j, slope_j = (j + j_per_token * beyond) * energy_frac, j_per_token * rise * energy_frac
            pieces.append((count, ms, slope_ms, j, slope_j, covered))
            plan_ms += count * (ms + slope_ms * (count - 1) / 2)
            left -= count
            context += rise * count
        self._pieces, self.plan_steps, self.plan_ms = pieces, steps, plan_ms
        return plan_ms

    def time_of(self, room_tokens: float, most_steps: int) -> float:
        """The ms that the plan takes, or its first `most_steps` if there are more."""
        self.plan(room_tokens)
        took_ms, left = 0.0, most_steps
        for steps, ms, slope_ms, _, _, _ in self._pieces:
            took_ms += series(min(steps, left), ms, slope_ms)
            left -= steps
            if left <= 0:
                break
        return took_ms

    # ---- steps are done

    def run(self, available_ms: float, most_steps: int) -> float:
        """Does the planned steps that take no longer in all, at most so many; the ms they took, 0 for none.

        The plan must have been made.
        """
        pieces = self._pieces
        if available_ms < pieces[0][1]:
            return 0.0
        self._pieces, self._begun = [], None
        batch = len(self.jobs)
        done, took_ms, energy_j = 0, 0.0, 0.0
        totals = self._totals
        for planned, ms, slope_ms, j, slope_j, covered in pieces:
            steps = planned if planned <= most_steps - done else most_steps - done
            piece_ms = series(steps, ms, slope_ms)
            if piece_ms > available_ms - took_ms:
                steps = min(steps, steps_within(available_ms - took_ms, ms, slope_ms))
                piece_ms = series(steps, ms, slope_ms)
            if steps:
                piece_j = series(steps, j, slope_j)
                if not covered:
                    totals.extrapolated_j += piece_j
                if self.parts is not None:
                    self.parts.append((piece_ms, piece_j))
                done += steps
                took_ms += piece_ms
                energy_j += piece_j
            if steps < planned:
                break
        grown = done * self.growth
        self.step += done
        self.kv_tokens += grown
        self._share_j += energy_j / batch
        totals.decode_j += energy_j
        totals.decode_ms += took_ms
        totals.accepted_tokens += grown
        totals.steps += done
        totals.request_steps += done * batch
        totals.request_square_steps += done * batch * batch
        totals.request_ms += batch * took_ms
        return took_ms

    def stop(self, part_ms: float) -> None:
        """Stops, that long after the last step ended: nobody gets tokens of the step under way, whose energy counts.

        Nothing can be run afterwards.
        """
        if part_ms > 0.0:
            ms, j = self.step_cost()
            done_frac = min(1.0, part_ms / ms)
            if self.parts is not None:
                self.parts.append((done_frac * ms, done_frac * j))
            self._totals.decode_j += done_frac * j
            self._share_j += done_frac * j / len(self.jobs)
        for job in self.jobs.values():
            job.decode_j += self._share_j - job._share_start_j
