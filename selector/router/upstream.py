"""The HTTP side of one backend, and every way it can fail turned into `UpstreamError`.

Requests that are passed on go over connections of their own (`pool`, `exchange`); what the router itself asks a backend
goes through aiohttp.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson

from selector.core.policy import BackendSpec
from selector.errors import FleetError, UnreachedError, UpstreamError
from selector.files.fleet import Backend, Router
from selector.files.trust import untrusted
from selector.router.exchange import Exchange
from selector.router.pool import KEEP_IDLE_S, Connection, ConnectionPool
from selector.router.wire import Headers, written_head

_COPIED_BODY_BYTES = 65_536
"""A larger body is sent from where it is, behind its head; a smaller one in one piece with it."""


class Upstream:
    """One backend. Belongs to one event loop; `close` it."""

    def __init__(
        self,
        backend: Backend,
        spec: BackendSpec,
        options: Router,
        where: str,
        tls: ssl.SSLContext,
        *,
        takes_tbt_target: bool = False,
    ) -> None:
        """`tls` verifies certificate and name of a server with an `https://` URL.

        Raises `FleetError` for a backend without a URL, or whose API key is not in the environment.
        """
        if backend.url is None:
            raise FleetError(f"{where}: backend {backend.name}: url", "is missing", "say where the server listens")
        self.name = backend.name
        self.arm = backend.arm
        self.url = backend.url
        self.spec = spec
        self.takes_tbt_target = takes_tbt_target
        """Its engine is told the TBT targets of its requests."""
        self.api_key: str | None = None
        if backend.api_key_env is not None:
            self.api_key = os.environ.get(backend.api_key_env)
            if not self.api_key:
                place = f"{where}: backend {backend.name}: api_key_env"
                raise FleetError(place, f"names {backend.api_key_env!r}, which is not set", "export the key")
        self._idle_timeout_s = options.stream_idle_timeout_s
        self._poll_timeout_s = options.poll_timeout_s
        self._first_byte_timeout_s = options.first_byte_timeout_s
        parts = urlsplit(backend.url)
        encrypted = parts.scheme == "https"
        self._host_header = parts.netloc.encode("ascii" if parts.netloc.isascii() else "idna")
        self._path = parts.path.rstrip("/").encode()
        self._pool = ConnectionPool(
            parts.hostname or "",
            parts.port or (443 if encrypted else 80),
            tls=tls if encrypted else None,
            connect_timeout_s=options.connect_timeout_s,
        )
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_IDLE_S, ssl=tls),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=options.connect_timeout_s),
        )

    async def close(self) -> None:
        """Closes every connection."""
        await self._pool.close()
        await self._session.close()

    async def post(self, target: bytes, headers: Headers, body: bytes, *, generating_s: float) -> Exchange:
        """Sends a request and waits for the head of the answer. Raises `UpstreamError` when there is none.

        An `UnreachedError` says that nothing was sent. `target` is path and query. `generating_s` is how long the
        server may generate before its first byte, on top of the fleet file's limit.
        """
        own = [(b"host", self._host_header), (b"content-length", b"%d" % len(body))]
        head = written_head(b"POST %b%b HTTP/1.1" % (self._path, target), own + headers)
        connection = self._pool.idle() or await self._connected()
        exchange = Exchange(connection, asyncio.get_running_loop(), self._idle_timeout_s)
        if len(body) <= _COPIED_BODY_BYTES:
            connection.begin(exchange, head + body)
        else:
            connection.begin(exchange, head, body)
        # Held by the transport until it is sent, and by the caller as long as it might be sent again.
        del body
        try:
            await exchange.head(self._first_byte_timeout_s + generating_s)
        except BaseException:
            exchange.close()
            raise
        return exchange

    async def _connected(self) -> Connection:
        try:
            return await self._pool.connect()
        except TimeoutError:
            raise UnreachedError("no connection in time") from None
        except socket.gaierror as failed:
            raise UnreachedError(f"host name not found ({failed.strerror})") from failed
        except ssl.SSLCertVerificationError as failed:
            raise UnreachedError(untrusted(failed)) from failed
        except ssl.SSLError as failed:
            raise UnreachedError(f"no TLS connection ({failed.reason or failed})") from failed
        except OSError as failed:
            why = os.strerror(failed.errno) if failed.errno else str(failed)
            raise UnreachedError(f"no connection ({why})") from failed

    async def abort(self, body: bytes) -> None:
        """Passes on `/abort_request`. Raises nothing: a backend that cannot be reached runs nothing of ours."""
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with (
                asyncio.timeout(self._poll_timeout_s),
                self._session.post(
                    self.url + "/abort_request",
                    data=body,
                    headers=self._own_headers("application/json"),
                    allow_redirects=False,
                ) as response,
            ):
                await response.read()

    async def set_internal_state(self, values: Mapping[str, float]) -> bool:
        """Asks the server to change what can be changed while it serves; whether it did.

        Releases answer a verdict for each data-parallel rank: `[true]`, or `{"updated": true}`. Raises `UpstreamError`
        when there is no answer that says.
        """
        path = "/set_internal_state"
        try:
            async with (
                asyncio.timeout(self._poll_timeout_s),
                self._session.post(
                    self.url + path,
                    data=orjson.dumps({"server_args": dict(values)}),
                    headers=self._own_headers("application/json"),
                    allow_redirects=False,
                ) as response,
            ):
                status, body = response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as failed:
            raise UpstreamError(f"{path}: {_in_words(failed)}") from failed
        if 400 <= status < 500:
            return False
        if status != 200:
            raise UpstreamError(f"{path} answered {status}")
        try:
            return changed_everywhere(orjson.loads(body))
        except orjson.JSONDecodeError:
            raise UpstreamError(f"{path} answered no JSON") from None

    async def require_ready(self) -> None:
        """Raises `UpstreamError` unless the server says that it is ready; releases without `/ready` answer 404."""
        status, _ = await self._get("/ready")
        if status not in (200, 404):
            raise UpstreamError(f"/ready answered {status}")

    async def get_json(self, path: str) -> Any:
        """The JSON that a GET answers; `None` for 404. Raises `UpstreamError` for anything else."""
        status, body = await self._get(path)
        if status == 404:
            return None
        name = path.partition("?")[0]
        if status != 200:
            raise UpstreamError(f"{name} answered {status}")
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError:
            raise UpstreamError(f"{name} answered no JSON") from None

    async def _get(self, path: str) -> tuple[int, bytes]:
        try:
            async with (
                asyncio.timeout(self._poll_timeout_s),
                self._session.get(self.url + path, headers=self._own_headers(), allow_redirects=False) as response,
            ):
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as failed:
            raise UpstreamError(f"{path.partition('?')[0]}: {_in_words(failed)}") from failed

    def _own_headers(self, content_type: str | None = None) -> dict[str, str]:
        headers = {} if self.api_key is None else {"authorization": f"Bearer {self.api_key}"}
        return headers if content_type is None else {**headers, "content-type": content_type}


def changed_everywhere(answer: object) -> bool:
    """Whether an answer of `/set_internal_state` says that every rank changed."""
    verdicts = answer if isinstance(answer, list) else [answer]
    return bool(verdicts) and all(
        verdict.get("updated") is True if isinstance(verdict, dict) else verdict is True for verdict in verdicts
    )


def _in_words(failed: BaseException) -> str:
    match failed:
        case aiohttp.ConnectionTimeoutError():
            return "no connection in time"
        case TimeoutError():
            return "no answer in time"
        case aiohttp.ClientConnectorCertificateError(certificate_error=ssl.SSLCertVerificationError() as refused):
            return untrusted(refused)
        case aiohttp.ClientConnectorDNSError():
            return f"host name not found ({failed.os_error})"
        case aiohttp.ClientConnectorError():
            number = failed.os_error.errno
            return f"no connection ({os.strerror(number) if number else failed.os_error})"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError() | ConnectionError():
            return "the connection broke"
        case _:
            return f"{type(failed).__name__}: {failed}"
