"""A router that serves: everything put together, started and ended in order.

    async with RunningRouter(fleet, policy, fallback, port=0) as router:
        ...  # router.url

It runs in the event loop of its caller and installs no signal handlers: `serve` does, and calls `reload` and `drain`.
Listener, log, metrics and traces belong to the process; everything else to a `Generation`, which `reload` replaces.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import uvicorn

from selector.errors import InputError, UsageError
from selector.files.decision_log_writer import DecisionLogWriter, LogSection
from selector.files.fleet import LoadedFleet
from selector.files.policy import LoadedPolicy
from selector.router.app import RouterApp
from selector.router.configuration import Configuration, Reloads, wall_time
from selector.router.front import Front
from selector.router.generation import Generation
from selector.router.metrics import RouterMetrics
from selector.router.serving import Serving
from selector.router.state import RouterState

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from selector.router.tracing import Tracing

_KEEP_ALIVE_S = 75
_LAST_SPANS_WITHIN_S = 5.0
_CLOSE_WITHIN_S = 1
"""How long connections may take to close once their requests are over or given up."""


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
        decision_log: Path | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        """`params` are the policy's. Host, port and log default to the fleet file's; port 0 is any free one.

        Without a `tracer_provider` (the caller's to shut down), the fleet file says whether there are traces.
        """
        options = fleet.fleet.router
        self._first = Configuration(fleet=fleet, policy=policy, fallback=fallback, params=dict(params or {}))
        self._host = options.host if host is None else host
        self._port = options.port if port is None else port
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
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

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
        self._serving.relay, self._serving.admission, self._serving.control = new.relay, new.admission, new.control
        retiring = asyncio.create_task(old.retire())
        self._retiring[old] = retiring
        retiring.add_done_callback(lambda _: self._retiring.pop(old, None))

    async def _prepare(self, generation: Generation, before: Generation | None = None) -> None:
        await generation.prepare(
            seed=self._seed,
            now_s=self._now_s,
            metrics=self._metrics,
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
        listener = stack.enter_context(contextlib.closing(self._listener()))
        self._log = None
        if self._log_path is not None:
            self._log = DecisionLogWriter(self._log_path, self._first.start_event(self._seed))
            stack.push_async_callback(asyncio.to_thread, self._log.close)
        started_s = self._clock()
        self._now_s = lambda: self._clock() - started_s
        self._metrics = RouterMetrics()
        self._reloads = Reloads(since=wall_time())
        self._traces = self._tracing(stack)
        section = None if self._log is None else LogSection(self._log)
        self._generation = Generation(self._first, log=self._log, section=section)
        stack.push_async_callback(self._close_generations)
        await self._prepare(self._generation)
        self._generation.activate()
        self._serving = Serving(
            admission=self._generation.admission, relay=self._generation.relay, control=self._generation.control
        )
        server = _Server(RouterApp(self._serving), partial(Front, serving=self._serving))
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

    def _listener(self) -> socket.socket:
        try:
            info = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            listener = socket.socket(info[0], info[1], info[2])
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(info[4])
            except BaseException:
                listener.close()
                raise
        except OSError as failed:
            where = f"router {self._host}:{self._port}"
            raise UsageError(where, f"cannot listen there ({failed.strerror})", "choose another host or port") from None
        self._port = listener.getsockname()[1]
        return listener


class _Server(uvicorn.Server):
    """uvicorn in somebody else's loop."""

    def __init__(self, app: RouterApp, front: Callable[..., Front]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=front,  # type: ignore[arg-type] # a class for uvicorn, which only ever calls it
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_CLOSE_WITHIN_S,
            )
        )
        self._up = asyncio.Event()
        self._told_to_end = asyncio.Event()

    async def begin(self, listener: socket.socket) -> None:
        """Returns when it accepts connections."""
        self._serving = asyncio.create_task(self.serve(sockets=[listener]))
        await self._up.wait()

    async def end(self) -> None:
        """Closes the listener and every connection; requests still running are given up."""
        # uvicorn reports each request that it cuts off as a fault of the application, with a traceback.
        log = logging.getLogger("uvicorn.error")
        level = log.level
        log.setLevel(logging.CRITICAL)
        try:
            self._told_to_end.set()
            await self._serving
        finally:
            log.setLevel(level)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Tells `begin`."""
        await super().startup(sockets)
        self._up.set()

    async def main_loop(self) -> None:
        """Waits; what uvicorn does ten times a second here is for headers that are switched off."""
        await self._told_to_end.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signals to the program that embeds the router."""
        yield


class _CanShutDown(Protocol):
    def shutdown(self) -> None: ...


async def _shut_down(provider: _CanShutDown) -> None:
    """Sends what is left, unless the collector takes too long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LAST_SPANS_WITHIN_S):
            await asyncio.to_thread(provider.shutdown)
