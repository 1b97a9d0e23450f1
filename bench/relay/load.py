"""The client of the relay benchmark: a number of connections, one request at a time on each; prints JSON.

Counts what a reader would notice: when the first content came, the gaps between chunks, how long each chunk was on its
way (the stub stamps it), and every HTTP chunk that holds more or less than one event.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from dataclasses import asdict, dataclass, field
from urllib.parse import urlsplit

import uvloop

_STAMP = re.compile(rb'"content":"t(\d+)\.')
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_MODEL = "Qwen3-8B"
_QUESTION = "Write a short story about a lighthouse keeper who finds a letter in a bottle, in simple words. "


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked of the server at `url`."""

    url: str
    connections: int
    requests: int
    """In all."""
    tokens: int = 64
    pace_ms: int = 20
    stream: bool = True
    spread_s: float = 0.0
    """Above 0, how long opening the connections is spread over."""
    limit_s: float = 120.0
    """The run is cut off after this long."""


@dataclass(slots=True)
class Seen:
    """What the client saw, all connections together. Times in milliseconds."""

    completed: int = 0
    failed: int = 0
    open_streams: int = 0
    most_open_streams: int = 0
    chunks: int = 0
    """Content chunks."""
    merged_chunks: int = 0
    """HTTP chunks with more than one event."""
    split_chunks: int = 0
    """HTTP chunks that end inside an event."""
    ttfb_ms: list[float] = field(default_factory=list)
    latency_ms: list[float] = field(default_factory=list)
    gap_ms: list[float] = field(default_factory=list)
    way_ms: list[float] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)


def request_bytes(load: Load) -> bytes:
    """One request, as it goes over the wire."""
    body = {
        "model": _MODEL,
        "messages": [{"role": "user", "content": _QUESTION * 4}],
        "max_tokens": load.tokens,
        "seed": load.pace_ms,
        "temperature": 0.7,
        "stream": load.stream,
    }
    data = json.dumps(body).encode()
    host = urlsplit(load.url).netloc.encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: %b\r\nAccept: */*\r\nUser-Agent: relay-bench\r\n"
        b"Authorization: Bearer sk-bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (host, len(data), data)
    )


class Reader(asyncio.Protocol):
    """One connection of the client."""

    def __init__(self, load: Load, seen: Seen, next_request: Requests) -> None:
        self._load = load
        self._seen = seen
        self._requests = next_request
        self._request = request_bytes(load)
        self._pending = b""
        self._waiting = False
        self._chunked: bool | None = None
        self._sent_s = self._last_s = 0.0
        self._open = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Connected: the first request."""
        self._transport = transport
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        """The server closed, or the run is over."""
        if self._waiting:
            self._end("connection lost")

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        now_s = time.monotonic()
        self._pending = self._pending + data if self._pending else data
        if self._chunked is None and not self._head():
            return
        if self._chunked:
            self._chunks(now_s)
        elif len(self._pending) >= self._length:
            self._pending = b""
            self._end(None)

    def _send(self) -> None:
        if not self._requests.take():
            self._transport.close()
            return
        self._chunked = None
        self._waiting = True
        self._last_s = 0.0
        self._sent_s = time.monotonic()
        self._transport.write(self._request)

    def _head(self) -> bool:
        end = self._pending.find(b"\r\n\r\n") + 4
        if end < 4:
            return False
        head, self._pending = self._pending[:end], self._pending[end:]
        status = head[9:12].decode()
        if status != "200":
            self._waiting = False
            self._finish(f"status {status}")
            self._transport.abort()
            return False
        self._chunked = b"chunked" in head.lower()
        match = _LENGTH.search(head)
        self._length = int(match.group(1)) if match else 0
        return True

    def _chunks(self, now_s: float) -> None:
        pending, start = self._pending, 0
        while (line_end := pending.find(b"\r\n", start)) >= 0:
            size = int(pending[start:line_end], 16)
            end = line_end + 2 + size
            if len(pending) < end + 2:
                break
            start = end + 2
            if size == 0:
                self._pending = b""
                self._end(None)
                return
            self._chunk(pending[line_end + 2 : end], now_s)
        self._pending = pending[start:]

    def _chunk(self, chunk: bytes, now_s: float) -> None:
        seen = self._seen
        events = chunk.count(b"\n\n")
        if events != 1 or not chunk.endswith(b"\n\n"):
            seen.merged_chunks += events > 1
            seen.split_chunks += not chunk.endswith(b"\n\n")
        stamps = _STAMP.findall(chunk)
        if not stamps:
            return
        seen.chunks += len(stamps)
        if self._last_s:
            seen.gap_ms.append(1e3 * (now_s - self._last_s))
        else:
            seen.ttfb_ms.append(1e3 * (now_s - self._sent_s))
            self._open = True
            seen.open_streams += 1
            seen.most_open_streams = max(seen.most_open_streams, seen.open_streams)
        self._last_s = now_s
        seen.way_ms.append(1e3 * now_s - int(stamps[-1]) / 1e6)

    def _end(self, failure: str | None) -> None:
        self._waiting = False
        if failure is None:
            self._seen.latency_ms.append(1e3 * (time.monotonic() - self._sent_s))
        self._finish(failure)
        if failure is None:
            self._send()

    def _finish(self, failure: str | None) -> None:
        seen = self._seen
        seen.open_streams -= self._open
        self._open = False
        if failure is None:
            seen.completed += 1
        else:
            seen.failed += 1
            seen.failures[failure] = seen.failures.get(failure, 0) + 1
        self._requests.ended(failure)


class Requests:
    """How many are still to send, and when the last one is over."""

    def __init__(self, count: int) -> None:
        self._left = self._running = count
        self.over = asyncio.Event()

    def take(self) -> bool:
        """Whether there is one more to send."""
        self._left -= 1
        return self._left >= 0

    def ended(self, failure: str | None) -> None:
        """One is over. A failure takes its connection along, and the requests it would still have sent are given up."""
        self._running -= 1
        if self._running <= 0 or failure is not None:
            self.over.set()


async def run(load: Load) -> Seen:
    """Sends everything and returns what was seen. A failed request ends the run early."""
    loop = asyncio.get_running_loop()
    seen, requests = Seen(), Requests(load.requests)
    parts = urlsplit(load.url)
    # Paced streams begin spread over one pace, as readers do.
    spread_s = load.spread_s or (load.pace_ms / 1e3 if load.stream else 0.0)
    begun_s = loop.time()
    transports = []
    for index in range(load.connections):
        await asyncio.sleep(max(0.0, begun_s + spread_s * index / load.connections - loop.time()))
        transport, _ = await loop.create_connection(
            lambda: Reader(load, seen, requests), parts.hostname, parts.port or 80
        )
        transports.append(transport)
    try:
        async with asyncio.timeout(load.limit_s):
            await requests.over.wait()
    except TimeoutError:
        seen.failures["cut off at the time limit"] = 1
    for transport in transports:
        transport.abort()
    return seen


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("load", type=json.loads, help="JSON: the fields of Load")
    load = Load(**parser.parse_args().load)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        seen = runner.run(run(load))
    print(json.dumps(asdict(seen)))


if __name__ == "__main__":
    main()
