"""An ASGI application on a socket, inside an event loop that belongs to somebody else."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from selector.emulator.app import EmulatorApp
from selector.emulator.http import Handler

_CLOSE_WITHIN_S = 2
"""How long open answers may take to end when a server is told to."""


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 is any free one. Raises `OSError`."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener


class SocketServer(uvicorn.Server):
    """uvicorn with its headers as SGLang has them, without its logging and without its signal handlers."""

    def __init__(self, app: EmulatorApp | Handler, listener: socket.socket) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                interface="asgi3",
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                timeout_graceful_shutdown=_CLOSE_WITHIN_S,
            )
        )
        self._listener = listener
        self._up = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Returns when it accepts connections."""
        self._serving = asyncio.create_task(self.serve(sockets=[self._listener]))
        await self._up.wait()

    async def end(self) -> None:
        """Closes the listener, lets open answers end, closes every connection."""
        assert self._serving is not None
        self.should_exit = True
        await self._serving

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Tells `begin`."""
        await super().startup(sockets)
        self._up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signals to the program around it."""
        yield
