"""Every backend of a fleet file as an emulated server, in this process and on one clock.

    async with EmulatedFleet(load_fleet_with_profiles(path), time_scale=0.5) as fleet:
        ...                              # each backend answers on its url's port
        fleet.energy_url                 # one `GET /energy` for all GPUs

Backends that name the same GPU share it: they take turns, and its idle power is counted once.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from selector.emulator.app import EmulatorApp
from selector.emulator.asks import DEFAULT_MEAN_OUTPUT_TOKENS, Limits
from selector.emulator.clock import Clock, RealClock
from selector.emulator.engine import EmulatedEngine
from selector.emulator.gpu import EmulatedGpu, energy_report
from selector.emulator.http import Receive, Scope, Send, send_json, send_raw_json
from selector.emulator.info import Site
from selector.emulator.serving import SocketServer, listen
from selector.errors import FleetError
from selector.files.acceptancepriors import acceptance_model
from selector.files.fleet import Backend, LoadedFleet

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedServer:
    """One backend, served."""

    name: str
    arm: str
    url: str
    engine: EmulatedEngine


class EmulatedFleet:
    """An async context manager, for one use: inside it, every backend serves.

    With `any_port` the urls are left aside and free ports of `host` taken; `served()` knows them. Raises `FleetError`
    on entry when a backend has no url it could serve on, or its API key is not in `environ`.
    """

    def __init__(
        self,
        loaded: LoadedFleet,
        *,
        time_scale: float = 1.0,
        seed: int = 0,
        mean_output_tokens: float = DEFAULT_MEAN_OUTPUT_TOKENS,
        max_queued_requests: int | None = None,
        any_port: bool = False,
        host: str = _LOOPBACK,
        environ: Mapping[str, str] = os.environ,
        clock: Clock | None = None,
    ) -> None:
        self._loaded = loaded
        self._time_scale = time_scale
        self._seed = seed
        self._mean_output_tokens = mean_output_tokens
        self._max_queued_requests = max_queued_requests
        self._any_port = any_port
        self._host = host
        self._environ = environ
        self._given_clock = clock
        self._stack = AsyncExitStack()
        self.clock: Clock
        """Emulated time; there once entered, as all below."""
        self.gpus: dict[str, EmulatedGpu] = {}
        """By id, in the order of the fleet file."""
        self.servers: tuple[EmulatedServer, ...] = ()
        self.energy_url = ""
        """Address of a `GET /energy` that covers every GPU; each server's own covers the GPUs it runs on."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self.servers:
            server.engine.abort_all()
        await self._stack.aclose()

    def served(self) -> LoadedFleet:
        """The fleet with the urls where its backends answer now."""
        urls = {server.name: server.url for server in self.servers}
        fleet = self._loaded.fleet
        backends = tuple(backend.model_copy(update={"url": urls[backend.name]}) for backend in fleet.backends)
        return LoadedFleet(fleet.model_copy(update={"backends": backends}), self._loaded.where, self._loaded.profiles)

    def lag_ms(self, quantile: float) -> float:
        """How late the servers woke at that quantile, in real ms: that of the latest server."""
        return max(server.engine.lag_ms(quantile)[0] for server in self.servers)

    async def _start(self, stack: AsyncExitStack) -> None:
        if self._given_clock is None:
            clock = RealClock(self._time_scale)
            stack.callback(clock.close)
            self.clock = clock
        else:
            self.clock = self._given_clock
        for spec in self._loaded.specs:
            for gpu_id in spec.gpus:
                self.gpus.setdefault(gpu_id, EmulatedGpu(gpu_id, spec.cost.idle))
        sockets: list[SocketServer] = []
        servers: list[EmulatedServer] = []
        for index, backend in enumerate(self._loaded.fleet.backends):
            listener = self._listener(index, backend)
            stack.callback(listener.close)
            server, app = self._server(index, backend, listener)
            servers.append(server)
            sockets.append(SocketServer(app, listener))
        listener = listen(self._host, 0)
        stack.callback(listener.close)
        self.energy_url = f"{_url(listener)}/energy"
        sockets.append(SocketServer(self._energy_app, listener))
        self.servers = tuple(servers)
        for socket_server in sockets:
            await socket_server.begin()
        stack.push_async_callback(_end_all, sockets)

    def _listener(self, index: int, backend: Backend) -> socket.socket:
        where = f"{self._loaded.where}: backends[{index}].url"
        host, port = self._host, 0
        if not self._any_port:
            if backend.url is None:
                raise FleetError(where, "is missing", "say where the emulated server shall listen")
            parts = urlsplit(backend.url)
            if parts.scheme != "http" or parts.hostname is None or parts.path not in ("", "/"):
                raise FleetError(where, f"is {backend.url!r}", "the emulator serves http://host:port")
            host, port = parts.hostname, parts.port or 80
        try:
            return listen(host, port)
        except OSError as failed:
            problem = f"cannot listen on {host}:{port} ({failed.strerror})"
            raise FleetError(where, problem, "choose another host or port") from None

    def _server(self, index: int, backend: Backend, listener: socket.socket) -> tuple[EmulatedServer, EmulatorApp]:
        profile = self._loaded.profiles[backend.profile]
        spec = self._loaded.specs[index]
        gpus = [self.gpus[gpu_id] for gpu_id in spec.gpus]
        engine = EmulatedEngine(
            spec,
            acceptance_model([(backend.arm, profile)]),
            gpus,
            self.clock,
            seed=self._seed,
            max_queued_requests=self._max_queued_requests,
        )
        host, port = listener.getsockname()[:2]
        site = Site(
            profile=profile,
            arm=profile.arm(backend.arm),
            spec=spec,
            limits=Limits(
                context_tokens=spec.max_context_tokens,
                kv_tokens=spec.max_kv_tokens,
                mean_output_tokens=self._mean_output_tokens,
            ),
            host=host,
            port=port,
            max_queued_requests=self._max_queued_requests,
        )
        app = EmulatorApp(site, engine, lambda: energy_report(gpus, self.clock), api_key=self._api_key(index, backend))
        return EmulatedServer(name=backend.name, arm=backend.arm, url=_url(listener), engine=engine), app

    def _api_key(self, index: int, backend: Backend) -> str | None:
        if backend.api_key_env is None:
            return None
        key = self._environ.get(backend.api_key_env)
        if not key:
            where = f"{self._loaded.where}: backends[{index}].api_key_env"
            raise FleetError(where, f"the environment has no {backend.api_key_env}", "set it to the server's API key")
        return key

    async def _energy_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/energy":
            await send_raw_json(send, energy_report(self.gpus.values(), self.clock))
        else:
            await send_json(send, {"detail": "Not Found"}, status=404)


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _end_all(servers: list[SocketServer]) -> None:
    async with asyncio.TaskGroup() as group:
        for server in servers:
            group.create_task(server.end())
