"""Folds what happens (dispatches, ends, polls, health) into the fleet view that policies read.

The router and the simulator drive the same tracker with the same calls, so that a policy sees the same view for the
same history. The tracker has no clock: every call carries `now_s`.

    dispatched ──▶ finished           one of each per request
    polled, health_changed            any time

Views are immutable and rebuilt only when their backend changed, so a decision on a large quiet fleet is cheap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from selector.core.policy import BackendSpec
from selector.core.types import BackendView, FleetView, LoadGroup, RequestView


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSignal:
    """What one poll of `/v1/loads` said, summed over a backend's ranks."""

    running: int
    waiting: int
    kv_tokens: float | None = None
    max_running_requests: int | None = None
    max_kv_tokens: int | None = None


class OutputLengthModel:
    """Expected output length by text type: a running mean of finished requests, bounded by the client's maximum.

    Starts at `prior_tokens` with the weight of `prior_requests` requests.
    """

    def __init__(self, *, prior_tokens: float = 256.0, prior_requests: float = 20.0) -> None:
        self._prior = (prior_tokens * prior_requests, prior_requests)
        self._sums: dict[str, tuple[float, float]] = {}

    def expected(self, text_type: str, max_output_tokens: int | None) -> float:
        """Expected answer of a new request, at least 1 token."""
        total, count = self._sums.get(text_type, self._prior)
        mean = total / count
        return max(1.0, mean if max_output_tokens is None else min(mean, float(max_output_tokens)))

    def observe(self, text_type: str, accepted_tokens: int) -> None:
        """Adds a finished request; older ones fade with a memory of about 1,000 requests."""
        total, count = self._sums.get(text_type, self._prior)
        keep = 1.0 if count < 1_000.0 else 1.0 - 1.0 / 1_000.0
        self._sums[text_type] = (total * keep + accepted_tokens, count * keep + 1.0)


@dataclass(slots=True)
class _Backend:
    spec: BackendSpec
    in_flight: dict[str, RequestView] = field(default_factory=dict)
    groups: dict[tuple[str, float | None], int] = field(default_factory=dict)
    """Own requests in flight by text type and TBT target."""
    own_kv_tokens: float = 0.0
    available: bool = True
    unavailable_reason: str | None = None
    signal: LoadSignal | None = None
    signal_s: float | None = None
    foreign: int = 0
    """Requests there that this router did not send."""
    previous_surplus: int = 0
    settings: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    view: BackendView | None = None


class FleetTracker:
    """The state of the fleet as one router knows it."""

    def __init__(self, backends: Iterable[BackendSpec]) -> None:
        self._backends = {spec.name: _Backend(spec) for spec in backends}
        self._home: dict[str, str] = {}

    def dispatched(self, request: RequestView, backend: str, now_s: float) -> None:
        """A request was sent to a backend.

        Raises `KeyError` for an unknown backend, `ValueError` for a request that is in flight already.
        """
        if request.request_id in self._home:
            raise ValueError(f"request {request.request_id} was dispatched twice")
        state = self._backends[backend]
        self._home[request.request_id] = backend
        state.in_flight[request.request_id] = request
        key = (request.text_type, request.tbt_target_ms)
        state.groups[key] = state.groups.get(key, 0) + 1
        state.own_kv_tokens += _mean_context(request)
        state.view = None

    def finished(self, request_id: str, now_s: float) -> bool:
        """A request ended, however it did. Returns False, and changes nothing, if it is not in flight."""
        backend = self._home.pop(request_id, None)
        if backend is None:
            return False
        state = self._backends[backend]
        request = state.in_flight.pop(request_id)
        key = (request.text_type, request.tbt_target_ms)
        state.groups[key] -= 1
        if not state.groups[key]:
            del state.groups[key]
        # Recomputed at zero so that rounding cannot build up over millions of requests.
        state.own_kv_tokens = state.own_kv_tokens - _mean_context(request) if state.in_flight else 0.0
        state.view = None
        return True

    def polled(self, backend: str, signal: LoadSignal, now_s: float) -> None:
        """A backend reported its load.

        Requests that it has beyond our own in flight are foreign (other routers, direct clients). Because a request
        can be on its way in or out while the poll is answered, a surplus counts only when two polls in a row show it.
        """
        state = self._backends[backend]
        surplus = max(0, signal.running + signal.waiting - len(state.in_flight))
        state.foreign = min(surplus, state.previous_surplus)
        state.previous_surplus = surplus
        state.signal, state.signal_s = signal, now_s
        state.view = None

    def health_changed(self, backend: str, available: bool, reason: str | None, now_s: float) -> None:
        """A backend became available or not; `reason` says why not."""
        state = self._backends[backend]
        state.available, state.unavailable_reason = available, None if available else reason
        state.view = None

    def settings_changed(self, backend: str, settings: Mapping[str, float], now_s: float) -> None:
        """Live settings of a backend's arm came into force."""
        state = self._backends[backend]
        state.settings = MappingProxyType(dict(settings))
        state.view = None

    def in_flight(self, backend: str | None = None) -> int:
        """Requests in flight on one backend, or on all."""
        return len(self._home) if backend is None else len(self._backends[backend].in_flight)

    def view(self, now_s: float) -> FleetView:
        """The fleet at `now_s`."""
        return FleetView(
            now_s=now_s, backends=tuple([state.view or self._view_of(state) for state in self._backends.values()])
        )

    def _view_of(self, state: _Backend) -> BackendView:
        spec, signal = state.spec, state.signal
        own = len(state.in_flight)
        kv_tokens = state.own_kv_tokens
        if state.foreign:
            # Foreign requests are taken to be like ours; the poll's own figure decides when we have none there.
            per_request = kv_tokens / own if own else (signal.kv_tokens or 0.0) / state.foreign if signal else 0.0
            kv_tokens += per_request * state.foreign
        state.view = BackendView(
            name=spec.name,
            arm=spec.arm,
            gpus=spec.gpus,
            available=state.available,
            unavailable_reason=state.unavailable_reason,
            batch=own + state.foreign,
            waiting=signal.waiting if signal else 0,
            kv_tokens=kv_tokens,
            groups=tuple(
                LoadGroup(text_type=text_type, tbt_target_ms=target, requests=count)
                for (text_type, target), count in state.groups.items()
            ),
            max_running_requests=(signal and signal.max_running_requests) or spec.max_running_requests,
            max_kv_tokens=(signal and signal.max_kv_tokens) or spec.max_kv_tokens,
            max_context_tokens=spec.max_context_tokens,
            polled_s=state.signal_s,
            settings=state.settings,
        )
        return state.view


def _mean_context(request: RequestView) -> float:
    """Context of a request halfway through its expected answer."""
    return request.prompt_tokens + 0.5 * request.expected_output_tokens
