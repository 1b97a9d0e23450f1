"""The clients of the soak: most of them behave, some leave, some dawdle, some send what is no request.

Each ask ends in one word; what a router must never let happen is in `NEVER`.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

DEADLINE_S = 30.0
"""Far beyond every time limit of the router's configuration: who waits longer is stuck."""
NEVER = ("stuck", "lost", "500 of the router")
_PATH = "/v1/chat/completions"
_RID = re.compile(rb"\r\nx-drafter-selector-rid: ([0-9a-f]+)\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_HALF = b"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nContent-Length: 50\r\n\r\n{"
_ODD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nContent-Length: 3\r\n\r\n{{{",
    b'POST /generate HTTP/1.1\r\nHost: r\r\nContent-Length: 12\r\n\r\n{"text":"\xff\xfe"}',
    b"POST /generate HTTP/1.1\r\nHost: r\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}{}{}",
    b"POST /generate HTTP/1.1\r\nHost: r\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /generate HTTP/1.1\r\nHost: r\r\nContent-Length: 99999999\r\n\r\n{}",
    b"POST /generate HTTP/1.1\r\n" + b"X-A: b\r\n" * 10_000 + b"\r\n",
    b"GET /nothing HTTP/1.1\r\nHost: r\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
)


@dataclass(slots=True)
class Tally:
    """What all clients saw."""

    ends: Counter[str] = field(default_factory=Counter)
    rids: list[str] = field(default_factory=list)
    """The router's names of all requests whose decision a client was told."""
    longest_s: float = 0.0


async def client(
    url: str, seed: int, tally: Tally, *, over: asyncio.Event, away: Callable[[], bool], pause_s: float
) -> None:
    """Asks until it is over. `away` says whether the router is being restarted, so that nobody answers."""
    draw = random.Random(seed)
    loop = asyncio.get_running_loop()
    while not over.is_set():
        began_s = loop.time()
        was_away = away()
        try:
            async with asyncio.timeout(DEADLINE_S):
                end = await _ask(url, draw, tally)
        except TimeoutError:
            end = "stuck"
        except (OSError, asyncio.IncompleteReadError):
            end = "router away" if was_away or away() else "lost"
        tally.ends[end] += 1
        tally.longest_s = max(tally.longest_s, loop.time() - began_s)
        await asyncio.sleep(1.0 if end == "router away" else pause_s * draw.random() * 2)


async def _ask(url: str, draw: random.Random, tally: Tally) -> str:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 20)
    try:
        kind = draw.choices(
            ("stream", "whole", "leaves before", "leaves during", "dawdles", "two at once", "half", "odd"),
            (50, 14, 7, 7, 5, 4, 4, 9),
        )[0]
        match kind:
            case "half":
                writer.write(_HALF)
                await writer.drain()
                return "left in the middle of its request"
            case "odd":
                writer.write(draw.choice(_ODD))
                writer.write_eof()
                return _odd_end(await reader.read(-1))
            case "leaves before":
                writer.write(_request(stream=True))
                await writer.drain()
                await asyncio.sleep(draw.random() * 0.02)
                return "left before an answer"
            case "two at once":
                writer.write(2 * _request(stream=False))
                first = await _answer(reader, tally)
                return first if first in NEVER else await _answer(reader, tally)
            case "whole":
                writer.write(_request(stream=False))
                return await _answer(reader, tally)
            case _:
                writer.write(_request(stream=True))
                pause_s = draw.random() * 0.3 if kind == "dawdles" else 0.0
                return await _answer(reader, tally, leaves=kind == "leaves during", pause_s=pause_s)
    finally:
        writer.transport.abort()


def _request(*, stream: bool) -> bytes:
    message = {"role": "user", "content": "Write a short story about a lighthouse keeper."}
    body = json.dumps({"model": "Qwen3-8B", "messages": [message], "max_tokens": 64, "stream": stream}).encode()
    return f"POST {_PATH} HTTP/1.1\r\nHost: r\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _odd_end(received: bytes) -> str:
    if received.startswith(b"HTTP/1.1 500"):
        return NEVER[2]
    return f"odd request: {received[9:12].decode() or 'closed'}"


async def _answer(reader: asyncio.StreamReader, tally: Tally, *, leaves: bool = False, pause_s: float = 0.0) -> str:
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head[9:12])
    rid = _RID.search(head)
    if rid is not None:
        tally.rids.append(rid.group(1).decode())
    length = _LENGTH.search(head)
    if length is not None:
        await reader.readexactly(int(length.group(1)))
        if status == 500 and rid is None:
            return NEVER[2]
        return f"{status}" if rid is not None else f"{status} of the router"
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
        if leaves:
            return "left in the middle of an answer"
        await asyncio.sleep(pause_s)
    await reader.readexactly(2)
    if not body.endswith(b"data: [DONE]\n\n"):
        return "lost"
    return "error event" if b'"upstream_error"' in body else "complete stream"
