"""The model of one SGLang server: continuous batching with prefill first, a queue, and limits of batch and KV cache.

                 enqueue                     place and KV free            last prompt chunk done            last token
    request ──▶ waiting ───────────────────▶ prefilling ────────────────▶ running (first token) ─────────▶ finished
                   ▲                                                          │
                   └──────────── retracted when the KV cache is full ─────────┘

Time advances in segments. A prefill segment computes up to `chunk_tokens` prompt tokens while decoding stands still, as
SGLang's scheduler does without mixed chunks. A decode segment is a run of steps in which the batch does not change;
its steps are summed in closed form (between knots of the cost model, cost is linear in the context), so the work
per request does not depend on how long its answer is. Whatever arrives during a step waits for its end.

The same class serves the simulator, which jumps from event to event, and the emulator, which goes step by step on a
real clock. It draws the accept lengths of a request when its first token is there; nothing outside sees them early.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from heapq import heappop, heappush

from selector.core.cost import ArmCost
from selector.simulator.draws import AcceptDraws
from selector.simulator.job import Job, Totals
from selector.simulator.series import series, steps_within
from selector.simulator.timeline import Stretch

__all__ = ["DEFAULT_CHUNK_TOKENS", "Job", "ServerModel", "Totals"]

DEFAULT_CHUNK_TOKENS = 8_192
"""SGLang's `--chunked-prefill-size` on Hopper."""

_ROUNDING_MS = 1e-6
"""A step that ends this little after a time counts as ended by it: the caller computed that time from the same step."""


@dataclass(slots=True)
class _Prefill:
    start_s: float
    end_s: float
    chunks: list[tuple[Job, int, float]]
    """Job, prompt tokens of it in this segment, its share of the energy."""


class ServerModel:
    """One server. Times are seconds of the caller's clock and must not run backwards."""

    def __init__(
        self,
        cost: ArmCost,
        draws: AcceptDraws,
        *,
        max_running_requests: int,
        max_kv_tokens: int,
        chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
        start_s: float = 0.0,
        tell: Callable[[Stretch], None] | None = None,
    ) -> None:
        """`tell` hears of every stretch of work when it is over."""
        self.cost = cost
        self.now_s = start_s
        """The last boundary between segments that was reached."""
        self.step = 0
        """Decode steps finished."""
        self.totals = Totals()
        self.first_tokens: list[Job] = []
        """Jobs whose first token came since the caller last cleared the list."""
        self.finished: list[Job] = []
        """Jobs that finished since the caller last cleared the list."""
        self.max_running_requests = max_running_requests
        self.max_kv_tokens = max_kv_tokens
        self._draws = draws
        self._chunk_tokens = chunk_tokens
        self._waiting: deque[Job] = deque()
        self._running: dict[Hashable, Job] = {}
        self._ends: list[tuple[int, int, Job]] = []
        self._sequence = 0
        self._kv = 0.0
        self._reserved = 0
        self._growth = 0.0
        self._share_j = 0.0
        self._prefill: _Prefill | None = None
        self._slowdown = 1.0
        self._knots = cost.step.context_knots
        self._tell = tell

    # ---- what is there

    @property
    def batch(self) -> int:
        """Requests decoding."""
        return len(self._running)

    @property
    def running(self) -> tuple[Job, ...]:
        """The jobs decoding."""
        return tuple(self._running.values())

    @property
    def waiting(self) -> int:
        """Requests waiting or prefilling."""
        return len(self._waiting) + (len(self._prefill.chunks) if self._prefill else 0)

    @property
    def queued_tokens(self) -> int:
        """Tokens that the waiting requests (not those prefilling) still have to prefill."""
        return sum(job.prompt_tokens + self._generated(job) - job._prefilled for job in self._waiting)

    def energy_j(self, at_s: float) -> tuple[float, float]:
        """(decode, prefill) energy spent by `at_s`; of the step or prefill under way, in proportion to its time."""
        decode_j, prefill_j = self.totals.decode_j, self.totals.prefill_j
        end_s = self.next_boundary_s()
        if end_s is None:
            return decode_j, prefill_j
        done_frac = min(1.0, max(0.0, (at_s - self.now_s) / (end_s - self.now_s)))
        if self._prefill is not None:
            # The totals have all of its energy since it began.
            to_come_j = (1.0 - done_frac) * sum(energy_j for _, _, energy_j in self._prefill.chunks)
            return decode_j, prefill_j - to_come_j
        return decode_j + done_frac * self._step_cost()[1], prefill_j

    @property
    def kv_tokens(self) -> float:
        """Tokens in the KV cache."""
        return self._kv + self._reserved

    @property
    def busy(self) -> bool:
        """Whether a step or a prefill is under way."""
        return self._prefill is not None or bool(self._running)

    # ---- what happens

    def enqueue(self, job: Job, at_s: float) -> None:
        """A request arrives. `advance(at_s)` must have been called before."""
        self._waiting.append(job)
        if not self.busy:
            self.now_s = max(self.now_s, at_s)
            self._start_prefill()

    def remove(self, key: Hashable, at_s: float) -> bool:
        """A request is aborted, wherever it is; False if it is not here. Tokens already delivered stay counted."""
        job = self._running.pop(key, None)
        if job is not None:
            self._leave(job)
            job._gone = True
            if self._waiting and not self.busy:
                # It was the last one, and what waits was waiting for its part of the KV cache.
                self.now_s = max(self.now_s, at_s)
                self._start_prefill()
            return True
        for waiting in self._waiting:
            if waiting.key == key:
                self._waiting.remove(waiting)
                waiting._gone = True
                self._reserved -= waiting._prefilled
                return True
        if self._prefill is not None:
            for chunk_job, _, _ in self._prefill.chunks:
                if chunk_job.key == key and not chunk_job._gone:
                    chunk_job._gone = True
                    return True
        return False

    def set_slowdown(self, factor: float) -> None:
        """How many servers take turns on the GPU: each step then lasts that many times longer, for the same energy."""
        self._slowdown = factor

    def next_boundary_s(self) -> float | None:
        """When the step or prefill under way ends; `None` when idle."""
        if self._prefill is not None:
            return self._prefill.end_s
        if self._running:
            return self.now_s + self._step_cost()[0] / 1e3
        return None

    def next_event_s(self) -> float | None:
        """When something can change by itself: a first token, an end, or an internal bend; `None` when idle."""
        if self._prefill is not None:
            return self._prefill.end_s
        if not self._running:
            return None
        steps, ms, slope_ms, _, _ = self._segment()
        return self.now_s + series(steps, ms, slope_ms) / 1e3

    def advance(self, until_s: float) -> None:
        """Runs every segment that ends by `until_s`. First tokens and ends are appended to the two lists, in order."""
        while True:
            if self._prefill is not None:
                if self._prefill.end_s > until_s:
                    return
                self._end_prefill()
            elif self._running:
                if not self._decode(until_s):
                    return
            else:
                self.now_s = max(self.now_s, until_s)
                return
            if self._waiting and self._prefill is None:
                self._start_prefill()

    def stop(self, at_s: float) -> list[Job]:
        """Ends all work at `at_s`, to which it was advanced, and gives the jobs that are still here, in no order.

        The step or prefill under way has cost what its part until now did, to the totals and to its jobs. The server
        is of no use afterwards.
        """
        end_s = self.next_boundary_s()
        done_frac = 1.0 if end_s is None else min(1.0, max(0.0, (at_s - self.now_s) / (end_s - self.now_s)))
        left = [*self._running.values(), *self._waiting]
        if self._prefill is not None:
            if self._tell is not None:
                self._tell_of_prefill(at_s, done_frac)
            for job, _, energy_j in self._prefill.chunks:
                job.prefill_j += done_frac * energy_j
                self.totals.prefill_j -= (1.0 - done_frac) * energy_j
                if not job._gone:
                    left.append(job)
            self._prefill = None
        elif self._running:
            batch, energy_j = len(self._running), done_frac * self._step_cost()[1]
            if self._tell is not None:
                self._tell(Stretch(self.now_s, at_s, False, batch, len(self._waiting), energy_j))
            self.totals.decode_j += energy_j
            self._share_j += energy_j / batch
        for job in self._running.values():
            job.decode_j += self._share_j - job._share_start_j
        self._running, self._waiting = {}, deque()
        return left

    def _tell_of_prefill(self, end_s: float, done_frac: float) -> None:
        assert self._prefill is not None and self._tell is not None
        energy_j = done_frac * sum(energy_j for _, _, energy_j in self._prefill.chunks)
        self._tell(Stretch(self._prefill.start_s, end_s, True, len(self._running), self.waiting, energy_j))

    # ---- prefill

    def _start_prefill(self) -> None:
        """Takes waiting requests in order while places, KV tokens and the chunk budget last."""
        budget = self._chunk_tokens
        chunks: list[tuple[Job, int]] = []
        places = self.max_running_requests - len(self._running)
        while self._waiting and budget > 0 and len(chunks) < places:
            job = self._waiting[0]
            context = job.prompt_tokens + self._generated(job)
            if job._prefilled == 0:
                if (self._running or chunks) and not self._fits(job):
                    break
                job._prefilled = min(job.cached_tokens, context - 1)
                self._reserved += job._prefilled
                if job.prefill_started_s is None:
                    job.prefill_started_s = self.now_s
            todo = min(context - job._prefilled, budget)
            budget -= todo
            chunks.append((job, todo))
            self._reserved += todo
            self._waiting.popleft()
            if job._prefilled + todo < context:
                break
        if not chunks:
            return
        prefill = self.cost.prefill
        separate = [prefill.cost(todo, after=job._prefilled) for job, todo in chunks]
        ms, j = sum(c[0] for c in separate), sum(c[1] for c in separate)
        if len(chunks) > 1:
            # One forward pass: the fixed part of a pass is paid once, but attention is not that of one long prompt.
            whole_ms, whole_j = prefill.cost(sum(todo for _, todo in chunks))
            ms, j = min(ms, whole_ms), min(j, whole_j)
        tokens = sum(todo for _, todo in chunks)
        seconds = ms / 1e3 * self._slowdown
        shares = [(job, todo, j * todo / tokens) for job, todo in chunks]
        self._prefill = _Prefill(self.now_s, self.now_s + seconds, shares)
        self.totals.prefill_j += j
        self.totals.prefill_s += seconds
        self.totals.prefill_tokens += tokens

    def _end_prefill(self) -> None:
        assert self._prefill is not None
        if self._tell is not None:
            self._tell_of_prefill(self._prefill.end_s, 1.0)
        self.now_s, chunks = self._prefill.end_s, self._prefill.chunks
        self._prefill = None
        for job, todo, energy_j in chunks:
            job._prefilled += todo
            job.prefill_j += energy_j
            if job._gone:
                self._reserved -= job._prefilled
            elif job._prefilled < job.prompt_tokens + self._generated(job):
                self._waiting.appendleft(job)
            else:
                self._reserved -= job._prefilled
                self._join(job)

    def _generated(self, job: Job) -> int:
        """Tokens a retracted job had generated; its prefill computes them anew."""
        return 0 if job.first_token_s is None else job.delivered(job._started_step)

    def _join(self, job: Job) -> None:
        """A prefilled job enters the batch; its first token comes from the prefill itself."""
        if job.first_token_s is None:
            job.first_token_s = self.now_s
            self.totals.accepted_tokens += 1
            self.first_tokens.append(job)
            if job.output_tokens <= 1:
                self._finish(job)
                return
            job._cumulative, job._surplus = self._draws.steps(
                job.draw_key,
                tokens=job.output_tokens - 1,
                accept_length=job.accept_length,
                spread=job.accept_spread,
                verify_tokens=self.cost.verify_tokens,
            )
        assert job._cumulative is not None
        steps_left = len(job._cumulative) - job._steps_before
        job._started_step, job._paused = self.step, False
        job._joined_tokens = self._generated(job)
        job._growth = (job.output_tokens - job._joined_tokens) / steps_left
        self._kv += job.prompt_tokens + job._joined_tokens
        job._share_start_j = self._share_j
        self._running[job.key] = job
        self._growth += job._growth
        self._sequence += 1
        heappush(self._ends, (self.step + steps_left, self._sequence, job))

    # ---- decode

    def _step_cost(self) -> tuple[float, float]:
        batch = len(self._running)
        ms, j = self.cost.step.step(batch, self._kv / batch)
        return ms * self._slowdown, j

    def _next_end(self) -> int:
        """The step at which the next job ends."""
        while True:
            step, _, job = self._ends[0]
            if not job._gone and self._running.get(job.key) is job and self._ends_at(job) == step:
                return step
            heappop(self._ends)

    def _ends_at(self, job: Job) -> int:
        assert job._cumulative is not None
        return job._started_step + len(job._cumulative) - job._steps_before

    def _segment(self) -> tuple[int, float, float, float, float]:
        """Steps until something changes; time (ms) and its slope per step; energy (J) and its slope per step."""
        batch = len(self._running)
        context, growth = self._kv / batch, self._growth / batch
        steps = self._next_end() - self.step
        knot = bisect_right(self._knots, context)
        if knot < len(self._knots) and growth > 0.0:
            steps = min(steps, int((self._knots[knot] - context) / growth) + 1)
        room = self.max_kv_tokens - self._kv - self._reserved
        if self._growth > 0.0 and room < steps * self._growth:
            steps = max(1, min(steps, int(room / self._growth)))
        ms, j = self._step_cost()
        if steps == 1:
            return 1, ms, 0.0, j, 0.0
        end_ms, end_j = self.cost.step.step(batch, context + growth * (steps - 1))
        return steps, ms, (end_ms * self._slowdown - ms) / (steps - 1), j, (end_j - j) / (steps - 1)

    def _decode(self, until_s: float) -> bool:
        """Runs the steps of one segment that end by `until_s`; False if not even one does."""
        steps, ms, slope_ms, j, slope_j = self._segment()
        if self._waiting and self._can_admit():
            steps = 1
        available_ms = (until_s - self.now_s) * 1e3 + _ROUNDING_MS
        if series(steps, ms, slope_ms) > available_ms:
            steps = min(steps, steps_within(available_ms, ms, slope_ms))
            if steps < 1:
                return False
        batch = len(self._running)
        took_ms, energy_j = series(steps, ms, slope_ms), series(steps, j, slope_j)
        context = self._kv / batch
        if self._tell is not None:
            end_s = self.now_s + took_ms / 1e3
            self._tell(Stretch(self.now_s, end_s, False, batch, len(self._waiting), energy_j))
        self.now_s += took_ms / 1e3
        self.step += steps
        self._kv += steps * self._growth
        self._share_j += energy_j / batch
        self._count(steps, batch, took_ms, energy_j, context)
        self._finish_due()
        if self._running and self._kv + self._reserved > self.max_kv_tokens:
            self._retract()
        return True

    def _count(self, steps: int, batch: int, took_ms: float, energy_j: float, context: float) -> None:
        totals = self.totals
        totals.decode_j += energy_j
        totals.decode_s += took_ms / 1e3
        totals.accepted_tokens += steps * self._growth
        if not self.cost.step.covers(batch, context):
            totals.extrapolated_j += energy_j
        moments, took_us = totals.moments, took_ms * 1e3
        moments[0] += steps
        moments[1] += steps * batch
        moments[2] += took_us
        moments[3] += steps * batch * batch
        moments[4] += batch * took_us
        moments[5] += steps * self._growth

    def _can_admit(self) -> bool:
        if len(self._running) >= self.max_running_requests:
            return False
        return self._waiting[0]._prefilled > 0 or self._fits(self._waiting[0])

    def _fits(self, job: Job) -> bool:
        """Its context and the next token fit the free part of the KV cache."""
        return self._kv + self._reserved + job.prompt_tokens + self._generated(job) + 1 <= self.max_kv_tokens

    def _finish_due(self) -> None:
        while self._running and self._next_end() <= self.step:
            job = heappop(self._ends)[2]
            del self._running[job.key]
            self._leave(job)
            self._finish(job)

    def _leave(self, job: Job) -> None:
        """Takes a running job out of the sums."""
        grown = job._growth * (self.step - job._started_step)
        self._kv -= job.prompt_tokens + job._joined_tokens + grown
        self._growth -= job._growth
        # The sums grew by the mean per step; a job that leaves early delivered what its own draws say.
        correction = job.delivered(self.step) - job._joined_tokens - grown
        self.totals.accepted_tokens += correction
        self.totals.moments[5] += correction
        job.decode_j += self._share_j - job._share_start_j
        job.verify_passes = job._steps_before + self.step - job._started_step
        if not self._running:
            self._kv = self._growth = 0.0  # what rounding left

    def _finish(self, job: Job) -> None:
        job.finished_s = self.now_s
        job._gone = True
        self.totals.finished += 1
        self.finished.append(job)

    def _retract(self) -> None:
        """The KV cache is full: the youngest running job goes back to the queue's head, as SGLang does."""
        if len(self._running) == 1:
            return
        key = next(reversed(self._running))
        job = self._running.pop(key)
        self._leave(job)
        job._steps_before += self.step - job._started_step
        job._started_step, job._paused = self.step, True
        job._prefilled = 0
        job.retractions += 1
        self.totals.retractions += 1
        self._waiting.appendleft(job)
