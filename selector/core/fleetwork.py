"""What the cost model says the backends of a fleet do, from what is sent to them: decode steps and joules over time.

A backend with b requests at a mean context of c tokens makes steps of T(b, c) and E(b, c), one after the other, except
while it prefills. Every prompt adds its prefill time to what is ahead, and that is worked off first. Between two
changes of its load all of this is constant, so each change costs one lookup:

    steps made        n += dt / T(b, c)                     dt: time that was left for decoding
    joules a request  v += dt · E(b, c) / (T(b, c) · b)     requests of one batch share a step alike
    joules of others  b_others times as much

A backend whose GPU is also worked on by k − 1 others gets 1/k of the time: servers of one GPU take turns.

The model is the profile's, never corrected: what is observed is compared with it (`correction`). It is rough where it
does not know better: prompts are taken to be prefilled whole (no cached prefix), contexts to be half through the
answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from selector.core.contention import neighbours
from selector.core.policy import BackendSpec
from selector.core.types import RequestView

_KEPT_CHANGES = 1024
"""Changes of load of a backend that are remembered, at least: for how long its steps can be told."""


class _Lane:
    """One backend."""

    __slots__ = (
        "ahead_s",
        "context_tokens",
        "crowd",
        "joules",
        "neighbours",
        "other_joules",
        "others",
        "own",
        "spec",
        "step",
        "steps",
        "steps_at",
        "steps_per_s",
        "then_s",
        "times",
        "watts",
    )

    def __init__(self, spec: BackendSpec) -> None:
        self.spec = spec
        self.step = spec.cost.step
        self.neighbours: tuple[_Lane, ...] = ()
        """Backends that share a GPU with it, itself left out."""
        self.own = self.others = 0
        self.context_tokens = 0.0
        """Of all own requests together."""
        self.ahead_s = 0.0
        """Prefill that is not done yet."""
        self.crowd = 1
        self.steps_per_s = self.watts = 0.0
        """While decoding; watts of one request."""
        self.steps = self.joules = self.other_joules = 0.0
        self.then_s = 0.0
        self.times = [0.0]
        self.steps_at = [0.0]

    def advance(self, now_s: float) -> None:
        """Works until `now_s`."""
        passed_s = now_s - self.then_s
        if passed_s <= 0.0:
            return
        self.then_s = now_s
        if self.own + self.others:
            passed_s /= self.crowd
            prefill_s = min(self.ahead_s, passed_s)
            self.ahead_s -= prefill_s
            passed_s -= prefill_s
            self.steps += passed_s * self.steps_per_s
            drawn = passed_s * self.watts
            self.joules += drawn
            self.other_joules += drawn * self.others
        self.times.append(now_s)
        self.steps_at.append(self.steps)
        if len(self.times) >= 2 * _KEPT_CHANGES:
            del self.times[:_KEPT_CHANGES], self.steps_at[:_KEPT_CHANGES]

    def changed(self) -> None:
        """Takes the pace of the load that there is now."""
        requests = self.own + self.others
        if not requests:
            self.ahead_s = self.steps_per_s = self.watts = self.context_tokens = 0.0
            return
        # Others are taken to be like ours, or short where there are none of ours to go by.
        context = self.context_tokens / self.own if self.own else 0.0
        batch = min(requests, self.spec.max_running_requests)
        step_ms, step_j = self.step.step(batch, context)
        self.steps_per_s = 1e3 / step_ms
        self.watts = step_j * self.steps_per_s / requests


class FleetWork:
    """All backends. No clock: calls carry `now_s`, which never falls. Unknown backends raise `KeyError`."""

    def __init__(self, backends: Iterable[BackendSpec]) -> None:
        """With the costs of the profile."""
        specs = list(backends)
        lanes = [_Lane(spec) for spec in specs]
        for lane, others in zip(lanes, neighbours(specs), strict=True):
            lane.neighbours = tuple([lanes[other] for other in others])
        self._lanes = {lane.spec.name: lane for lane in lanes}

    def started(self, backend: str, request: RequestView, now_s: float) -> float:
        """A request was sent to a backend; returns the joules of its prefill."""
        lane = self._advanced(backend, now_s)
        was_busy = lane.own + lane.others > 0
        lane.own += 1
        lane.context_tokens += _context(request)
        stall_ms, prefill_j = lane.spec.cost.prefill.stall(request.prompt_tokens)
        lane.ahead_s += stall_ms / 1e3
        self._changed(lane, was_busy)
        return prefill_j

    def ended(self, backend: str, request: RequestView, now_s: float) -> None:
        """A request that was started is there no more."""
        lane = self._advanced(backend, now_s)
        lane.own -= 1
        lane.context_tokens = max(0.0, lane.context_tokens - _context(request)) if lane.own else 0.0
        self._changed(lane, True)

    def others(self, backend: str, requests: int, now_s: float) -> None:
        """So many requests of others are on a backend."""
        lane = self._lanes[backend]
        if requests == lane.others:
            return
        self._advanced(backend, now_s)
        was_busy = lane.own + lane.others > 0
        lane.others = requests
        self._changed(lane, was_busy)

    def settings_changed(self, backend: str, settings: Mapping[str, float], now_s: float) -> None:
        """Live settings that were profiled came into force: steps cost what they cost at these."""
        lane = self._advanced(backend, now_s)
        setting = lane.spec.setting(settings)
        if setting is None:
            raise KeyError(f"{backend} at {dict(settings)}")
        lane.step = setting.step
        lane.changed()

    def requests(self, backend: str) -> int:
        """On a backend now, those of others included."""
        lane = self._lanes[backend]
        return lane.own + lane.others

    def joules_per_request(self, backend: str, now_s: float) -> float:
        """Decode joules until `now_s` of a request that had been on the backend from the beginning: never falls."""
        return self._advanced(backend, now_s).joules

    def joules_of_others(self, backend: str, now_s: float) -> float:
        """Decode joules until `now_s` of all requests of others together: never falls."""
        return self._advanced(backend, now_s).other_joules

    def steps_between(self, backend: str, from_s: float, to_s: float) -> float | None:
        """Decode steps in that time; `None` when it lies too far back or ahead to tell."""
        lane = self._lanes[backend]
        if from_s < lane.times[0] or to_s > lane.times[-1]:
            return None
        return _steps_at(lane, to_s) - _steps_at(lane, from_s)

    def _advanced(self, backend: str, now_s: float) -> _Lane:
        lane = self._lanes[backend]
        lane.advance(now_s)
        return lane

    def _changed(self, lane: _Lane, was_busy: bool) -> None:
        lane.changed()
        busy = lane.own + lane.others > 0
        if busy == was_busy or not lane.neighbours:
            return
        for neighbour in lane.neighbours:
            neighbour.advance(lane.then_s)
        for each in (lane, *lane.neighbours):
            each.crowd = self._crowd(each)

    def _crowd(self, lane: _Lane) -> int:
        """Backends at work on the busiest of its GPUs, itself included."""
        working = [other for other in lane.neighbours if other.own + other.others]
        return 1 + max((sum(gpu in other.spec.gpus for other in working) for gpu in lane.spec.gpus), default=0)


def _steps_at(lane: _Lane, at_s: float) -> float:
    """Steps at a moment between the first and the last change kept, on the line between the changes around it."""
    times, steps = lane.times, lane.steps_at
    after = bisect_left(times, at_s)
    if times[after] == at_s:
        return steps[after]
    frac = (at_s - times[after - 1]) / (times[after] - times[after - 1])
    return steps[after - 1] + frac * (steps[after] - steps[after - 1])


def _context(request: RequestView) -> float:
    """Halfway through the expected answer."""
    return request.prompt_tokens + 0.5 * request.expected_output_tokens
