"""Runs one policy on one trace over one fleet, event by event.

Events at the same instant happen in this order: servers (first tokens, ends), polls, arrivals. A policy therefore sees
what had happened by the time a request came, and polled signals as old as the poll interval makes them; it never sees
an output length. Energy of a GPU is its servers' decode and prefill energy and idle power whenever none of them works.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from selector.core.acceptance import AcceptancePrior
from selector.core.controller import Controller
from selector.core.eligibility import can_ever_serve
from selector.core.policy import BackendSpec, Policy, PolicyContext
from selector.core.tracker import LoadSignal
from selector.core.types import Finish, Outcome, RequestView
from selector.errors import PolicyError
from selector.files.trace import TraceRequest
from selector.simulator.draws import AcceptDraws
from selector.simulator.server import Job, ServerModel


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRequest:
    """A trace request with what the run adds to it."""

    trace: TraceRequest
    text_type: str
    """The true one: it decides what is accepted."""
    slo_class: str
    tbt_target_ms: float | None
    seen_text_type: str | None = None
    """What the policy is told; `None` tells it the truth."""
    seen_text_probabilities: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """How one request went. `outcome` is `None` for a rejected one."""

    request: SimulatedRequest
    outcome: Outcome | None
    energy_j: float = 0.0
    """Its share of decode and prefill energy; idle power belongs to nobody."""


@dataclass(slots=True, kw_only=True)
class Run:
    """A finished simulation."""

    records: list[RequestRecord] = field(default_factory=list)
    dropped: int = 0
    """Requests over every backend's context, which no policy saw."""
    decisions_by_arm: dict[str, int] = field(default_factory=dict)
    decode_j: float = 0.0
    prefill_j: float = 0.0
    idle_j: float = 0.0
    extrapolated_j: float = 0.0
    accepted_tokens: int = 0
    duration_s: float = 0.0
    retractions: int = 0


class _Gpu:
    """Idle time of one GPU: whenever none of its servers works."""

    __slots__ = ("busy", "idle_s", "idle_w", "servers", "since_s")

    def __init__(self) -> None:
        self.servers: list[int] = []
        self.busy = 0
        self.idle_s = 0.0
        self.idle_w = 0.0
        self.since_s = 0.0

    def started(self, at_s: float) -> None:
        if self.busy == 0:
            self.idle_s += at_s - self.since_s
        self.busy += 1

    def stopped(self, at_s: float) -> None:
        self.busy -= 1
        if self.busy == 0:
            self.since_s = at_s


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
    ) -> None:
        self._controller = Controller(context, policy)
        self._specs: tuple[BackendSpec, ...] = context.backends
        self._acceptance = acceptance
        self._largest_context = max(spec.max_context_tokens for spec in context.backends)
        self._poll_interval_s = poll_interval_s
        draws = AcceptDraws(seed)
        self._servers = [
            ServerModel(
                spec.cost, draws, max_running_requests=spec.max_running_requests, max_kv_tokens=spec.max_kv_tokens
            )
            for spec in self._specs
        ]
        self._index = {spec.name: index for index, spec in enumerate(self._specs)}
        self._gpus: dict[str, _Gpu] = {}
        for index, spec in enumerate(self._specs):
            for gpu in spec.gpus:
                self._gpus.setdefault(gpu, _Gpu()).servers.append(index)
        for shared in self._gpus.values():
            shared.idle_w = self._specs[shared.servers[0]].cost.idle.watts(len(shared.servers))
        self._working = [False] * len(self._servers)
        self._heap: list[tuple[float, int, int]] = []
        self._version = [0] * len(self._servers)
        self._in_flight: dict[str, SimulatedRequest] = {}
        self._run = Run(decisions_by_arm={spec.arm: 0 for spec in self._specs})

    def run(self, requests: Sequence[SimulatedRequest]) -> Run:
        """Runs `requests`, which must be in order of arrival, to the last token."""
        next_poll_s = self._poll_interval_s
        arrived = 0
        now_s = 0.0
        heap = self._heap
        while True:
            while heap and heap[0][2] != self._version[heap[0][1]]:
                heappop(heap)
            server_s = heap[0][0] if heap else inf
            arrival_s = requests[arrived].trace.arrival_s if arrived < len(requests) else inf
            if server_s == inf and arrival_s == inf:
                break
            if server_s <= arrival_s and server_s <= next_poll_s:
                index = heap[0][1]
                now_s = server_s
                self._servers[index].advance(server_s)
                self._settle(index)
            elif next_poll_s <= arrival_s:
                now_s = next_poll_s
                self._poll(next_poll_s)
                next_poll_s += self._poll_interval_s
            else:
                now_s = arrival_s
                self._arrive(requests[arrived], arrival_s, arrived)
                arrived += 1
        self._close(now_s)
        return self._run

    def _arrive(self, request: SimulatedRequest, now_s: float, draw_key: int) -> None:
        trace = request.trace
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
        if trace.prompt_tokens + trace.output_tokens > self._largest_context:
            self._run.dropped += 1
            return
        decision = self._controller.decide(view, now_s)
        if decision.backend is None:
            self._run.records.append(RequestRecord(request=request, outcome=None))
            return
        index = self._index[decision.backend]
        spec = self._specs[index]
        if not can_ever_serve(view, spec):
            problem = f"sent {trace.request_id} ({trace.prompt_tokens} prompt tokens) to {spec.name}, unfit for it"
            raise PolicyError("policy", problem, "choose among selector.core.eligibility.eligible")
        self._run.decisions_by_arm[spec.arm] += 1
        self._in_flight[trace.request_id] = request
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
        self._schedule(index)

    def _schedule(self, index: int) -> None:
        self._version[index] += 1
        event_s = self._servers[index].next_event_s()
        if event_s is not None:
            heappush(self._heap, (event_s, index, self._version[index]))

    def _changed(self, index: int, working: bool) -> None:
        """A server started or stopped working: idle time, and the pace of those it shares a GPU with."""
        self._working[index] = working
        at_s = self._servers[index].now_s
        for name in self._specs[index].gpus:
            gpu = self._gpus[name]
            if working:
                gpu.started(at_s)
            else:
                gpu.stopped(at_s)
            neighbours = [other for other in gpu.servers if other != index]
            for other in neighbours:
                # What it did until now was at the old pace.
                self._servers[other].advance(at_s)
            if neighbours:
                for each in gpu.servers:
                    self._servers[each].set_slowdown(max(1, gpu.busy))
            for other in neighbours:
                self._settle(other)

    def _end(self, job: Job, index: int) -> None:
        request = self._in_flight.pop(str(job.key))
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
            dispatched_s=job.arrived_s,
            finished_s=job.finished_s,
            ttft_ms=1e3 * (job.first_token_s - job.arrived_s),
            tbt_ms=1e3 * (job.finished_s - job.first_token_s) / (tokens - 1) if tokens > 1 else None,
            verify_passes=job.verify_passes if drafting else None,
            accepted_drafts=job.accepted_drafts if drafting else None,
        )
        self._controller.end(outcome, job.finished_s)
        self._run.accepted_tokens += tokens
        self._run.records.append(RequestRecord(request=request, outcome=outcome, energy_j=job.decode_j + job.prefill_j))

    def _poll(self, now_s: float) -> None:
        for spec, server in zip(self._specs, self._servers, strict=True):
            signal = LoadSignal(running=server.batch, waiting=server.waiting, kv_tokens=server.kv_tokens)
            self._controller.tracker.polled(spec.name, signal, now_s)

    def _close(self, now_s: float) -> None:
        run = self._run
        run.duration_s = now_s
        for gpu in self._gpus.values():
            if gpu.busy == 0:
                gpu.idle_s += now_s - gpu.since_s
            run.idle_j += gpu.idle_s * gpu.idle_w
        for server in self._servers:
            totals = server.totals
            run.decode_j += totals.decode_j
            run.prefill_j += totals.prefill_j
            run.extrapolated_j += totals.extrapolated_j
            run.retractions += totals.retractions
