"""A client that sees what HTTP libraries hide: the chunks of a chunked body, one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

DEADLINE_S = 20.0
"""Far above what anything here takes: a test that hangs fails."""


@dataclass(slots=True)
class Answer:
    """The head of an answer, and its body as it comes."""

    status: int
    headers: list[tuple[str, str]]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def header(self, name: str) -> str | None:
        """The value, if it came exactly once."""
        values = [value for key, value in self.headers if key.lower() == name]
        return values[0] if len(values) == 1 else None

    async def chunks(self) -> AsyncIterator[bytes]:
        """The HTTP chunks of the body. Raises `IncompleteReadError` when it is cut off."""
        assert self.header("transfer-encoding") == "chunked"
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            chunk = await self.reader.readexactly(size + 2)
            assert chunk.endswith(b"\r\n")
            yield chunk[:-2]
        assert await self.reader.readexactly(2) == b"\r\n"

    async def body(self) -> bytes:
        length = self.header("content-length")
        if length is not None:
            return await self.reader.readexactly(int(length))
        return b"".join([chunk async for chunk in self.chunks()])

    async def json(self) -> Any:
        return orjson.loads(await self.body())

    def leave(self) -> None:
        """Closes the connection at once."""
        self.writer.transport.abort()


@asynccontextmanager
async def connection(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to the server at `url`."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield reader, writer
    finally:
        writer.transport.abort()


@asynccontextmanager
async def request(
    url: str,
    path: str = "/v1/chat/completions",
    body: bytes | Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    method: str = "POST",
) -> AsyncIterator[Answer]:
    """Sends one request on a connection of its own and yields the answer once its head came."""
    async with connection(url) as (reader, writer):
        writer.write(request_bytes(path, body, headers, method=method))
        await writer.drain()
        yield await answer_from(reader, writer)


def request_bytes(
    path: str,
    body: bytes | Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    method: str = "POST",
) -> bytes:
    """A request as it goes over the wire."""
    data = b"" if body is None else body if isinstance(body, bytes) else orjson.dumps(body)
    given = {"Host": "router", "Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + data


async def answer_from(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Answer:
    """The head of the next answer on a connection."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    return Answer(int(first.split(" ")[1]), headers, reader, writer)
