"""Sends a router thousands of requests that are almost right, and looks whether it minds.

    scripts/bench fuzz [--requests 10000] [--seed 7] [--out bench/results/fuzz.json]

The router is a process of its own in front of one backend. Each of a number of connections at a time carries one byte
string of `tests/integration/router/fuzzing.py`: requests with odd framing, headers, bodies and encodings, then cut,
flipped, doubled or with bytes put in. Every tenth client leaves without reading, every third keeps its side open and
waits a little. Prints one JSON document; ends with 1
unless the router is alive, answered no 500, has nothing in flight, no connection left open, and takes no more memory
than after the first tenth.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from selector.loadgen.live import free_ports

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]
from _soak_router import (  # noqa: E402 - beside this script, found by its folder
    backend_process,
    fleet_text,
    leftovers,
    open_files,
    provenance,
    resident_mb,
    router_process,
    what_is_left,
)

from tests.integration.router.fuzzing import mutated_requests  # noqa: E402 - the tests' own generator

_ANSWERED_WITHIN_S = 20.0
_SILENCE_S = 0.3
_MORE_MB = 16.0
"""Growth of memory that is no leak: buffers, caches of labels and views."""
_MORE_FILES = 8
"""Beyond what the router has open when it is ready: polls, the question how it is, and no client."""
_SETTLE_S = 10.0


class Fuzz:
    """One run's counts."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = parts.hostname, parts.port
        self.statuses: Counter[str] = Counter()
        self.sent = 0
        self.stuck = 0

    async def send(self, strings: Iterator[bytes]) -> None:
        """One connection after the other until there are no more strings."""
        for string in strings:
            self.sent += 1
            try:
                async with asyncio.timeout(_ANSWERED_WITHIN_S):
                    self._count(await self._exchanged(string, self.sent))
            except TimeoutError:
                self.stuck += 1

    async def _exchanged(self, string: bytes, number: int) -> bytes:
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            writer.write(string)
            if number % 10 == 0:
                await writer.drain()
                return b""
            if number % 3 == 0:
                return await _until_silence(reader)
            writer.write_eof()
            return await reader.read(-1)
        except ConnectionError:
            return b""
        finally:
            writer.transport.abort()

    def _count(self, received: bytes) -> None:
        for line in received.split(b"\r\n"):
            if line.startswith(b"HTTP/1.1 "):
                self.statuses[line[9:12].decode("latin-1")] += 1


async def _until_silence(reader: asyncio.StreamReader) -> bytes:
    received = b""
    while True:
        try:
            async with asyncio.timeout(_SILENCE_S):
                part = await reader.read(65_536)
        except TimeoutError:
            return received
        if not part:
            return received
        received += part


async def run(requests: int, seed: int, connections: int, folder: Path) -> dict[str, Any]:
    """Starts router and backend, sends everything, looks at what is left."""
    backend_port, router_port = free_ports(2)
    url, config = f"http://127.0.0.1:{router_port}", folder / "fleet.toml"
    config.write_text(fleet_text(router_port, [(backend_port, "none")], "least_loaded", "max_body_bytes = 10_000"))
    backend, router = backend_process(backend_port, "none", 0), router_process(config, folder / "log.jsonl")
    try:
        await backend.start()
        await router.start()
        files, fuzz, began_s = open_files(router.pid), Fuzz(url), time.monotonic()
        strings = mutated_requests(requests, seed)
        memory_mb = []
        for part in (requests // 10, requests):  # the first tenth warms caches and buffers up
            some = islice(strings, part)
            await asyncio.gather(*(fuzz.send(some) for _ in range(connections)))
            memory_mb.append(resident_mb(router.pid))
        seconds = time.monotonic() - began_s
        most_files = files + _MORE_FILES
        left = await asyncio.to_thread(what_is_left, url, router.pid, most_files=most_files, within_s=_SETTLE_S)
        left["exit_code"] = await router.end(signal.SIGTERM)
    finally:
        await router.kill()
        await backend.kill()
    return {
        "sent": fuzz.sent,
        "seconds": round(seconds, 1),
        "stuck": fuzz.stuck,
        "answers": dict(fuzz.statuses.most_common()),
        "rss_mb_after_a_tenth": memory_mb[0],
        "rss_mb_after_all": memory_mb[1],
        **left,
    }


def wrong(result: Mapping[str, Any]) -> list[str]:
    """What must not be."""
    found = leftovers(result)
    if result["answers"].get("500"):
        found.append(f"{result['answers']['500']} answers are 500")
    if result["stuck"]:
        found.append(f"{result['stuck']} requests had no end within {_ANSWERED_WITHIN_S:g} s")
    if result["exit_code"]:
        found.append(f"the router ended with {result['exit_code']}")
    growth_mb = result["rss_mb_after_all"] - result["rss_mb_after_a_tenth"]
    if growth_mb > _MORE_MB:
        found.append(f"memory grew by {growth_mb:.1f} MB")
    return found


def main() -> int:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--out", type=Path, help="write the JSON document there, too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(run(args.requests, args.seed, args.connections, Path(folder)))
    failures = wrong(result)
    document = {"benchmark": "fuzz", **provenance("fuzz.py"), "seed": args.seed, **result, "wrong": failures}
    text = json.dumps(document, indent=1)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n", encoding="utf-8")
    for failure in failures:
        print(f"fuzz: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
