"""The little of HTTP that the emulator needs, on bare ASGI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

import orjson

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

Handler = Callable[[Scope, Receive, Send], Awaitable[None]]

Headers = list[tuple[bytes, bytes]]

JSON_TYPE = (b"content-type", b"application/json")
VARY = (b"vary", b"Origin")
"""What the CORS layer of a real server adds to every answer, but for those of the layer in front of it."""


def header(scope: Scope, name: str) -> str | None:
    """The value of a request header, its first if it is there several times."""
    wanted = name.encode()
    for key, value in scope["headers"]:
        if key == wanted:
            return str(value.decode("latin-1"))
    return None


def query(scope: Scope, name: str) -> str | None:
    """The value of a query parameter, its last if it is there several times."""
    values = parse_qs(scope["query_string"].decode("latin-1")).get(name)
    return values[-1] if values else None


async def read_body(receive: Receive) -> bytes:
    """The whole body of a request; what came of it if the client left meanwhile."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            break
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            break
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def send_json(send: Send, body: object, *, status: int = 200, extra: Headers | None = None) -> None:
    """An answer with JSON."""
    await send_bytes(send, orjson.dumps(body), status=status, headers=[JSON_TYPE, VARY, *(extra or [])])


async def send_text(send: Send, body: bytes = b"", *, status: int = 200) -> None:
    """An answer without a content type, as SGLang's control routes give it."""
    await send_bytes(send, body, status=status, headers=[VARY])


async def send_raw_json(send: Send, body: bytes) -> None:
    """An answer with JSON that is bytes already."""
    await send_bytes(send, body, status=200, headers=[JSON_TYPE, VARY])


async def send_bytes(send: Send, body: bytes, *, status: int, headers: Headers) -> None:
    """An answer of known length."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def start_chunked(send: Send, content_type: bytes) -> None:
    """Begins an answer of unknown length; `send_chunk` goes on, `end_chunked` ends it."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", content_type), VARY]})


async def send_chunk(send: Send, chunk: bytes) -> None:
    """One chunk."""
    await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def end_chunked(send: Send) -> None:
    """The empty chunk that ends an answer."""
    await send({"type": "http.response.body", "body": b""})
