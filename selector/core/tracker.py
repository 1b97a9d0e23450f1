"""Folds what happens (dispatches, ends, polls, health) into the fleet view that policies read.

The router and the simulator drive the same tracker with the same calls, so that a policy sees the same view for the
same history. The tracker has no clock: every call carries `now_s`.

    dispatched ──▶ finished           one of each per request
    polled, health_changed            any time

Views are immutable and rebuilt only when their backend changed, so a decision on a large quiet fleet is cheap. That a
poll found nothing new is no change: a policy that keeps what it derived from a view keeps it until the view is another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import mul
from types import MappingProxyType

from selector.core.policy import BackendSpec
from selector.core.types import (
    NO_CORRECTION,
    TEXT_TYPES,
    BackendView,
    Correction,
    FleetView,
    LoadGroup,
    LoadSignal,
    RequestView,
    make_backend_view,
    make_fleet_view,
)

__all__ = ["FleetTracker", "LoadSignal", "OutputLengthModel"]

_POSITIONS = {text_type: position for position, text_type in enumerate(TEXT_TYPES)}


class OutputLengthModel:
    """Expected output length by text type: a running mean of finished requests, bounded by the client's maximum.

    Starts at `prior_tokens` with the weight of `prior_requests` requests.
    """

    def __init__(self, *, prior_tokens: float = 256.0, prior_requests: float = 20.0) -> None:
        self._prior = prior_tokens * prior_requests, prior_requests, max(1.0, prior_tokens)
        """Sum of tokens, requests, and the mean that follows; `_sums` likewise by text type."""
        self._sums: dict[str, tuple[float, float, float]] = {}
        self._means = [max(1.0, prior_tokens)] * len(TEXT_TYPES)
        """Of the sums, by `TEXT_TYPES`: read for each request, and mixed over all types."""

    def expected(
        self, text_type: str, max_output_tokens: int | None, probabilities: Sequence[float] | None = None
    ) -> float:
        """Expected answer of a new request, at least 1 token; with `probabilities` over `TEXT_TYPES`, of their mixture.

        Raises `ValueError` for probabilities of another length.
        """
        bound = math.inf if max_output_tokens is None else max(1.0, float(max_output_tokens))
        if probabilities is None:
            mean = self._sums.get(text_type, self._prior)[2]
            return mean if mean < bound else bound
        if len(probabilities) != len(TEXT_TYPES):
            raise ValueError(f"{len(probabilities)} probabilities: there are {len(TEXT_TYPES)} text types")
        means = self._means if bound == math.inf else [mean if mean < bound else bound for mean in self._means]
        # Probabilities sum to 1 but for rounding, which must not lift the answer above its bound.
        return min(math.fsum(map(mul, probabilities, means)), bound)

    def observe(self, text_type: str, accepted_tokens: int) -> None:
        """Adds a finished request; older ones fade with a memory of about 1,000 requests."""
        total, count, _ = self._sums.get(text_type, self._prior)
        keep = 1.0 if count < 1_000.0 else 1.0 - 1.0 / 1_000.0
        total, count = total * keep + accepted_tokens, count * keep + 1.0
        mean = max(1.0, total / count)
        self._sums[text_type] = total, count, mean
        if (position := _POSITIONS.get(text_type)) is not None:
            self._means[position] = mean


class _Backend:
    """What is known of one backend."""

    __slots__ = (
        "available", "correction", "foreign", "groups", "index", "own", "own_kv_tokens", "previous_surplus", "settings",
        "settings_fixed", "signal", "signal_s", "spec", "stale", "unavailable_reason",
    )  # fmt: skip

    def __init__(self, spec: BackendSpec, index: int) -> None:
        self.spec = spec
        self.index = index
        """Its place in the fleet."""
        self.own = 0
        """Requests in flight there that this router sent."""
        self.groups: dict[tuple[str, float | None], int] = {}
        """The same by text type and TBT target."""
        self.own_kv_tokens = 0.0
        self.foreign = 0
        """Requests there that this router did not send."""
        self.previous_surplus = 0
        self.available = True
        self.unavailable_reason: str | None = None
        self.signal: LoadSignal | None = None
        self.signal_s: float | None = None
        launched = spec.settings[0].values if spec.settings else {}
        self.settings: Mapping[str, float] = MappingProxyType(dict(launched))
        self.settings_fixed = False
        self.correction = NO_CORRECTION
        self.stale = False
        """Its view has to be built anew."""

    def add(self, request: RequestView) -> None:
        """One more request."""
        self.own += 1
        self.own_kv_tokens += _mean_context(request)
        key = request.text_type, request.tbt_target_ms
        self.groups[key] = self.groups.get(key, 0) + 1

    def drop(self, request: RequestView) -> None:
        """One of its requests fewer."""
        self.own -= 1
        # Set at zero so that rounding cannot build up over millions of requests.
        self.own_kv_tokens = self.own_kv_tokens - _mean_context(request) if self.own else 0.0
        key = request.text_type, request.tbt_target_ms
        left = self.groups[key] - 1
        if left:
            self.groups[key] = left
        else:
            del self.groups[key]

    def view(self) -> BackendView:
        """The backend as policies see it."""
        spec, signal, own, foreign = self.spec, self.signal, self.own, self.foreign
        kv_tokens = self.own_kv_tokens
        if foreign:
            # Foreign requests are taken to be like ours; the poll's own figure decides when we have none there.
            per_request = kv_tokens / own if own else (signal.kv_tokens or 0.0) / foreign if signal else 0.0
            kv_tokens += per_request * foreign
        return make_backend_view(
            name=spec.name,
            arm=spec.arm,
            gpus=spec.gpus,
            available=self.available,
            unavailable_reason=self.unavailable_reason,
            batch=own + foreign,
            waiting=signal.waiting if signal else 0,
            kv_tokens=kv_tokens,
            groups=tuple([_group(*key, requests) for key, requests in self.groups.items()]),
            max_running_requests=(signal and signal.max_running_requests) or spec.max_running_requests,
            max_kv_tokens=(signal and signal.max_kv_tokens) or spec.max_kv_tokens,
            max_context_tokens=spec.max_context_tokens,
            settings=self.settings,
            settings_fixed=self.settings_fixed,
            correction=self.correction,
        )


class FleetTracker:
    """The state of the fleet as one router knows it."""

    def __init__(self, backends: Iterable[BackendSpec]) -> None:
        self.hears_every_poll = False
        """Whether somebody wants those polls too that change nothing."""
        self._backends = {spec.name: _Backend(spec, index) for index, spec in enumerate(backends)}
        self._home: dict[str, tuple[_Backend, RequestView, Mapping[str, float]]] = {}
        self._views = [state.view() for state in self._backends.values()]
        self._shown = tuple(self._views)
        self._stale: list[_Backend] = []

    def dispatched(self, request: RequestView, backend: str, now_s: float) -> None:
        """A request was sent to a backend.

        Raises `KeyError` for an unknown backend, `ValueError` for a request that is in flight already.
        """
        if request.request_id in self._home:
            raise ValueError(f"request {request.request_id} was dispatched twice")
        state = self._backends[backend]
        self._home[request.request_id] = state, request, state.settings
        state.add(request)
        self._changed(state)

    def finished(self, request_id: str, now_s: float) -> tuple[RequestView, Mapping[str, float] | None] | None:
        """A request ended, however it did; `None`, and nothing changes, if it is not in flight.

        Returns its view, and the live settings under which it ran, `None` where they changed meanwhile.
        """
        home = self._home.pop(request_id, None)
        if home is None:
            return None
        state, request, settings = home
        state.drop(request)
        self._changed(state)
        return request, settings if settings is state.settings else None

    def polled(self, backend: str, signal: LoadSignal, now_s: float) -> None:
        """A backend reported its load.

        Requests that it has beyond our own in flight are foreign (other routers, direct clients). Because a request
        can be on its way in or out while the poll is answered, a surplus counts only when two polls in a row show it.
        """
        state = self._backends[backend]
        surplus = signal.running + signal.waiting - state.own
        if surplus < 0:
            surplus = 0
        foreign = surplus if surplus < state.previous_surplus else state.previous_surplus
        before = state.signal
        state.previous_surplus, state.signal, state.signal_s = surplus, signal, now_s
        if (
            before is None
            or foreign
            or state.foreign
            or signal.waiting != before.waiting
            or signal.max_running_requests != before.max_running_requests
            or signal.max_kv_tokens != before.max_kv_tokens
        ):
            state.foreign = foreign
            self._changed(state)

    def health_changed(self, backend: str, available: bool, reason: str | None, now_s: float) -> None:
        """A backend became available or not; `reason` says why not."""
        state = self._backends[backend]
        state.available, state.unavailable_reason = available, None if available else reason
        self._changed(state)

    def settings_changed(self, backend: str, settings: Mapping[str, float], now_s: float) -> None:
        """Live settings of a backend's arm came into force; its server changes them."""
        state = self._backends[backend]
        state.settings, state.settings_fixed = MappingProxyType(dict(settings)), False
        self._changed(state)

    def settings_refused(self, backend: str, now_s: float) -> None:
        """The server of a backend does not change its live settings."""
        state = self._backends[backend]
        state.settings_fixed = True
        self._changed(state)

    def settings(self, backend: str) -> Mapping[str, float]:
        """The live settings in force on a backend."""
        return self._backends[backend].settings

    def corrected(self, backend: str, correction: Correction) -> None:
        """The costs of a backend changed: what was worked out from its view holds no more."""
        state = self._backends[backend]
        state.correction = correction
        self._changed(state)

    def in_flight(self, backend: str | None = None) -> int:
        """Requests in flight on one backend, or on all."""
        return len(self._home) if backend is None else self._backends[backend].own

    def polled_s(self, backend: str) -> float | None:
        """When the last poll of a backend was answered; `None` before the first."""
        return self._backends[backend].signal_s

    def foreign(self, backend: str) -> int:
        """Requests on a backend that this router did not send, as polls show them."""
        return self._backends[backend].foreign

    def view(self, now_s: float) -> FleetView:
        """The fleet at `now_s`."""
        if self._stale:
            for state in self._stale:
                self._views[state.index] = state.view()
                state.stale = False
            self._stale.clear()
            self._shown = tuple(self._views)
        return make_fleet_view(now_s=now_s, backends=self._shown)

    def _changed(self, state: _Backend) -> None:
        if not state.stale:
            state.stale = True
            self._stale.append(state)


@lru_cache(maxsize=4_096)
def _group(text_type: str, tbt_target_ms: float | None, requests: int) -> LoadGroup:
    """The same few groups come again and again."""
    return LoadGroup(text_type=text_type, tbt_target_ms=tbt_target_ms, requests=requests)


def _mean_context(request: RequestView) -> float:
    """Context of a request halfway through its expected answer."""
    return request.prompt_tokens + 0.5 * request.expected_output_tokens
