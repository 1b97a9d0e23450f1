"""Watches the backends: polls their load, checks who they are, hears of failures, and tells the dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from selector.errors import UpstreamError
from selector.files.fleet import Router
from selector.files.profile import Profile
from selector.router.dispatch import Dispatcher
from selector.router.health import BackendHealth, State
from selector.router.identity import arm_mismatches, deployment_mismatches
from selector.router.loads import LoadReport, ServerFacts, parse_loads, server_facts
from selector.router.upstream import Upstream

_LOADS_PATH = "/v1/loads?include=core,spec"


class WatchedBackend:
    """What is known of one backend beyond its load."""

    def __init__(self, upstream: Upstream, *, unhealthy_after_failures: int) -> None:
        self.upstream = upstream
        self.health = BackendHealth(unhealthy_after_failures=unhealthy_after_failures)
        self.facts = ServerFacts()
        self.differences: tuple[str, ...] = ()
        """Differences from the fleet file that do not forbid serving."""
        self.report: LoadReport | None = None
        self.poll_now = asyncio.Event()


class FleetWatch:
    """All backends of a fleet. `first_look`, then `run` for as long as the router serves."""

    def __init__(
        self,
        upstreams: Mapping[str, Upstream],
        profiles: Mapping[str, Profile],
        dispatcher: Dispatcher,
        options: Router,
    ) -> None:
        """Upstreams and profiles by the name of the backend."""
        self._profiles = profiles
        self._dispatcher = dispatcher
        self._interval_s = options.poll_interval_s
        self.backends: Mapping[str, WatchedBackend] = {
            name: WatchedBackend(upstream, unhealthy_after_failures=options.unhealthy_after_failures)
            for name, upstream in upstreams.items()
        }
        for name, backend in self.backends.items():
            dispatcher.health_changed(name, available=False, reason=backend.health.reason)

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

    def traffic_failed(self, name: str, why: str) -> None:
        """A request failed for a reason that lies with the backend: it is looked at right away."""
        backend = self.backends[name]
        if backend.health.traffic_failed(why):
            self._tell(backend)
        backend.poll_now.set()

    def traffic_succeeded(self, name: str) -> None:
        """A request was answered."""
        self.backends[name].health.traffic_succeeded()

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
            wrong = await self._wrong_identity(backend) if health.identity_due else None
        except UpstreamError as failed:
            self._poll_failed(backend, str(failed))
            return
        except Exception as fault:  # noqa: BLE001 - whatever a server answers must not end the watch over the others
            self._poll_failed(backend, f"its answer cannot be used ({type(fault).__name__}: {fault})")
            return
        backend.report = report
        if report is not None:
            self._dispatcher.polled(upstream.name, report.signal)
        if health.poll_succeeded(wrong):
            self._tell(backend)

    def _poll_failed(self, backend: WatchedBackend, why: str) -> None:
        if backend.health.poll_failed(why):
            self._tell(backend)

    async def _wrong_identity(self, backend: WatchedBackend) -> str | None:
        """What is wrong with the server behind the backend's URL; `None` if it runs the right arm."""
        upstream = backend.upstream
        info: Any = await upstream.get_json("/server_info")
        if info is None:
            info = await upstream.get_json("/get_server_info")
        if not isinstance(info, Mapping):
            raise UpstreamError("/server_info does not tell what it runs")
        profile = self._profiles[upstream.name]
        backend.facts = server_facts(info)
        backend.differences = tuple(map(str, deployment_mismatches(info, upstream.spec, profile)))
        wrong = arm_mismatches(info, profile.arm(upstream.arm))
        return f"another arm: {', '.join(map(str, wrong))}" if wrong else None

    def _tell(self, backend: WatchedBackend) -> None:
        health = backend.health
        self._dispatcher.health_changed(
            backend.upstream.name, available=health.state is State.AVAILABLE, reason=health.reason
        )
