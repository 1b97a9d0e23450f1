"""One emulated server: the server model on a clock, and the tokens it hands out.

The engine wakes at every boundary of the model (the end of a decode step or of a prefill), lets the model pass it, and
gives every request the tokens it got. Boundaries are deadlines: an engine that wakes late passes the same boundaries at
the same emulated instants, only later in real time. How much later is its loop lag.

    request ── submit ──▶ Generation ── more() ──▶ tokens so far, until it ended
                             ▲
                             └── abort: a decoding request ends with the step under way, since a real server finishes
                                 the step it has launched; a waiting one ends at once

Servers that share a GPU take turns (`ServerModel.take_turns`). A segment keeps the pace it began with: when a
neighbour starts or stops working, a step under way still ends as planned, and so does a prefill that directly follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from selector.core.acceptance import AcceptanceModel
from selector.core.depthbatch import UNTOLD
from selector.core.livesettings import ArmSetting
from selector.core.policy import BackendSpec
from selector.emulator.clock import Clock
from selector.emulator.generation import DuplicateRid, Generation, Order, QueueFull
from selector.emulator.gpu import EmulatedGpu
from selector.simulator.draws import AcceptDraws
from selector.simulator.server import ServerModel, Totals

_INTERVAL_STEPS = 40
"""SGLang's `--decode-log-interval`: throughput and the speculation gauges are means over this many decode steps."""
_LAG_SAMPLES = 50_000


@dataclass(slots=True, kw_only=True)
class RequestCounts:
    """Requests that ended, aborted ones too, and their tokens."""

    requests: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalMeans:
    """Means over the last full interval of decode steps; all 0 before the first."""

    tokens_per_s: float = 0.0
    accept_length: float = 0.0


class EmulatedEngine:
    """One server of a fleet. Not thread-safe; lives in one event loop."""

    def __init__(
        self,
        spec: BackendSpec,
        acceptance: AcceptanceModel,
        gpus: Sequence[EmulatedGpu],
        clock: Clock,
        *,
        seed: int = 0,
        max_queued_requests: int | None = None,
    ) -> None:
        self.spec = spec
        self.clock = clock
        self.max_queued_requests = max_queued_requests
        self.counts: dict[bool, RequestCounts] = {}
        """By whether the request streamed; a key is there once there was such a request."""
        self.aborted_requests = 0
        self.interval = IntervalMeans()
        self._acceptance = acceptance
        self._acceptance_arm = spec.arm
        """The arm as the acceptance model knows it at the live settings in force."""
        self._gpus = tuple(gpus)
        self._model = ServerModel(
            spec.cost,
            AcceptDraws(seed),
            max_running_requests=spec.max_running_requests,
            max_kv_tokens=spec.max_kv_tokens,
            max_context_tokens=spec.max_context_tokens,
            overlaps=spec.overlaps,
            start_s=clock.now_s(),
            backend=spec,
        )
        self._live: dict[str, Generation] = {}
        self._leaving: list[Generation] = []
        self._working = False
        self._boundary_s = 0.0
        self._step = 0
        self._interval_start = (0, clock.now_s(), 0.0, 0.0)
        self._lags_ms: deque[float] = deque(maxlen=_LAG_SAMPLES)
        for gpu in self._gpus:
            gpu.attach(self, 1.0 / len(self._gpus))

    # ---- what is there

    @property
    def running(self) -> int:
        """Requests decoding."""
        return self._model.batch

    @property
    def waiting(self) -> int:
        """Requests waiting or prefilling."""
        return self._model.waiting

    @property
    def kv_tokens(self) -> int:
        """Tokens in the KV cache."""
        return int(self._model.kv_tokens)

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens that wait for their prefill to begin."""
        return self._model.queued_tokens

    @property
    def totals(self) -> Totals:
        """What the server has done so far."""
        return self._model.totals

    @property
    def drafts(self) -> bool:
        """Whether the arm drafts."""
        return self.spec.cost.verify_tokens > 1

    @property
    def depth(self) -> int:
        """Tokens drafted per request and step, at present."""
        return self._model.depth

    @property
    def mean_accept_length(self) -> float | None:
        """Tokens per request and step since the start; `None` before the first step."""
        moments = self._model.totals.moments
        return moments[5] / moments[1] if moments[1] else None

    def accept_rate(self, accept_length: float) -> float:
        """Share of the proposed drafts that an accept length stands for."""
        return max(0.0, accept_length - 1.0) / (self.spec.cost.verify_tokens - 1) if self.drafts else 0.0

    @property
    def boundaries(self) -> int:
        """Boundaries whose lag is known, 50,000 at most."""
        return len(self._lags_ms)

    def energy_j(self, at_s: float) -> tuple[float, float]:
        """(decode, prefill) energy until `at_s`; the segment under way counts in proportion."""
        return self._model.energy_j(at_s)

    def lag_ms(self, *quantiles: float) -> tuple[float, ...]:
        """Quantiles of how late the engine woke, in real ms, over the last boundaries; 0 without any."""
        lags = sorted(self._lags_ms)
        if not lags:
            return (0.0,) * len(quantiles)
        return tuple(lags[min(len(lags) - 1, int(quantile * len(lags)))] for quantile in quantiles)

    # ---- what happens

    def submit(self, order: Order) -> Generation:
        """Takes a request. Raises `QueueFull` or `DuplicateRid`."""
        self.clock.run_due()
        now_s = self.clock.now_s()
        if order.rid in self._live:
            raise DuplicateRid(f"Duplicate request ID detected: {order.rid}")
        if self.max_queued_requests is not None and self._model.waiting + 1 > self.max_queued_requests:
            raise QueueFull("The request queue is full.")
        accept_length, spread = self._accepts(order.text_type)
        own = self.spec.own_depth
        generation = Generation(
            order,
            accept_length=accept_length,
            accept_spread=spread,
            arrived_s=now_s,
            told=UNTOLD if own is None else own.told(order.told_text_type, order.tbt_target_ms),
        )
        self._live[order.rid] = generation
        if self._working:
            self._model.enqueue(generation.job, now_s)
        else:
            self._start(now_s)
            self._model.advance(now_s)
            self._model.enqueue(generation.job, now_s)
            self._plan()
        return generation

    def _accepts(self, text_type: str) -> tuple[float, float]:
        if not self.drafts:
            return 1.0, 0.0
        arm = self._acceptance_arm
        return self._acceptance.accept_length(arm, text_type), self._acceptance.request_spread(arm, text_type)

    def change_setting(self, setting: ArmSetting) -> None:
        """From the next step on, a live setting of the arm is another."""
        self.clock.run_due()
        self._acceptance_arm = setting.named(self.spec.arm)
        now_s = self.clock.now_s()
        if not self._working:
            self._model.advance(now_s)
        self._model.change_setting(
            setting.step, lambda job: self._accepts(cast(Generation, job.key).order.text_type), now_s
        )

    def abort(self, generation: Generation) -> None:
        """Ends a request early; nothing happens if it has ended."""
        if generation.ended:
            return
        if any(job is generation.job for job in self._model.running):
            if generation not in self._leaving:
                self._leaving.append(generation)
        else:
            now_s = self.clock.now_s()
            self._model.remove(generation, now_s)
            self._close(generation, now_s, aborted=True)

    def abort_rid(self, rid: str) -> None:
        """Ends a known request and, as SGLang does, every other whose id begins with that one's."""
        if rid in self._live:
            for generation in [live for known, live in self._live.items() if known.startswith(rid)]:
                self.abort(generation)

    def abort_all(self) -> None:
        """Ends every request."""
        for generation in list(self._live.values()):
            self.abort(generation)

    def _pass_boundary(self) -> None:
        at_s = self._boundary_s
        model = self._model
        self._lags_ms.append((self.clock.now_s() - at_s) / self.clock.time_scale * 1e3)
        model.advance(at_s)
        self._deliver(at_s)
        for generation in self._leaving:
            if model.remove(generation, at_s):
                self._close(generation, at_s, aborted=True)
        self._leaving.clear()
        self._measure(at_s)
        if model.busy:
            self._plan()
        else:
            self._working = False
            for gpu in self._gpus:
                gpu.stopped(at_s)

    def _start(self, at_s: float) -> None:
        self._working = True
        for gpu in self._gpus:
            gpu.started(at_s)
        self._keep_pace()

    def _plan(self) -> None:
        """Wakes at the end of the segment that begins now."""
        self._keep_pace()
        boundary_s = self._model.next_boundary_s()
        assert boundary_s is not None
        self._boundary_s = boundary_s
        self.clock.call_at(boundary_s, self._pass_boundary)

    def _keep_pace(self) -> None:
        self._model.take_turns(max(1, *(gpu.busy for gpu in self._gpus)), self._model.now_s)

    def _deliver(self, at_s: float) -> None:
        model = self._model
        for job in model.first_tokens:
            cast(Generation, job.key).give(1)
        model.first_tokens.clear()
        step = model.step
        if step != self._step:
            self._step = step
            for job in model.running:
                cast(Generation, job.key).give(job.delivered(step))
        for job in model.finished:
            generation = cast(Generation, job.key)
            generation.give(job.output_tokens)
            self._close(generation, at_s, aborted=False)
        model.finished.clear()

    def _close(self, generation: Generation, at_s: float, *, aborted: bool) -> None:
        order = generation.order
        del self._live[order.rid]
        self.aborted_requests += aborted
        counts = self.counts.setdefault(order.stream, RequestCounts())
        counts.requests += 1
        counts.prompt_tokens += order.prompt_tokens
        counts.generated_tokens += generation.delivered
        generation.close(at_s, aborted=aborted)

    def _measure(self, at_s: float) -> None:
        start_step, start_s, start_request_steps, start_tokens = self._interval_start
        if self._step - start_step < _INTERVAL_STEPS:
            return
        moments = self._model.totals.moments
        tokens = moments[5] - start_tokens
        self.interval = IntervalMeans(
            tokens_per_s=tokens / (at_s - start_s), accept_length=tokens / (moments[1] - start_request_steps)
        )
        self._interval_start = (self._step, at_s, moments[1], moments[5])
