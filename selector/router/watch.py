"""Watches the backends: polls their load, checks who they are, hears how requests fare, and tells the dispatcher.

    polls ──────▶ health ──▶┐
    relay ──┬───▶ health    ├──▶ standing of a backend ──▶ dispatcher
            ├───▶ breaker ─▶┤
            └───▶ outliers ▶┘

The relay says `sent` when a request goes to a backend, then how it fared (at most one of `failed`, `faulted` and
`succeeded`), then `left`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from selector.errors import UpstreamError
from selector.files.faults import Faults
from selector.files.fleet import Router
from selector.files.profile import Profile
from selector.router.breaker import CircuitBreaker
from selector.router.dispatch import Dispatcher
from selector.router.health import BackendHealth, State
from selector.router.identity import arm_mismatches, deployment_mismatches, model_change
from selector.router.loads import LoadReport, ServerFacts, parse_loads, server_facts
from selector.router.outliers import Outliers
from selector.router.upstream import Upstream

_LOADS_PATH = "/v1/loads?include=core,spec"


class WatchedBackend:
    """What is known of one backend beyond its load."""

    def __init__(
        self, upstream: Upstream, *, unhealthy_after_failures: int, breaker: CircuitBreaker, outliers: Outliers
    ) -> None:
        self.upstream = upstream
        self.health = BackendHealth(unhealthy_after_failures=unhealthy_after_failures)
        self.breaker = breaker
        self._outliers = outliers
        self.identified_s = 0.0
        """When its identity was checked the last time."""
        self.served: ServerFacts | None = None
        """What it was when its identity was right."""
        self.told: tuple[State, str | None] | None = None
        """The standing that the dispatcher knows."""
        self.facts = ServerFacts()
        self.differences: tuple[str, ...] = ()
        """Differences from the fleet file that do not forbid serving."""
        self.report: LoadReport | None = None
        self.poll_now = asyncio.Event()

    @property
    def state(self) -> State:
        """Whether it gets requests, all things considered."""
        return self.standing[0]

    @property
    def reason(self) -> str | None:
        """Why it gets none."""
        return self.standing[1]

    @property
    def standing(self) -> tuple[State, str | None]:
        """State and reason."""
        if self.health.state is not State.AVAILABLE:
            return self.health.state, self.health.reason
        if not self.breaker.admits:
            return State.TRIPPED, self.breaker.reason
        ejected = self._outliers.reason(self.upstream.name)
        return (State.AVAILABLE, None) if ejected is None else (State.EJECTED, ejected)

    @property
    def would_serve(self) -> bool:
        """Whether it gets requests unless it is ejected."""
        return self.health.state is State.AVAILABLE and self.breaker.admits


class FleetWatch:
    """All backends of a fleet. `first_look`, then `run` for as long as the router serves."""

    def __init__(
        self,
        upstreams: Mapping[str, Upstream],
        profiles: Mapping[str, Profile],
        dispatcher: Dispatcher,
        options: Router,
        faults: Faults,
        outliers: Outliers,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Upstreams and profiles by the name of the backend; `draw` gives random numbers in [0, 1)."""
        self._profiles = profiles
        self._dispatcher = dispatcher
        self._interval_s = options.poll_interval_s
        self._identity_interval_s = options.identity_interval_s
        self.outliers = outliers
        self.backends: Mapping[str, WatchedBackend] = {
            name: WatchedBackend(
                upstream,
                unhealthy_after_failures=options.unhealthy_after_failures,
                breaker=CircuitBreaker(faults, draw),
                outliers=outliers,
            )
            for name, upstream in upstreams.items()
        }
        for backend in self.backends.values():
            self._tell(backend)

    async def first_look(self) -> None:
        """Polls every backend once, all at the same time."""
        async with asyncio.TaskGroup() as group:
            for backend in self.backends.values():
                group.create_task(self._poll(backend))

    async def run(self) -> None:
        """Polls until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for backend in self.backends.values():
                group.create_task(self._poll_regularly(backend))
            group.create_task(self._judge_regularly())

    def sent(self, name: str) -> None:
        """A request goes to a backend."""
        backend = self.backends[name]
        if backend.breaker.sent():
            self._tell(backend)

    def traffic_failed(self, name: str, why: str) -> None:
        """The connection or the server under a request failed: the backend is looked at right away."""
        backend = self.backends[name]
        backend.health.traffic_failed(why)
        backend.breaker.failed(why, self._dispatcher.now_s())
        self.outliers.answered(name, ok=False)
        self._tell(backend)
        backend.poll_now.set()

    def traffic_faulted(self, name: str) -> None:
        """The backend answered with an error of its own making: that counts against it if its peers do better."""
        self.outliers.answered(name, ok=False)

    def traffic_succeeded(self, name: str) -> None:
        """A request was answered."""
        backend = self.backends[name]
        backend.health.traffic_succeeded()
        self.outliers.answered(name, ok=True)
        if backend.breaker.succeeded(self._dispatcher.now_s()):
            self._tell(backend)

    def left(self, name: str) -> None:
        """A request that was sent to a backend is over, whatever was said of how."""
        backend = self.backends[name]
        if backend.breaker.left():
            self._tell(backend)

    async def _judge_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            self.judge()

    def judge(self) -> None:
        """Compares the backends with one another, and lets those try again whose time has come."""
        now_s = self._dispatcher.now_s()
        for backend in self.backends.values():
            if backend.breaker.tick(now_s):
                self._tell(backend)
        serving = [name for name, backend in self.backends.items() if backend.would_serve]
        for name in self.outliers.judge(now_s, serving):
            self._tell(self.backends[name])

    async def _poll_regularly(self, backend: WatchedBackend) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await backend.poll_now.wait()
            backend.poll_now.clear()
            await self._poll(backend)

    async def _poll(self, backend: WatchedBackend) -> None:
        health, upstream = backend.health, backend.upstream
        try:
            await upstream.require_ready()
            loads = await upstream.get_json(_LOADS_PATH)
            report = None if loads is None else parse_loads(loads)
            if report is not None:
                health.reported(report)
            identity_age_s = self._dispatcher.now_s() - backend.identified_s
            due = health.identity_due or identity_age_s >= self._identity_interval_s
            wrong = await self._wrong_identity(backend) if due else None
        except UpstreamError as failed:
            self._poll_failed(backend, str(failed))
            return
        except Exception as fault:  # noqa: BLE001 - whatever a server answers must not end the watch over the others
            self._poll_failed(backend, f"its answer cannot be used ({type(fault).__name__}: {fault})")
            return
        backend.report = report
        if report is not None:
            self._dispatcher.polled(upstream.name, report.signal)
        health.poll_succeeded(wrong)
        self._tell(backend)

    def _poll_failed(self, backend: WatchedBackend, why: str) -> None:
        backend.health.poll_failed(why)
        self._tell(backend)

    async def _wrong_identity(self, backend: WatchedBackend) -> str | None:
        """What is wrong with the server behind the backend's URL; `None` if it runs the right arm and model."""
        upstream = backend.upstream
        info: Any = await upstream.get_json("/server_info")
        if info is None:
            info = await upstream.get_json("/get_server_info")
        if not isinstance(info, Mapping):
            raise UpstreamError("/server_info does not tell what it runs")
        profile = self._profiles[upstream.name]
        backend.facts = server_facts(info)
        backend.identified_s = self._dispatcher.now_s()
        backend.differences = tuple(map(str, deployment_mismatches(info, upstream.spec, profile)))
        wrong = arm_mismatches(info, profile.arm(upstream.arm))
        if wrong:
            return f"another arm: {', '.join(map(str, wrong))}"
        change = model_change(backend.served, backend.facts, profile.target.name)
        if change is None:
            backend.served = backend.facts
        return change

    def _tell(self, backend: WatchedBackend) -> None:
        """Tells the dispatcher how the backend stands, if that is news."""
        standing = backend.standing
        if standing != backend.told:
            backend.told = standing
            state, reason = standing
            self._dispatcher.health_changed(backend.upstream.name, available=state is State.AVAILABLE, reason=reason)
