"""A port, and uvicorn behind it, in the event loop of whoever runs the router."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from selector.errors import UsageError

_KEEP_ALIVE_S = 75
_CLOSE_WITHIN_S = 1
"""How long connections may take to close once their requests are over or given up."""


def listening(host: str, port: int) -> socket.socket:
    """A socket bound there; port 0 is any free one. Raises `UsageError`."""
    try:
        info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(info[0], info[1], info[2])
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(info[4])
        except BaseException:
            listener.close()
            raise
    except OSError as failed:
        where = f"router {host}:{port}"
        raise UsageError(where, f"cannot listen there ({failed.strerror})", "choose another host or port") from None
    return listener


def url_of(host: str, listener: socket.socket) -> str:
    """The address of a listener that was bound to `host`."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listener.getsockname()[1]}"


class Server(uvicorn.Server):
    """uvicorn in somebody else's loop."""

    def __init__(self, app: Any, protocol: Any) -> None:
        """`app` is an ASGI application, `protocol` makes an `asyncio.Protocol` of what uvicorn gives every one."""
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
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
