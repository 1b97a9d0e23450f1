"""The model of one SGLang server: continuous batching with prefill first, a queue, and limits of batch and KV cache.

                 enqueue                     place and KV free            last prompt chunk done            last token
    request ──▶ waiting ───────────────────▶ prefilling ────────────────▶ running (first token) ─────────▶ finished
                   ▲                                                          │
                   └──────────── retracted when the KV cache is full ─────────┘

Time advances in segments. A prefill segment computes up to `chunk_tokens` prompt tokens while decoding stands still, as
SGLang's scheduler does without mixed chunks. A decode segment is a run of steps in which the batch does not change;
its steps are summed in closed form (between knots of the cost model, cost is linear in the context), so the work
per request does not depend on how long its answer is.

SGLang forms a batch and launches it while the one before still runs. So what runs after a boundary was decided at the
boundary before, by what was known then: a request that comes during a step waits for the rest of it and for the whole
of the next, and a place that gets free stays so for a step. An idle server starts at once.

      step 1                step 2              prefill pass                step 3
    ──▲─────────────────────┼───────────────────┼──────────────────────────┼─────────
      arrives               planned             begins                     first token

(`Scheduler.event_loop_overlap` of SGLang 0.5.17. With `--disable-overlap-schedule` it begins where it is planned.)

The same class serves the simulator, which jumps from event to event, and the emulator, which goes step by step on a
real clock. It draws the accept lengths of a request when its first token is there; nothing outside sees them early.
Where a live setting changes, it draws what is left of each request anew. An engine that chooses its draft depth does so
before a step, and the next stretch of steps ends where it may choose again (`depthcontrol`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import inf

from selector.core.contention import turns_energy, turns_slowdown
from selector.core.cost import ArmCost, StepCost
from selector.core.policy import BackendSpec
from selector.simulator.decoding import Decoding
from selector.simulator.depthcontrol import DepthControl
from selector.simulator.draws import AcceptDraws
from selector.simulator.job import Job, Totals
from selector.simulator.kvcache import KvCache
from selector.simulator.prefillpass import PrefillPass
from selector.simulator.promptqueue import PromptQueue
from selector.simulator.timeline import Stretch

__all__ = ["DEFAULT_CHUNK_TOKENS", "Job", "ServerModel", "Totals"]

DEFAULT_CHUNK_TOKENS = 8_192
"""SGLang's `--chunked-prefill-size` on Hopper."""

_ROUNDING_MS = 1e-6
"""A step that ends this little after a time counts as ended by it: the caller computed that time from the same step."""


Accepts = Callable[[Job], tuple[float, float]]
"""(accept length, its relative spread between requests) of the text type of a request."""


class ServerModel:
    """One server. Times are seconds of the caller's clock and must not run backwards."""

    def __init__(
        self,
        cost: ArmCost,
        draws: AcceptDraws,
        *,
        max_running_requests: int,
        max_kv_tokens: int,
        max_context_tokens: int | None = None,
        chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
        overlaps: bool = True,
        start_s: float = 0.0,
        tell: Callable[[Stretch], None] | None = None,
        backend: BackendSpec | None = None,
    ) -> None:
        """`overlaps` says whether what runs next is decided while a batch still runs (`BackendSpec.overlaps`).

        `tell` hears of every stretch of work when it is over.

        `backend` says how the engine chooses its draft depth, if it does; without it the depth is fixed.
        """
        self.cost = cost
        self.now_s = start_s
        """The last boundary between segments that was reached."""
        self.totals = Totals()
        self.first_tokens: list[Job] = []
        """Jobs whose first token came since the caller last cleared the list."""
        self.finished: list[Job] = []
        """Jobs that finished since the caller last cleared the list."""
        self.max_running_requests = max_running_requests
        self._max_context_tokens = min(max_context_tokens or max_kv_tokens, max_kv_tokens)
        self._draws = draws
        self._overlaps = overlaps
        self._tell = tell
        self._decoding = Decoding(cost.step, self.totals)
        if tell is not None:
            self._decoding.parts = []
        self._jobs = self._decoding.jobs
        self._depths = None if backend is None else DepthControl.of(backend, self._decoding)
        self._kv = KvCache(max_kv_tokens, self._decoding, cost.verify_tokens)
        self._prompts = PromptQueue(
            cost.prefill, self._kv, self._jobs, max_running_requests=max_running_requests, chunk_tokens=chunk_tokens
        )
        self._change: tuple[StepCost, Accepts] | None = None
        """What holds from the next step on."""
        self._turns = 1
        self._slowdown = self._energy_frac = 1.0

    # ---- what is there

    @property
    def step(self) -> int:
        """Decode steps finished."""
        return self._decoding.step

    @property
    def depth(self) -> int:
        """Tokens drafted per request and step, at present."""
        return self.cost.verify_tokens - 1 if self._depths is None else self._depths.depth

    @property
    def batch(self) -> int:
        """Requests decoding."""
        return len(self._jobs)

    @property
    def running(self) -> tuple[Job, ...]:
        """The jobs decoding."""
        return tuple(self._jobs.values())

    @property
    def waiting(self) -> int:
        """Requests waiting or prefilling."""
        return self._prompts.count

    @property
    def queued_tokens(self) -> int:
        """Tokens that the waiting requests (not those in a pass, or planned for one) still have to prefill."""
        return self._prompts.queued_tokens

    def energy_j(self, at_s: float) -> tuple[float, float]:
        """(decode, prefill) energy spent by `at_s`; of the step or prefill under way, in proportion to its time."""
        decode_j, prefill_j = self.totals.decode_j, self.totals.prefill_j
        if self._prompts.under_way is not None:
            return decode_j, prefill_j + self._prompts.under_way.at(at_s)[1]
        if self._jobs:
            ms, j = self._decoding.step_cost()
            decode_j += min(1.0, max(0.0, (at_s - self.now_s) * 1e3 / ms)) * j
        return decode_j, prefill_j

    @property
    def kv_tokens(self) -> float:
        """Tokens of requests in the KV cache, as of the last boundary; a prefix that several share counts once."""
        return self._kv.tokens

    @property
    def busy(self) -> bool:
        """Whether a step or a prefill is under way."""
        return self._prompts.under_way is not None or bool(self._jobs)

    # ---- what happens

    def enqueue(self, job: Job, at_s: float) -> None:
        """A request arrives. `advance(at_s)` must have been called before."""
        job._context = job.prompt_tokens
        most = max(1, self._max_context_tokens - job.prompt_tokens - 1)
        job._most_new_tokens = most if job.max_new_tokens is None else min(most, job.max_new_tokens)
        prompts = self._prompts
        prompts.waiting.append(job)
        if prompts.under_way is None and not self._jobs:
            self.now_s = max(self.now_s, at_s)
            self._pass_boundary()

    def remove(self, key: Hashable, at_s: float) -> bool:
        """A request is aborted, wherever it is; False if it is not here. Tokens already delivered stay counted."""
        job = self._jobs.get(key)
        if job is not None:
            self._kv.release(job)
            self._decoding.leave(job)
            job._gone = True
            if not self._jobs:
                self._make_change()
            elif self._depths is not None:
                if at_s > self.now_s:
                    self._depths.left_during_step()
                else:
                    self._depths.choose()
            if (self._prompts.waiting or self._prompts.planned is not None) and not self.busy:
                # It was the last one, and what waits was waiting for its part of the KV cache, or for its step.
                self.now_s = max(self.now_s, at_s)
                self._pass_boundary()
            return True
        return self._prompts.remove(key)

    def change_setting(self, step: StepCost, accepts: Accepts, at_s: float) -> None:
        """From the next step after `at_s` on, to which it was advanced, a live setting is another.

        Steps then cost `step`, and every request here has the accept length that `accepts` gives.
        """
        self._change = step, accepts
        if not self._jobs or self._prompts.under_way is not None or at_s <= self.now_s:
            self._make_change()

    def _make_change(self) -> None:
        if self._change is None:
            return
        (step, accepts), self._change = self._change, None
        for job in (*self._prompts.prefilling(), *self._prompts.waiting, *self._jobs.values()):
            job.accept_length, job.accept_spread = accepts(job)
        for job in list(self._jobs.values()):
            delivered = job.delivered(self.step)
            self._decoding.leave(job)
            self._draw(job, job.tokens_by_pass(job._steps_before))
            job._joined_tokens = delivered
            self._decoding.join(job)
        self._decoding.follow(step)

    def take_turns(self, busy_servers: int, at_s: float) -> None:
        """From `at_s` on, to which it was advanced, so many servers work on its GPU, itself included."""
        if busy_servers == self._turns:
            return
        prefill = self._prompts.under_way
        if prefill is not None:
            slower = turns_slowdown(busy_servers) / self._slowdown
            prefill.change_pace(at_s, slower, turns_energy(busy_servers) / self._energy_frac)
        self._turns = busy_servers
        self._slowdown, self._energy_frac = turns_slowdown(busy_servers), turns_energy(busy_servers)
        self._decoding.take_turns(busy_servers, 0.0 if prefill is not None else (at_s - self.now_s) * 1e3)

    def next_boundary_s(self) -> float | None:
        """When the step or prefill under way ends; `None` when idle."""
        if self._prompts.under_way is not None:
            return self._prompts.under_way.end_s
        if self._jobs:
            return self.now_s + self._decoding.step_cost()[0] / 1e3
        return None

    def next_event_s(self) -> float | None:
        """When something can change by itself: a first token, an end, a retraction; `None` when idle.

        It may be early, never late: then there is a later one after `advance`.
        """
        prompts, decoding = self._prompts, self._decoding
        if prompts.under_way is not None:
            return prompts.under_way.end_s
        if not self._jobs:
            return None
        if self._change is not None:
            return self.now_s + decoding.step_cost()[0] / 1e3
        if prompts.planned is not None:
            boundary_s = self.now_s + decoding.step_cost()[0] / 1e3
            if decoding.next_end() <= decoding.step + 1:
                return boundary_s
            return boundary_s + prompts.planned.ms / 1e3 * self._slowdown
        after = self._admission_after() if prompts.waiting else -1
        if after > 0:
            return self.now_s + decoding.time_of(self._kv.room, after) / 1e3
        if after == 0:
            steps = 2 if self._overlaps else 1
            begins_s = self.now_s + decoding.time_of(self._kv.room, steps) / 1e3
            job = prompts.waiting[0]
            if job.prefix_ids or decoding.next_end() <= decoding.step + steps:
                return begins_s
            # What else may come until then only makes the pass longer.
            todo = min(job._context - job._prefilled, prompts.chunk_tokens)
            ms, _ = self.cost.prefill.cost(todo, after=job._prefilled)
            return begins_s + ms / 1e3 * self._slowdown
        return self.now_s + decoding.plan(self._kv.room) / 1e3

    def advance(self, until_s: float) -> None:
        """Runs every segment that ends by `until_s`. First tokens and ends are appended to the two lists, in order."""
        prompts = self._prompts
        while True:
            prefill = prompts.under_way
            if prefill is not None:
                if prefill.end_s > until_s:
                    return
                self._end_prefill(prefill)
            elif self._jobs:
                # At a boundary no step has been done since; most calls end here.
                if until_s <= self.now_s or not self._decode(until_s):
                    return
            else:
                if until_s > self.now_s:
                    self.now_s = until_s
                return
            if prompts.waiting or prompts.planned is not None or (prefill is not None and prefill.rest is not None):
                self._pass_boundary(prefill)
            if self._depths is not None and self._jobs and prompts.under_way is None:
                self._depths.choose()

    def stop(self, at_s: float) -> list[Job]:
        """Ends all work at `at_s`, to which it was advanced, and gives the jobs that are still here, in no order.

        The step or prefill under way has cost what its part until now did, to the totals and to its jobs. The server
        is of no use afterwards.
        """
        left = [
            *self._jobs.values(),
            *self._prompts.waiting,
            *(job for job in self._prompts.prefilling() if not job._gone),
        ]
        prefill = self._prompts.under_way
        if prefill is not None:
            _, spent_j = prefill.at(at_s)
            self._spend_on(prefill, at_s, spent_j)
        if self._jobs:
            part_ms = 0.0 if prefill is not None else (at_s - self.now_s) * 1e3
            self._decoding.stop(part_ms)
            if self._tell is not None:
                self._tell_of_steps(self._tell)
        self._prompts.under_way = self._prompts.planned = None
        self._prompts.waiting.clear()
        self._jobs.clear()
        return left

    # ---- prefill

    def _pass_boundary(self, ended: PrefillPass | None = None) -> None:
        """Begins what was planned, and plans what comes after it; `ended` is the pass that ended here, if one did."""
        prompts = self._prompts
        begins, prompts.planned = prompts.planned, None
        if begins is None and not (self._overlaps and self._jobs):
            begins = prompts.plan(None if ended is None else ended.rest)
        if begins is not None:
            ms, j = begins.ms, begins.j
            if self._jobs:
                # Nothing is computed while those who decode wait for their next step.
                resume_ms = self.cost.prefill.resume_ms
                ms, j = ms + resume_ms, j + self.cost.idle.watts(1) * resume_ms / 1e3
            begins.begin(self.now_s, ms / 1e3 * self._slowdown, j * self._energy_frac)
            prompts.under_way = begins
            for job, _ in begins.chunks:
                if job.prefill_started_s is None:
                    job.prefill_started_s = self.now_s
        if self._overlaps and self.busy:
            prompts.planned = prompts.plan(None if begins is None else begins.rest)

    def _end_prefill(self, prefill: PrefillPass) -> None:
        self.now_s = prefill.end_s
        self._spend_on(prefill, self.now_s, prefill.spent_j + prefill.todo_frac * prefill.energy_j)
        self._prompts.under_way = None
        if self._depths is not None:
            self._depths.prefilled(prefill.tokens)
        for job, _ in prefill.chunks:
            if job._gone:
                if self._prompts.planned is None or job is not self._prompts.planned.chunks[0][0]:
                    self._prompts.drop(job)
            elif job is not prefill.rest:
                self._join(job)

    def _spend_on(self, prefill: PrefillPass, until_s: float, spent_j: float) -> None:
        totals = self.totals
        totals.prefill_j += spent_j
        totals.prefill_s += until_s - prefill.start_s
        totals.prefill_tokens += prefill.tokens
        for job, todo in prefill.chunks:
            job.prefill_j += spent_j * todo / prefill.tokens
        if self._tell is not None:
            self._tell(Stretch(prefill.start_s, until_s, True, len(self._jobs), self.waiting, spent_j))

    def _join(self, job: Job) -> None:
        """A prefilled job enters the batch; its first token comes from the prefill itself."""
        if job.prefix_ids:
            self._kv.hold(job, len(job.prefix_ids))
        if job.first_token_s is None:
            job.first_token_s = self.now_s
            totals = self.totals
            totals.accepted_tokens += 1
            totals.first_tokens += 1
            self.first_tokens.append(job)
            if job.output_tokens <= 1:
                self._prompts.drop(job)
                self._finish(job)
                return
            self._draw(job)
            job._joined_tokens = 1
        elif self._depths is not None:
            self._depths.rejoins(job)
        self._kv.prefilling_tokens -= job._prefilled
        self._decoding.join(job)

    def _draw(self, job: Job, done: Sequence[int] = ()) -> None:
        if self._depths is not None:
            self._depths.draw(job, self._draws)
            return
        tokens = job.output_tokens - 1
        job._passes = passes = self._draws.passes(
            job.draw_key,
            tokens=tokens,
            accept_length=job.accept_length,
            spread=job.accept_spread,
            verify_tokens=self.cost.verify_tokens,
            done=done,
        )
        job._steps_needed = tokens if passes is None else passes.count

    # ---- decode

    def _decode(self, until_s: float) -> bool:
        """Runs planned steps that end by `until_s`, up to where a request may be taken; False if none ends by then."""
        decoding = self._decoding
        plan_ms = decoding.plan(self._kv.room)
        available_ms = (until_s - self.now_s) * 1e3 + _ROUNDING_MS
        after = self._admission_after() if self._prompts.waiting else -1
        if self._change is not None or self._prompts.planned is not None:
            took_ms = decoding.run(available_ms, 1)
        elif after >= 0:
            took_ms = decoding.run(available_ms, max(1, after))
        elif plan_ms <= available_ms:
            # Not by comparing again what each piece takes: sums round.
            took_ms = decoding.run(inf, decoding.plan_steps)
        else:
            took_ms = decoding.run(available_ms, decoding.plan_steps)
        if not took_ms:
            return False
        if self._tell is not None:
            self._tell_of_steps(self._tell)
        self.now_s += took_ms / 1e3
        while (job := decoding.due()) is not None:
            self._kv.release(job)
            decoding.leave(job)
            self._finish(job)
        self._make_change()
        while len(self._jobs) > 1 and self._kv.room < 0:
            self._retract()
        return True

    def _tell_of_steps(self, tell: Callable[[Stretch], None]) -> None:
        start_s, parts = self.now_s, self._decoding.parts
        assert parts is not None
        for ms, energy_j in parts:
            end_s = start_s + ms / 1e3
            tell(Stretch(start_s, end_s, False, len(self._jobs), len(self._prompts.waiting), energy_j))
            start_s = end_s
        parts.clear()

    def _admission_after(self) -> int:
        """Steps until the first waiting request may be taken, 0: at the next boundary; -1: not before one leaves."""
        if len(self._jobs) >= self.max_running_requests:
            return -1
        job = self._prompts.waiting[0]
        if self._kv.fits(job, 0):
            return 0
        steps = self._kv.steps_to_wait(job)
        return -1 if steps is None else steps

    def _finish(self, job: Job) -> None:
        job.finished_s = self.now_s
        job._gone = True
        self.totals.finished += 1
        self.finished.append(job)

    def _retract(self) -> None:
        """The KV cache is full: who has generated least, of those the longest prompt, goes back to the queue's end.

        (`ScheduleBatch.retract_decode` of SGLang 0.5.23.)
        """
        step = self.step
        job = min(self._jobs.values(), key=lambda running: (running.delivered(step), -running.prompt_tokens))
        delivered = job.delivered(step)
        self._kv.release(job)
        self._decoding.leave(job)
        self._kv.retracted()
        job._joined_tokens = delivered
        # Its prefill computes anew what it had generated.
        job._context = job.prompt_tokens + delivered
        job._prefilled = 0
        job.retractions += 1
        self.totals.retractions += 1
        self._prompts.waiting.append(job)
