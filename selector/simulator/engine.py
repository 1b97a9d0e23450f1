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
from typing import NamedTuple

from selector.core.acceptance import AcceptancePrior
from selector.core.controller import Controller
from selector.core.eligibility import can_ever_serve
from selector.core.policy import BackendSpec, Policy, PolicyContext
from selector.core.tracker import LoadSignal
from selector.core.types import Finish, Outcome, RequestView
from selector.errors import PolicyError, SimulationError
from selector.simulator.arrivals import Arrivals, Load, OpenLoop
from selector.simulator.boards import Boards
from selector.simulator.draws import AcceptDraws
from selector.simulator.meter import Meter
from selector.simulator.run import WHOLE_RUN, Fate, RequestRecord, Run, SimulatedRequest, Window
from selector.simulator.server import Job, ServerModel
from selector.simulator.timeline import Recorder

__all__ = ["Fate", "RequestRecord", "Run", "SimulatedRequest", "Simulation", "Window"]


class _InFlight(NamedTuple):
    """A request that was dispatched."""

    request: SimulatedRequest
    arrived_s: float
    measured: bool
    """It arrived in the window."""


class Simulation:
    """One run. `acceptance` is the truth per (backend name, text type); without an entry nothing is accepted."""

    def __init__(
        self,
        context: PolicyContext,
        policy: Policy,
        acceptance: Mapping[tuple[str, str], AcceptancePrior],
        *,
        seed: int = 0,
        poll_interval_s: float = 0.5,
        recorder: Recorder | None = None,
    ) -> None:
        self._controller = Controller(context, policy)
        self._specs: tuple[BackendSpec, ...] = context.backends
        self._acceptance = acceptance
        self._largest_context = max(spec.max_context_tokens for spec in context.backends)
        self._poll_interval_s = poll_interval_s
        draws = AcceptDraws(seed)
        self._servers = [
            ServerModel(
                spec.cost,
                draws,
                max_running_requests=spec.max_running_requests,
                max_kv_tokens=spec.max_kv_tokens,
                tell=partial(recorder.worked, spec.name) if recorder is not None else None,
            )
            for spec in self._specs
        ]
        self._index = {spec.name: index for index, spec in enumerate(self._specs)}
        self._boards = Boards(self._specs, recorder)
        self._working = [False] * len(self._servers)
        self._heap: list[tuple[float, int, int]] = []
        self._version = [0] * len(self._servers)
        self._in_flight: dict[str, _InFlight] = {}
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
        self._arrivals = arrivals = (OpenLoop(load) if isinstance(load, Sequence) else load).start()
        self._window = window
        heap, version = self._heap, self._version
        meter = Meter(self._servers, self._boards, self._run)
        marks = sorted(mark for mark in {window.from_s, window.to_s, until_s} if 0.0 < mark < inf)
        next_mark_s = marks[0] if marks else inf
        if window.from_s == 0.0:
            meter.begin(0.0)
        next_poll_s = self._poll_interval_s
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
                self._poll(next_poll_s)
                next_poll_s += self._poll_interval_s
            else:
                # A client of a closed loop may be free since the rounding of an instant ago.
                now_s = max(now_s, arrival_s)
                arrived = arrivals.take()
                if arrived is not None:
                    self._arrive(arrived[1], now_s, arrived[0])
            if now_s >= window.to_s and self._measured_in_flight == 0:
                break
        self._close(meter, now_s)
        return self._run

    def _arrive(self, request: SimulatedRequest, now_s: float, draw_key: int) -> None:
        trace = request.trace
        measured = self._window.from_s <= now_s < self._window.to_s
        run = self._run
        if not measured:
            run.outside += 1
        if trace.prompt_tokens + trace.output_tokens > self._largest_context:
            run.dropped += measured
            self._arrivals.ended(now_s)
            return
        seen = request.seen_text_type or request.text_type
        view = RequestView(
            request_id=trace.request_id,
            arrival_s=now_s,
            prompt_tokens=trace.prompt_tokens,
            expected_output_tokens=self._controller.expected_output_tokens(seen, trace.max_output_tokens),
            max_output_tokens=trace.max_output_tokens,
            text_type=seen,
            text_probabilities=request.seen_text_probabilities,
            slo_class=request.slo_class,
            tbt_target_ms=request.tbt_target_ms,
            session_key=trace.session_key,
        )
        decision = self._controller.decide(view, now_s)
        if decision.backend is None:
            self._arrivals.ended(now_s, refused=True)
            if measured:
                run.rejected += 1
                run.records.append(RequestRecord(request=request, arrived_s=now_s, fate=Fate.REJECTED))
            return
        index = self._index[decision.backend]
        spec = self._specs[index]
        if not can_ever_serve(view, spec):
            problem = f"sent {trace.request_id} ({trace.prompt_tokens} prompt tokens) to {spec.name}, unfit for it"
            raise PolicyError("policy", problem, "choose among selector.core.eligibility.eligible")
        if measured:
            run.decisions_by_arm[spec.arm] += 1
            self._measured_in_flight += 1
        self._in_flight[trace.request_id] = _InFlight(request, now_s, measured)
        truth = self._acceptance.get((spec.name, request.text_type))
        server = self._servers[index]
        server.advance(now_s)
        server.enqueue(
            Job(
                key=trace.request_id,
                draw_key=draw_key,
                prompt_tokens=trace.prompt_tokens,
                # A server ends an answer where its context ends.
                output_tokens=min(trace.output_tokens, spec.max_context_tokens - trace.prompt_tokens),
                accept_length=truth.mean if truth else 1.0,
                accept_spread=truth.request_spread if truth else 0.0,
                arrived_s=now_s,
            ),
            now_s,
        )
        self._settle(index)

    def _settle(self, index: int) -> None:
        """Takes what a server has to tell after it advanced, and schedules its next event."""
        server = self._servers[index]
        if server.finished:
            for job in server.finished:
                self._end(job, index)
            server.finished.clear()
        server.first_tokens.clear()
        if server.busy != self._working[index]:
            self._changed(index, server.busy)
        self._version[index] += 1
        event_s = server.next_event_s()
        if event_s is not None:
            heappush(self._heap, (event_s, index, self._version[index]))

    def _changed(self, index: int, working: bool) -> None:
        """A server started or stopped working: idle time, and the pace of those it shares a GPU with."""
        self._working[index] = working
        at_s = self._servers[index].now_s
        self._boards.changed(index, working, at_s)
        neighbours = self._boards.neighbours[index]
        for other in neighbours:
            # What it did until now was at the old pace.
            self._servers[other].advance(at_s)
        if neighbours:
            for each in (index, *neighbours):
                self._servers[each].set_slowdown(self._boards.turns(each))
            for other in neighbours:
                self._settle(other)

    def _advance_all(self, now_s: float) -> None:
        for index, server in enumerate(self._servers):
            server.advance(now_s)
            if server.finished:
                self._settle(index)

    def _end(self, job: Job, index: int) -> None:
        request, arrived_s, measured = self._in_flight.pop(str(job.key))
        spec = self._specs[index]
        assert job.first_token_s is not None and job.finished_s is not None
        tokens = job.output_tokens
        drafting = spec.cost.verify_tokens > 1 and job.verify_passes > 0
        outcome = Outcome(
            request_id=request.trace.request_id,
            backend=spec.name,
            arm=spec.arm,
            text_type=request.seen_text_type or request.text_type,
            finish=Finish.DONE,
            prompt_tokens=job.prompt_tokens,
            accepted_tokens=tokens,
            dispatched_s=arrived_s,
            finished_s=job.finished_s,
            ttft_ms=1e3 * (job.first_token_s - arrived_s),
            tbt_ms=1e3 * (job.finished_s - job.first_token_s) / (tokens - 1) if tokens > 1 else None,
            verify_passes=job.verify_passes if drafting else None,
            accepted_drafts=job.accepted_drafts if drafting else None,
        )
        self._controller.end(outcome, job.finished_s)
        self._arrivals.ended(job.finished_s)
        if measured:
            self._measured_in_flight -= 1
            self._run.records.append(
                RequestRecord(
                    request=request,
                    arrived_s=arrived_s,
                    fate=Fate.DONE,
                    outcome=outcome,
                    energy_j=job.decode_j + job.prefill_j,
                )
            )

    def _poll(self, now_s: float) -> None:
        for spec, server in zip(self._specs, self._servers, strict=True):
            signal = LoadSignal(running=server.batch, waiting=server.waiting, kv_tokens=server.kv_tokens)
            self._controller.tracker.polled(spec.name, signal, now_s)

    def _close(self, meter: Meter, now_s: float) -> None:
        """Ends the run at `now_s`, with whatever is still in flight."""
        run = self._run
        for server in self._servers:
            for job in server.stop(now_s):
                request, arrived_s, measured = self._in_flight.pop(str(job.key))
                if measured:
                    run.unfinished += 1
                    energy_j = job.decode_j + job.prefill_j
                    run.records.append(
                        RequestRecord(request=request, arrived_s=arrived_s, fate=Fate.UNFINISHED, energy_j=energy_j)
                    )
        self._boards.close(now_s)
        meter.end(now_s)

    def _stalled(self, now_s: float) -> str:
        waiting = {spec.name: s.waiting for spec, s in zip(self._specs, self._servers, strict=True) if s.waiting}
        where = ", ".join(f"{count} on {name}" for name, count in waiting.items())
        return (
            f"at {now_s:.3f} s {len(self._in_flight)} requests are in flight ({where or 'none waiting'}) "
            "and no server has anything to do"
        )
