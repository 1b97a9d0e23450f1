"""Runs one policy on one load over one fleet, event by event.

Events at the same instant happen in this order:

    servers     first tokens and ends, by the backend's place in the fleet
    marks       the two ends of the measured window, the end of the run
    polls       every backend's load, by its place in the fleet
    arrivals    in the order of the load

A policy therefore sees what had happened by the time a request came, and polled signals as old as the poll interval
makes them; it never sees an output length. Energy of a GPU is its servers' decode and prefill energy and idle power
whenever none of them works.

Randomness comes in streams of their own: the text types of a trace (`files.trace`), the accept lengths of each request
(`draws`, from `seed`), and the policy's (`PolicyContext.seed`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from math import inf

from selector.core.acceptance import AcceptancePrior
from selector.core.controller import Controller
from selector.core.depthbatch import UNTOLD
from selector.core.eligibility import can_ever_serve
from selector.core.policy import BackendSpec, Policy, PolicyContext
from selector.core.types import Finish, make_outcome, make_request_view
from selector.errors import PolicyError, SimulationError
from selector.simulator.arrivals import Arrivals, Load, OpenLoop
from selector.simulator.boards import Boards
from selector.simulator.collecting import collecting_seldom
from selector.simulator.draws import AcceptDraws
from selector.simulator.meter import Meter
from selector.simulator.polls import Polls
from selector.simulator.prefixcache import prompt_blocks
from selector.simulator.run import WHOLE_RUN, Fate, RequestRecord, Run, SimulatedRequest, Window
from selector.simulator.server import Job, ServerModel
from selector.simulator.timeline import Recorder
from selector.simulator.truth import Truth, truth_of

__all__ = ["Fate", "RequestRecord", "Run", "SimulatedRequest", "Simulation", "Window"]


class Simulation:
    """One run.

    `acceptance` is the truth: per (backend name, text type), where without an entry nothing is accepted, or a function
    of backend, request and time.
    """

    def __init__(
        self,
        context: PolicyContext,
        policy: Policy,
        acceptance: Mapping[tuple[str, str], AcceptancePrior] | Truth,
        *,
        seed: int = 0,
        poll_interval_s: float = 0.5,
        session_prefixes: bool = False,
        recorder: Recorder | None = None,
        controller: Controller | None = None,
    ) -> None:
        """`session_prefixes` takes prompts of one session to begin alike (see `prefixcache.prompt_blocks`).

        `controller` is one made from this context and policy; a subclass may keep a log.
        """
        self._controller = controller or Controller(context, policy, learns_later=True, explains=False)
        self._specs: tuple[BackendSpec, ...] = context.backends
        self._truth = truth_of(acceptance)
        # A server refuses what neither its context nor its KV cache could hold, and ends an answer there.
        self._longest = [spec.longest_tokens for spec in context.backends]
        self._longest_of_all = max(self._longest)
        self._session_prefixes = session_prefixes
        draws = AcceptDraws(seed)
        self._servers = [
            ServerModel(
                spec.cost,
                draws,
                max_running_requests=spec.max_running_requests,
                max_kv_tokens=spec.max_kv_tokens,
                max_context_tokens=spec.max_context_tokens,
                overlaps=spec.overlaps,
                tell=partial(recorder.worked, spec.name) if recorder is not None else None,
                backend=spec,
            )
            for spec in self._specs
        ]
        self._named = [spec.name for spec in self._specs]
        """The backends as the truth knows them at the live settings in force."""
        self._index = {spec.name: index for index, spec in enumerate(self._specs)}
        self._boards = Boards(self._specs, recorder)
        self._working = [False] * len(self._servers)
        self._heap: list[tuple[float, int, int]] = []
        self._version = [0] * len(self._servers)
        self._polls = Polls(self._specs, self._servers, self._controller.tracker, poll_interval_s)
        self._unpolled = self._polls.changed
        self._in_flight: dict[str, RequestRecord] = {}
        self._measured_in_flight = 0
        self._window = WHOLE_RUN
        self._arrivals: Arrivals = OpenLoop(()).start()
        self._run = Run(decisions_by_arm={spec.arm: 0 for spec in self._specs})

    def run(
        self,
        load: Load | Sequence[SimulatedRequest],
        *,
        window: Window = WHOLE_RUN,
        until_s: float = inf,
    ) -> Run:
        """Runs `load` (a sequence is an `OpenLoop`) to the last token, or to `until_s`.

        With a window that ends, the run ends when every request that arrived in it has. Once per simulation.

        Raises what the policy raises, `PolicyError` when it breaks its contract, and `SimulationError` when requests
        wait on servers that do nothing more.
        """
        self._arrivals = (OpenLoop(load) if isinstance(load, Sequence) else load).start()
        self._window = window
        with collecting_seldom():
            self._run_to(until_s)
        return self._run

    def _run_to(self, until_s: float) -> None:
        arrivals, window = self._arrivals, self._window
        heap, version = self._heap, self._version
        meter = Meter(self._servers, self._boards, self._run)
        marks = sorted(mark for mark in {window.from_s, window.to_s, until_s} if 0.0 < mark < inf)
        next_mark_s = marks[0] if marks else inf
        if window.from_s == 0.0:
            meter.begin(0.0)
        next_poll_s = self._polls.next_s
        now_s = 0.0
        while True:
            while heap and heap[0][2] != version[heap[0][1]]:
                heappop(heap)
            server_s = heap[0][0] if heap else inf
            arrival_s = arrivals.next_s
            if server_s == inf and arrival_s == inf:
                if self._in_flight:
                    raise SimulationError(self._stalled(now_s))
                break
            if server_s <= arrival_s and server_s <= next_poll_s and server_s <= next_mark_s:
                index = heap[0][1]
                now_s = server_s
                self._servers[index].advance(server_s)
                self._settle(index)
            elif next_mark_s <= next_poll_s and next_mark_s <= arrival_s:
                now_s = next_mark_s
                marks.pop(0)
                self._advance_all(now_s)
                if now_s == window.from_s:
                    meter.begin(now_s)
                if now_s == window.to_s:
                    meter.end(now_s)
                if now_s == until_s:
                    break
                next_mark_s = marks[0] if marks else inf
            elif next_poll_s <= arrival_s:
                now_s = next_poll_s
                next_poll_s = self._polls.poll(min(server_s, arrival_s, next_mark_s))
            else:
                # A client of a closed loop may be free since the rounding of an instant ago.
                now_s = max(now_s, arrival_s)
                arrived = arrivals.take()
                if arrived is not None:
                    self._arrive(arrived[1], now_s, arrived[0])
            if now_s >= window.to_s and self._measured_in_flight == 0:
                break
        self._close(meter, now_s)

    def _arrive(self, request: SimulatedRequest, now_s: float, draw_key: int) -> None:
        trace = request.trace
        measured = self._measures(now_s)
        run = self._run
        if not measured:
            run.outside += 1
        if trace.prompt_tokens + trace.output_tokens > self._longest_of_all:
            run.dropped += measured
            self._arrivals.ended(now_s)
            return
        seen = request.seen_text_type or request.text_type
        view = make_request_view(
            request_id=trace.request_id,
            arrival_s=now_s,
            prompt_tokens=trace.prompt_tokens,
            expected_output_tokens=self._controller.expected_output_tokens(
                seen, trace.max_output_tokens, request.seen_text_probabilities
            ),
            max_output_tokens=trace.max_output_tokens,
            text_type=seen,
            text_probabilities=request.seen_text_probabilities,
            slo_class=request.slo_class,
            tbt_target_ms=request.tbt_target_ms,
            session_key=trace.session_key,
            temperature=request.temperature,
            refine_key=request.refine_key,
        )
        decision = self._controller.decide(view, now_s)
        if decision.backend is None:
            self._arrivals.ended(now_s, refused=True)
            if measured:
                run.rejected += 1
                run.records.append(RequestRecord(request, now_s, Fate.REJECTED))
            return
        index = self._index[decision.backend]
        spec = self._specs[index]
        if not can_ever_serve(view, spec):
            problem = f"sent {trace.request_id} ({trace.prompt_tokens} prompt tokens) to {spec.name}, unfit for it"
            raise PolicyError("policy", problem, "choose among selector.core.eligibility.eligible")
        if measured:
            run.decisions_by_arm[spec.arm] += 1
            self._measured_in_flight += 1
        self._in_flight[trace.request_id] = RequestRecord(request, now_s)
        job = Job(
            key=trace.request_id,
            draw_key=draw_key,
            prompt_tokens=trace.prompt_tokens,
            output_tokens=min(trace.output_tokens, self._longest[index] - trace.prompt_tokens),
            max_new_tokens=trace.max_output_tokens,
            accept_length=1.0,
            accept_spread=0.0,
            arrived_s=now_s,
            told=UNTOLD if spec.own_depth is None else spec.own_depth.told(seen, request.tbt_target_ms),
        )
        if decision.settings and self._controller.settings.due(spec.name, decision.settings, now_s):
            self._change_setting(index, decision.settings, now_s)
        job.accept_length, job.accept_spread = self._accepts(index, request, now_s)
        if trace.prefix_hashes or self._session_prefixes:
            job.prefix_ids, job.prefix_block_tokens = prompt_blocks(trace, by_session=self._session_prefixes)
        server = self._servers[index]
        server.advance(now_s)
        server.enqueue(job, now_s)
        self._settle(index)

    def _change_setting(self, index: int, settings: Mapping[str, float], now_s: float) -> None:
        """A simulated server does at once what it is asked for: its next step is at the new setting."""
        spec, server = self._specs[index], self._servers[index]
        setting = spec.setting(settings)
        assert setting is not None
        self._named[index] = setting.named(spec.name)
        server.advance(now_s)
        server.change_setting(
            setting.step, lambda job: self._accepts(index, self._in_flight[str(job.key)].request, now_s), now_s
        )
        self._controller.settings_changed(spec.name, settings, now_s)

    def _accepts(self, index: int, request: SimulatedRequest, now_s: float) -> tuple[float, float]:
        truth = self._truth(self._named[index], request, now_s)
        return (1.0, 0.0) if truth is None else (truth.mean, truth.request_spread)

    def _settle(self, index: int) -> None:
        """Takes what a server has to tell after it advanced, and schedules its next event."""
        server = self._servers[index]
        self._unpolled.add(index)
        if server.finished:
            for job in server.finished:
                self._end(job, index)
            server.finished.clear()
        if server.first_tokens:
            server.first_tokens.clear()
        event_s = server.next_event_s()
        working = event_s is not None
        if working != self._working[index] and self._changed(index, working):
            event_s = server.next_event_s()
        version = self._version[index] = self._version[index] + 1
        if event_s is not None:
            heappush(self._heap, (event_s, index, version))

    def _changed(self, index: int, working: bool) -> bool:
        """A server started or stopped working: idle time, and the pace of those it shares a GPU with.

        Returns whether there are any: its own pace may then be another too.
        """
        self._working[index] = working
        at_s = self._servers[index].now_s
        self._boards.changed(index, working, at_s)
        neighbours = self._boards.neighbours[index]
        for other in neighbours:
            # What it did until now was at the old pace.
            self._servers[other].advance(at_s)
        if neighbours:
            for each in (index, *neighbours):
                self._servers[each].take_turns(self._boards.turns(each), at_s)
            for other in neighbours:
                self._settle(other)
        return bool(neighbours)

    def _advance_all(self, now_s: float) -> None:
        for index, server in enumerate(self._servers):
            server.advance(now_s)
            if server.finished:
                self._settle(index)

    def _end(self, job: Job, index: int) -> None:
        record = self._in_flight.pop(str(job.key))
        request, arrived_s = record.request, record.arrived_s
        spec = self._specs[index]
        first_s, finished_s, tokens = job.first_token_s, job.finished_s, job.output_tokens
        assert first_s is not None and finished_s is not None
        drafting = job.verify_passes > 0 and spec.cost.verify_tokens > 1
        outcome = make_outcome(
            request_id=request.trace.request_id,
            backend=spec.name,
            arm=spec.arm,
            text_type=request.seen_text_type or request.text_type,
            finish=Finish.DONE,
            prompt_tokens=job.prompt_tokens,
            accepted_tokens=tokens,
            dispatched_s=arrived_s,
            finished_s=finished_s,
            ttft_ms=1e3 * (first_s - arrived_s),
            tbt_ms=1e3 * (finished_s - first_s) / (tokens - 1) if tokens > 1 else None,
            verify_passes=job.verify_passes if drafting else None,
            accepted_drafts=job.accepted_drafts if drafting else None,
            tbt_target_ms=request.tbt_target_ms,
        )
        self._controller.end(outcome, finished_s)
        self._arrivals.ended(finished_s)
        if self._measures(arrived_s):
            self._measured_in_flight -= 1
            record.fate, record.outcome = Fate.DONE, outcome
            self._record(record, job)

    def _measures(self, arrived_s: float) -> bool:
        window = self._window
        return window.from_s <= arrived_s < window.to_s

    def _record(self, record: RequestRecord, job: Job) -> None:
        record.energy_j = job.decode_j + job.prefill_j
        record.cached_tokens = job.cached_tokens
        self._run.records.append(record)

    def _close(self, meter: Meter, now_s: float) -> None:
        """Ends the run at `now_s`, with whatever is still in flight."""
        run = self._run
        for server in self._servers:
            for job in server.stop(now_s):
                record = self._in_flight.pop(str(job.key))
                if self._measures(record.arrived_s):
                    run.unfinished += 1
                    self._record(record, job)
        self._boards.close(now_s)
        meter.end(now_s)

    def _stalled(self, now_s: float) -> str:
        waiting = {spec.name: s.waiting for spec, s in zip(self._specs, self._servers, strict=True) if s.waiting}
        where = ", ".join(f"{count} on {name}" for name, count in waiting.items())
        return (
            f"at {now_s:.3f} s {len(self._in_flight)} requests are in flight ({where or 'none waiting'}) "
            "and no server has anything to do"
        )
