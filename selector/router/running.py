"""A router that serves: everything put together, started and ended in order.

    async with RunningRouter(fleet, policy, fallback, port=0) as router:
        ...  # router.url

It runs in the event loop of its caller and installs no signal handlers: `serve` does, and calls `drain`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from selector import __version__
from selector.core.controller import Controller
from selector.errors import UsageError
from selector.files.decision_log import BackendRecord, PolicyRecord, StartEvent
from selector.files.decision_log_writer import DecisionLogWriter
from selector.files.fleet import LoadedFleet
from selector.files.policy import LoadedPolicy
from selector.files.security import load_holders
from selector.files.trust import trust
from selector.router.admission import Admission
from selector.router.app import RouterApp
from selector.router.books import Books
from selector.router.control import control_app
from selector.router.corrections import correct_regularly
from selector.router.dispatch import Dispatcher
from selector.router.front import Front, Library
from selector.router.headers import Passing
from selector.router.keyring import KeyRing
from selector.router.listening import Server, listening, url_of
from selector.router.meters import Meters
from selector.router.metrics import RouterMetrics
from selector.router.readings import read_by_metrics
from selector.router.relay import Relay
from selector.router.request import RequestReader
from selector.router.sharing import AcceptanceSharing
from selector.router.snapshots import AcceptanceSnapshots
from selector.router.state import RouterState
from selector.router.upstream import Upstream
from selector.router.watch import FleetWatch

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from selector.router.tracing import Tracing

_LAST_SPANS_WITHIN_S = 5.0


class RunningRouter:
    """An async context manager: serving inside, drained and closed after it."""

    def __init__(
        self,
        fleet: LoadedFleet,
        policy: LoadedPolicy,
        fallback: LoadedPolicy,
        *,
        params: Mapping[str, object] | None = None,
        host: str | None = None,
        port: int | None = None,
        control_host: str | None = None,
        control_port: int | None = None,
        decision_log: Path | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        """`params` are the policy's. Hosts, ports and log default to the fleet file's; port 0 is any free one.

        Without a `tracer_provider` (the caller's to shut down), the fleet file says whether there are traces.
        """
        options = fleet.fleet.router
        self._fleet = fleet
        self._policy = policy
        self._fallback = fallback
        self._params = dict(params or {})
        self._host = options.host if host is None else host
        self._port = options.port if port is None else port
        self._control_host = options.control_host if control_host is None else control_host
        self._control_port = options.control_port if control_port is None else control_port
        named_log = None if options.decision_log is None else Path(options.decision_log)
        self._log_path = named_log if decision_log is None else decision_log
        self._seed = seed
        self._clock = clock
        self._tracer_provider = tracer_provider
        self._stack = AsyncExitStack()

    @property
    def url(self) -> str:
        """Where it listens."""
        return self._url

    @property
    def control_url(self) -> str:
        """Where it tells of itself."""
        return self._control_url

    async def __aenter__(self) -> Self:
        """Serves on return. Raises `InputError` for what the user gave wrongly."""
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def drain(self) -> bool:
        """Refuses new requests and waits for running ones, up to the fleet file's limit; whether all ended."""
        self.state.draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(self._fleet.fleet.router.drain_timeout_s):
                await self._relay.idle()
                return True
        return False

    async def _drain_once(self) -> None:
        if not self.state.draining:
            await self.drain()

    async def _start(self, stack: AsyncExitStack) -> None:
        fleet, options = self._fleet, self._fleet.fleet.router
        context = fleet.policy_context(self._seed)
        controller = Controller(
            context, self._policy.make(self._params, context), fallback=self._fallback.make({}, context)
        )
        holders = load_holders(fleet.fleet, fleet.where)
        tls = trust(fleet.fleet, fleet.where)
        listener = stack.enter_context(contextlib.closing(listening(self._host, self._port)))
        self._url = self._control_url = url_of(self._host, listener)
        control_listener = None
        if self._control_port is not None:
            control_listener = listening(self._control_host, self._control_port)
            stack.enter_context(contextlib.closing(control_listener))
            self._control_url = url_of(self._control_host, control_listener)
        upstreams: dict[str, Upstream] = {}
        for backend, spec in zip(fleet.fleet.backends, fleet.specs, strict=True):
            upstreams[backend.name] = Upstream(backend, spec, options, fleet.where, tls)
            stack.push_async_callback(upstreams[backend.name].close)
        profiles = {backend.name: fleet.profiles[backend.profile] for backend in fleet.fleet.backends}
        records = [
            PolicyRecord(label=policy.label, sha256=policy.sha256, params=params)
            for policy, params in ((self._policy, self._params), (self._fallback, {}))
        ]
        log = self._opened_log(*records)
        if log is not None:
            stack.push_async_callback(asyncio.to_thread, log.close)
        started_s = self._clock()

        def now_s() -> float:
            return self._clock() - started_s

        metrics = RouterMetrics()
        adaptive = [
            backend.arm
            for backend in fleet.fleet.backends
            if "--speculative-adaptive" in profiles[backend.name].arm(backend.arm).launch.flags
        ]
        energy = fleet.fleet.energy
        books = Books(fleet.specs, context.acceptance, metrics, metered=bool(energy.urls), log=log)
        dispatcher = Dispatcher(controller, metrics, now_s, books, log=log, adaptive_arms=adaptive)
        meters = Meters(energy, books, now_s, tls) if energy.urls else None
        learning = fleet.fleet.acceptance
        snapshots = AcceptanceSnapshots(
            dispatcher,
            None if learning.snapshot is None else Path(learning.snapshot),
            every_s=learning.snapshot_every_s,
            target=fleet.fleet.target,
        )
        snapshots.restore()
        stack.push_async_callback(snapshots.write)
        stack.push_async_callback(_cancelled, asyncio.create_task(snapshots.run()))
        sharing = None
        if learning.redis_url is not None:
            sharing = AcceptanceSharing(
                dispatcher,
                learning,
                target=fleet.fleet.target,
                fingerprint=snapshots.fingerprint,
                router=snapshots.router,
            )
            stack.push_async_callback(sharing.stop, asyncio.create_task(sharing.run()))
        watch = FleetWatch(upstreams, profiles, dispatcher, options)
        self.state = RouterState(
            target=fleet.fleet.target,
            policy=records[0],
            fallback=records[1],
            dispatcher=dispatcher,
            watch=watch,
            metrics=metrics,
            keys=KeyRing(holders, metrics, now_s),
            log=log,
            snapshots=snapshots,
            sharing=sharing,
            meters=meters,
            corrects=energy.correct,
            now_s=now_s,
        )
        read_by_metrics(self.state)
        reader = RequestReader(fleet.fleet, dispatcher.expected_output_tokens)
        passing = Passing(fleet.fleet.security)
        self._relay = Relay(upstreams, dispatcher, watch, reader, metrics, now_s, passing, self._tracing(stack))
        admission = Admission(self.state, max_body_bytes=options.max_body_bytes)
        control = control_app(self.state, private=control_listener is None, keyed=True)
        app = RouterApp(admission, self._relay, control)
        await watch.first_look()
        stack.push_async_callback(_cancelled, asyncio.create_task(watch.run()))
        if meters is not None:
            stack.push_async_callback(meters.close)
            stack.push_async_callback(_cancelled, asyncio.create_task(meters.run()))
        if energy.correct:
            correcting = correct_regularly(dispatcher, energy.correct_every_s)
            stack.push_async_callback(_cancelled, asyncio.create_task(correcting))
        if control_listener is not None:
            # Up before the data path and after it: what is told of draining is told here too.
            control_server = Server(control_app(self.state, private=True, keyed=False), Library)
            stack.push_async_callback(control_server.end)
            await control_server.begin(control_listener)
        server = Server(app, partial(Front, relay=self._relay, admission=admission))
        stack.push_async_callback(server.end)
        await server.begin(listener)
        stack.push_async_callback(self._drain_once)

    def _tracing(self, stack: AsyncExitStack) -> Tracing | None:
        """`None` where nothing is traced; then nothing of OpenTelemetry is imported."""
        provider, options = self._tracer_provider, self._fleet.fleet.tracing
        if provider is None and not options.enabled:
            return None
        try:
            from selector.router.tracing import Tracing, provider_to_collector
        except ModuleNotFoundError as missing:
            where, problem = f"{self._fleet.where}: tracing.enabled", f"needs OpenTelemetry ({missing})"
            raise UsageError(where, problem, "install drafter-selector[otel]") from None
        if provider is None:
            own = provider_to_collector(options.service_name)
            stack.push_async_callback(_shut_down, own)
            provider = own
        return Tracing(provider)

    def _opened_log(self, policy: PolicyRecord, fallback: PolicyRecord) -> DecisionLogWriter | None:
        if self._log_path is None:
            return None
        start = StartEvent(
            wall=datetime.now(UTC).isoformat(timespec="milliseconds"),
            version=__version__,
            target=self._fleet.fleet.target,
            policy=policy,
            fallback=fallback,
            seed=self._seed,
            backends=tuple(BackendRecord(name=spec.name, arm=spec.arm) for spec in self._fleet.specs),
        )
        return DecisionLogWriter(self._log_path, start)


class _CanShutDown(Protocol):
    def shutdown(self) -> None: ...


async def _shut_down(provider: _CanShutDown) -> None:
    """Sends what is left, unless the collector takes too long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LAST_SPANS_WITHIN_S):
            await asyncio.to_thread(provider.shutdown)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
