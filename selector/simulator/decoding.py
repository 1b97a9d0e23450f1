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
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from selector.core.contention import turns_energy, turns_slowdown
from selector.core.cost import StepCost
from selector.simulator.job import Job, Totals
from selector.simulator.series import series, steps_within


class Steps(NamedTuple):
    """Steps in which nothing but the context changes, linearly."""

    steps: int
    ms: float
    """Of the first step."""
    slope_ms: float
    """By how much each step is longer than the one before."""
    j: float
    slope_j: float
    covered: bool
    """The first step lies inside the measured cells."""


class Done(NamedTuple):
    """What some steps took."""

    steps: int
    ms: float
    energy_j: float


@dataclass(slots=True)
class _Begun:
    """The step under way, when its pace changed since it began."""

    elapsed_ms: float
    """From its beginning to the last change of pace."""
    todo_frac: float
    """The part of it that was left then."""
    spent_j: float
    """What the other part took."""


@dataclass(slots=True)
class _Lines:
    """The step cost of one batch over the context."""

    lines: Sequence[tuple[float, float, float, float, float]]
    covered_from: float
    covered_to: float


class Decoding:
    """The running requests of a server, in the order in which they joined."""

    __slots__ = (
        "_begun", "_cost", "_ends", "_energy_frac", "_knots", "_lines_of", "_pieces", "_sequence", "_share_j",
        "_slowdown", "_totals", "growth", "jobs", "kv_tokens", "plan_ms", "plan_steps", "step",
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
        self._pieces: list[Steps] = []
        """The plan; empty when it has to be made anew."""
        self._begun: _Begun | None = None
        self._cost = cost
        self._knots = cost.context_knots
        self._lines_of: dict[int, _Lines] = {}
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
        if not self.jobs:
            self.kv_tokens = self.growth = 0.0  # what rounding left
            self._ends.clear()

    def due(self) -> Job | None:
        """A request that has its last token, if there is one."""
        if not self.jobs or self.next_end() > self.step:
            return None
        return self._ends[0][2]

    def next_end(self) -> int:
        """The step after which the next request leaves. The batch must not be empty."""
        ends = self._ends
        while ends[0][2]._end_step != ends[0][0]:
            heappop(ends)
        return ends[0][0]

    # ---- what steps cost

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
        knot, ms, ms_per_token, j, j_per_token = self._lines(batch).lines[bisect_right(self._knots, context) - 1]
        beyond = context - knot
        return (ms + ms_per_token * beyond) * self._slowdown, (j + j_per_token * beyond) * self._energy_frac

    def _lines(self, batch: int) -> _Lines:
        found = self._lines_of.get(batch)
        if found is None:
            low, high = self._cost.covered_contexts(batch) or (1.0, 0.0)
            tolerance = 1e-6 * (1.0 + high)
            found = self._lines_of[batch] = _Lines(self._cost.lines(batch), low - tolerance, high + tolerance)
        return found

    def plan(self, room_tokens: float) -> float:
        """Plans the steps up to the next end, or until `room_tokens` more are in the KV cache; their time in ms.

        The plan stays until the batch or the pace changes, or steps are done. The batch must not be empty.
        """
        if self._pieces:
            return self.plan_ms
        batch = len(self.jobs)
        steps = self.next_end() - self.step
        growth = self.growth
        if room_tokens < steps * growth:
            steps = max(1, int(room_tokens / growth))
        context, rise = self.kv_tokens / batch, growth / batch
        cost = self._lines(batch)
        lines, knots, slowdown, energy_frac = cost.lines, self._knots, self._slowdown, self._energy_frac
        pieces = []
        plan_ms = 0.0
        left = steps
        if self._begun is not None:
            ms, j = self.step_cost()
            pieces.append(Steps(1, ms, 0.0, j, 0.0, cost.covered_from <= context <= cost.covered_to))
            plan_ms += ms
            left -= 1
            context += rise
        line = bisect_right(knots, context) - 1
        while left:
            knot, ms, ms_per_token, j, j_per_token = lines[line]
            beyond = context - knot
            line += 1
            count = left
            if line < len(knots) and context + rise * left > knots[line]:
                count = min(left, int((knots[line] - context) / rise) + 1)
            ms = (ms + ms_per_token * beyond) * slowdown
            slope_ms = ms_per_token * rise * slowdown
            covered = cost.covered_from <= context <= cost.covered_to
            j, slope_j = (j + j_per_token * beyond) * energy_frac, j_per_token * rise * energy_frac
            pieces.append(Steps(count, ms, slope_ms, j, slope_j, covered))
            plan_ms += count * (ms + slope_ms * (count - 1) / 2)
            left -= count
            context += rise * count
            while line + 1 < len(knots) and knots[line + 1] < context:
                line += 1
        self._pieces, self.plan_steps, self.plan_ms = pieces, steps, plan_ms
        return plan_ms

    # ---- steps are done

    def run_plan(self) -> list[Done]:
        """Does all steps of the plan."""
        return [self._do(piece, piece.steps) for piece in self._drop_plan()]

    def run_within(self, available_ms: float, most_steps: int) -> list[Done]:
        """Does the steps of the plan that take no longer in all, at most so many."""
        done: list[Done] = []
        if available_ms < self._pieces[0].ms:
            return done
        for piece in self._drop_plan():
            steps = min(piece.steps, most_steps, steps_within(available_ms, piece.ms, piece.slope_ms))
            if steps:
                done.append(self._do(piece, steps))
                available_ms -= done[-1].ms
                most_steps -= steps
            if steps < piece.steps:
                break
        return done

    def run_part(self, done_frac: float) -> Done:
        """Stops in the midst of a step, `done_frac` of it done: nobody gets tokens. Nothing can be run afterwards."""
        ms, j = self.step_cost()
        self._totals.decode_j += done_frac * j
        self._share_j += done_frac * j / len(self.jobs)
        for job in self.jobs.values():
            job.decode_j += self._share_j - job._share_start_j
        return Done(0, done_frac * ms, done_frac * j)

    def _drop_plan(self) -> list[Steps]:
        pieces, self._pieces, self._begun = self._pieces, [], None
        return pieces

    def _do(self, piece: Steps, steps: int) -> Done:
        ms, j = series(steps, piece.ms, piece.slope_ms), series(steps, piece.j, piece.slope_j)
        batch = len(self.jobs)
        grown = steps * self.growth
        self.step += steps
        self.kv_tokens += grown
        self._share_j += j / batch
        totals = self._totals
        totals.decode_j += j
        totals.decode_ms += ms
        totals.accepted_tokens += grown
        totals.steps += steps
        totals.request_steps += steps * batch
        totals.request_square_steps += steps * batch * batch
        totals.request_ms += batch * ms
        if not piece.covered:
            totals.extrapolated_j += j
        return Done(steps, ms, j)
