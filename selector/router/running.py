"""A router that serves: everything put together, started and ended in order.

    async with RunningRouter(fleet, policy, fallback, port=0) as router:
        ...  # router.url

It runs in the event loop of its caller and installs no signal handlers: `serve` does, and calls `reload` and `drain`.
Listener, log, metrics and traces belong to the process; everything else to a `Generation`, which `reload` replaces.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from selector.errors import InputError, UsageError
from selector.files.decision_log_writer import DecisionLogWriter, LogSection
from selector.files.fleet import LoadedFleet
from selector.files.policy import LoadedPolicy
from selector.router.app import PrivateApp, RouterApp
from selector.router.configuration import Configuration, Reloads, wall_time
from selector.router.front import Front
from selector.router.generation import Generation
from selector.router.keyring import KeyRing
from selector.router.library import Library
from selector.router.listening import Server, listening, url_of
from selector.router.metrics import RouterMetrics
from selector.router.serving import Serving
from selector.router.state import RouterState

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
        self._first = Configuration(fleet=fleet, policy=policy, fallback=fallback, params=dict(params or {}))
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
        self._generation: Generation
        self._retiring: dict[Generation, asyncio.Task[None]] = {}
        """Generations before, which still have requests."""
        self._reloading = asyncio.Lock()

    @property
    def state(self) -> RouterState:
        """Of what serves now."""
        return self._generation.state

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
            async with asyncio.timeout(self._generation.configuration.fleet.fleet.router.drain_timeout_s):
                for generation in (self._generation, *self._retiring):
                    await generation.relay.idle()
                return True
        return False

    async def reload(self, load: Callable[[], Configuration]) -> Configuration:
        """Serves by what `load` reads from the next request on; requests under way end by what they began with.

        `load` runs in a thread. Raises `InputError` for what cannot be used; then nothing has changed but the account
        of it in `state.reloads`. What belongs to the process (host, port, decision log, tracing) stays as it was.
        """
        async with self._reloading:
            try:
                configuration = await asyncio.to_thread(load)
                new = await self._prepared(configuration)
            except Exception as bad:
                self._reloads.refused += 1
                self._reloads.last_problem = str(bad) if isinstance(bad, InputError) else f"{type(bad).__name__}: {bad}"
                raise
            self._reloads.done += 1
            self._reloads.since, self._reloads.last_problem = wall_time(), None
            self._reloads.kept_back = configuration.kept_back(self._first)
            self._replace(new)
            return configuration

    async def _prepared(self, configuration: Configuration) -> Generation:
        section = None
        if self._log is not None:
            section = LogSection(self._log, configuration.start_event(self._seed, reloaded=True))
        new = Generation(configuration, log=self._log, section=section)
        try:
            await self._prepare(new, before=self._generation)
        except BaseException:
            await new.close()
            raise
        return new

    def _replace(self, new: Generation) -> None:
        old, self._generation = self._generation, new
        new.state.draining = old.state.draining
        old.supersede()
        old.relay.successor = new.relay
        new.activate()
        self._serving.relay, self._serving.admission = new.relay, new.admission
        self._serving.control, self._serving.private = new.control, new.private
        retiring = asyncio.create_task(old.retire())
        self._retiring[old] = retiring
        retiring.add_done_callback(lambda _: self._retiring.pop(old, None))

    async def _prepare(self, generation: Generation, before: Generation | None = None) -> None:
        await generation.prepare(
            seed=self._seed,
            now_s=self._now_s,
            metrics=self._metrics,
            keys=self._keys,
            own_control_port=self._control_port is not None,
            reloads=self._reloads,
            tracing=self._traces,
            before=before,
        )

    async def _close_generations(self) -> None:
        for generation, retiring in list(self._retiring.items()):
            retiring.cancel()
            await asyncio.wait([retiring])
            await generation.close()
        await self._generation.close()

    async def _drain_once(self) -> None:
        if not self.state.draining:
            await self.drain()

    async def _start(self, stack: AsyncExitStack) -> None:
        listener = stack.enter_context(contextlib.closing(listening(self._host, self._port)))
        self._url = self._control_url = url_of(self._host, listener)
        control_listener = None
        if self._control_port is not None:
            control_listener = listening(self._control_host, self._control_port)
            stack.enter_context(contextlib.closing(control_listener))
            self._control_url = url_of(self._control_host, control_listener)
        self._log = None
        if self._log_path is not None:
            self._log = DecisionLogWriter(self._log_path, self._first.start_event(self._seed))
            stack.push_async_callback(asyncio.to_thread, self._log.close)
        started_s = self._clock()
        self._now_s = lambda: self._clock() - started_s
        self._metrics = RouterMetrics()
        self._keys = KeyRing((), self._metrics, self._now_s)
        self._reloads = Reloads(since=wall_time())
        self._traces = self._tracing(stack)
        section = None if self._log is None else LogSection(self._log)
        self._generation = Generation(self._first, log=self._log, section=section)
        stack.push_async_callback(self._close_generations)
        await self._prepare(self._generation)
        self._generation.activate()
        self._serving = Serving(
            admission=self._generation.admission,
            relay=self._generation.relay,
            control=self._generation.control,
            private=self._generation.private,
        )
        if control_listener is not None:
            # Up before the data path and after it: what is told of draining is told here too.
            control_server = Server(PrivateApp(self._serving), partial(Library, serving=self._serving))
            stack.push_async_callback(control_server.end)
            await control_server.begin(control_listener)
        server = Server(RouterApp(self._serving), partial(Front, serving=self._serving))
        stack.push_async_callback(server.end)
        await server.begin(listener)
        stack.push_async_callback(self._drain_once)

    def _tracing(self, stack: AsyncExitStack) -> Tracing | None:
        """`None` where nothing is traced; then nothing of OpenTelemetry is imported."""
        provider, options = self._tracer_provider, self._first.fleet.fleet.tracing
        if provider is None and not options.enabled:
            return None
        try:
            from selector.router.tracing import Tracing, provider_to_collector
        except ModuleNotFoundError as missing:
            where, problem = f"{self._first.fleet.where}: tracing.enabled", f"needs OpenTelemetry ({missing})"
            raise UsageError(where, problem, "install drafter-selector[otel]") from None
        if provider is None:
            own = provider_to_collector(options.service_name)
            stack.push_async_callback(_shut_down, own)
            provider = own
        return Tracing(provider)


class _CanShutDown(Protocol):
    def shutdown(self) -> None: ...


async def _shut_down(provider: _CanShutDown) -> None:
    """Sends what is left, unless the collector takes too long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LAST_SPANS_WITHIN_S):
            await asyncio.to_thread(provider.shutdown)
