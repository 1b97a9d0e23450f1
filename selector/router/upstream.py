"""The HTTP side of one backend: a connection pool, and every way it can fail turned into `UpstreamError`."""

from __future__ import annotations

import asyncio
import io
import os
from contextlib import suppress
from typing import Any

import aiohttp
import orjson
from multidict import CIMultiDict
from yarl import URL

from selector.core.policy import BackendSpec
from selector.errors import FleetError, UpstreamError
from selector.files.fleet import Backend, Router

_KEEP_IDLE_S = 3.0
"""Less than the 5 s after which SGLang closes an idle connection: a request must not meet the closing."""
_COPIED_BODY_BYTES = 1 << 20
"""Larger bodies are sent in pieces, so that other requests get their turn."""
_NO_AUTOMATIC_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class Upstream:
    """One backend. Belongs to one event loop; `close` it."""

    def __init__(self, backend: Backend, spec: BackendSpec, options: Router, where: str) -> None:
        """Raises `FleetError` for a backend without a URL, or whose API key is not in the environment."""
        if backend.url is None:
            raise FleetError(f"{where}: backend {backend.name}: url", "is missing", "say where the server listens")
        self.name = backend.name
        self.arm = backend.arm
        self.url = backend.url
        self.spec = spec
        self.api_key: str | None = None
        if backend.api_key_env is not None:
            self.api_key = os.environ.get(backend.api_key_env)
            if not self.api_key:
                place = f"{where}: backend {backend.name}: api_key_env"
                raise FleetError(place, f"names {backend.api_key_env!r}, which is not set", "export the key")
        self._idle_timeout_s = options.stream_idle_timeout_s
        self._poll_timeout_s = options.poll_timeout_s
        self._first_byte_timeout_s = options.first_byte_timeout_s
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_IDLE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=_NO_AUTOMATIC_HEADERS,
            timeout=aiohttp.ClientTimeout(total=None, connect=options.connect_timeout_s),
        )

    async def close(self) -> None:
        """Closes every connection."""
        await self._session.close()

    async def post(
        self, path_and_query: str, headers: CIMultiDict[str], body: bytes, *, generating_s: float
    ) -> UpstreamAnswer:
        """Sends a request and waits for the head of the answer. Raises `UpstreamError` when there is none.

        `generating_s` is how long the server may generate before its first byte, on top of the fleet file's limit.
        """
        try:
            async with asyncio.timeout(self._first_byte_timeout_s + generating_s):
                response = await self._session.post(
                    URL(self.url + path_and_query, encoded=True),
                    headers=headers,
                    data=body if len(body) <= _COPIED_BODY_BYTES else io.BytesIO(body),
                    allow_redirects=False,
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as failed:
            raise UpstreamError(_in_words(failed)) from failed
        return UpstreamAnswer(response, self._idle_timeout_s)

    async def abort(self, body: bytes) -> None:
        """Passes on `/abort_request`. Raises nothing: a backend that cannot be reached runs nothing of ours."""
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with (
                asyncio.timeout(self._poll_timeout_s),
                self._session.post(
                    self.url + "/abort_request", data=body, headers=self._own_headers("application/json")
                ) as response,
            ):
                await response.read()

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


class UpstreamAnswer:
    """An answer whose head has come. Whoever got it must `close` it; that costs nothing once it was read to its end."""

    def __init__(self, response: aiohttp.ClientResponse, idle_timeout_s: float) -> None:
        self.status = response.status
        self.raw_headers = response.raw_headers
        self._response = response
        self._idle_timeout_s = idle_timeout_s
        self._loop = asyncio.get_running_loop()
        self._waiting_since_s: float | None = None
        self._paused_too_long = False
        # One timer that looks now and then, rather than one for every piece.
        self._timer = self._loop.call_later(idle_timeout_s, self._look_at_pause)

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is a stream of events that can be read: not compressed."""
        headers = self._response.headers
        kind = headers.get("content-type", "").lower()
        return kind.startswith("text/event-stream") and "content-encoding" not in headers

    async def next_piece(self) -> bytes:
        """What came next of the body, never across the border of two HTTP chunks; empty at its end.

        Raises `UpstreamError` when the connection broke before the end, or the body paused for too long.
        """
        self._waiting_since_s = self._loop.time()
        try:
            while True:
                piece, ends_chunk = await self._response.content.readchunk()
                if piece or not ends_chunk:
                    return piece
        except (aiohttp.ClientError, TimeoutError, OSError) as failed:
            words = f"nothing came for {self._idle_timeout_s:g} s" if self._paused_too_long else _in_words(failed)
            raise UpstreamError(words) from failed
        finally:
            self._waiting_since_s = None

    async def whole_body(self) -> bytes:
        """The rest of the body. Raises as `next_piece` does."""
        pieces = []
        while piece := await self.next_piece():
            pieces.append(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Closes the connection, unless the answer was read to its end."""
        self._timer.cancel()
        self._response.close()

    def _look_at_pause(self) -> None:
        # A pause counts only while we wait for the backend, not while the client is slow.
        now_s = self._loop.time()
        since_s = now_s if self._waiting_since_s is None else self._waiting_since_s
        left_s = since_s + self._idle_timeout_s - now_s
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look_at_pause)
        else:
            self._paused_too_long = True
            self._response.close()


def _in_words(failed: BaseException) -> str:
    match failed:
        case aiohttp.ConnectionTimeoutError():
            return "no connection in time"
        case TimeoutError():
            return "no answer in time"
        case aiohttp.ClientConnectorDNSError():
            return f"host name not found ({failed.os_error})"
        case aiohttp.ClientConnectorError():
            number = failed.os_error.errno
            return f"no connection ({os.strerror(number) if number else failed.os_error})"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError() | ConnectionError():
            return "the connection broke"
        case _:
            return f"{type(failed).__name__}: {failed}"
