"""What one streamed request costs the router, part by part, without a socket; prints JSON.

    python bench/relay/request_path.py --requests 2000
    python bench/relay/request_path.py --cold            # other work has emptied the processor's caches in between
    python bench/relay/request_path.py --profile 25      # the functions that take longest

The whole data path runs as it serves: connection, policy, decision log, books. Both ends of it are transports that keep
nothing, so that what is left is this project's own cost. Times are processor time of the thread that serves; `calls`
are calls of Python functions, which no load of the machine changes; those of compiled modules are not seen. `compiled`
says whether the package was installed with DRAFTER_SELECTOR_COMPILE=1: run it by the Python that has it.

    sent     from the bytes of the request to those of the backend's request: the client waits for all of it
    behind   what is left to do then, before anything else happens
    first    head and first chunk of the answer, until they are written to the client
    chunk    each further chunk
    end      finish, usage, `[DONE]` and the end of the body
    after    what is left to do then
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import os
import platform
import pstats
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import uvloop
from load import Load, request_bytes
from peers import ARMS, ours
from stub import _DONE, _FINISH, _STREAM_HEAD, content_chunk, framed, usage_event
from uvicorn import Config
from uvicorn.server import ServerState

sys.path.insert(0, str(Path(__file__).parents[1]))

from _timing import cpu_model

from selector import __version__
from selector.core import stream
from selector.files.decision_log_writer import DecisionLogWriter, LogSection
from selector.files.fleet import load_fleet_with_profiles
from selector.files.policy import load_policy_file
from selector.router.configuration import Configuration, Reloads, wall_time
from selector.router.front import Front
from selector.router.generation import Generation
from selector.router.keyring import KeyRing
from selector.router.loads import server_facts
from selector.router.metrics import RouterMetrics
from selector.router.pool import Connection
from selector.router.serving import Serving

PARTS = ("sent", "behind", "first", "chunk", "end", "after")
TURNS = 12
"""Of the event loop, after which everything that was begun is done."""
COLD_BYTES = 64 * 1024 * 1024


class Line:
    """A transport that keeps nothing; `wrote` is called with what is written."""

    def __init__(self, wrote: Callable[[bytes], None]) -> None:
        self._wrote = wrote

    def write(self, data: bytes) -> None:
        """See `asyncio.Transport`; so are the others."""
        self._wrote(data)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str) -> None:
        return None

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


class OnePath:
    """One client connection and one connection to each backend, and a clock for the parts."""

    def __init__(self, generation: Generation, metrics: RouterMetrics, read: Callable[[], float]) -> None:
        self._read = read
        self.parts: dict[str, list[float]] = {part: [] for part in PARTS}
        self._sent_at = 0.0
        self._asked: Connection | None = None
        self._connections: list[Connection] = []
        self.answered = 0
        serving = Serving(
            admission=generation.admission,
            relay=generation.relay,
            control=generation.control,
            private=generation.private,
        )
        self.front = Front(Config(app=None), ServerState(), {}, serving=serving)
        self.front.connection_made(Line(self._answered))  # type: ignore[arg-type]
        self._upstreams = generation.state.watch.backends
        self._pools = {name: backend.upstream._pool for name, backend in self._upstreams.items()}
        for pool in self._pools.values():
            connection = Connection(pool)
            connection.connection_made(Line(lambda data, connection=connection: self._written(connection)))
            pool.give_back(connection)
            self._connections.append(connection)

    def _answered(self, data: bytes) -> None:
        self.answered += len(data)

    def _written(self, connection: Connection) -> None:
        self._sent_at = self._read()
        self._asked = connection

    async def one(self, request: bytes, first: bytes, chunks: list[bytes], end: bytes) -> None:
        """One request and its answer."""
        read, parts = self._read, self.parts
        for connection in self._connections:  # one that is chosen seldom must not be too old
            connection.idle_since_s = asyncio.get_running_loop().time()
        began = read()
        self.front.data_received(request)
        await self._settled()
        parts["sent"].append(self._sent_at - began)
        parts["behind"].append(read() - self._sent_at)
        connection, self._asked = self._asked, None
        assert connection is not None
        began = read()
        connection.data_received(first)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        parts["first"].append(read() - began)
        began = read()
        for chunk in chunks:
            connection.data_received(chunk)
        parts["chunk"].append((read() - began) / len(chunks))
        began = read()
        connection.data_received(end)
        parts["end"].append(read() - began)
        began = read()
        await self._settled()
        parts["after"].append(read() - began)

    async def _settled(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)


async def generation_of(work: Path, now_s: Callable[[], float], metrics: RouterMetrics) -> Generation:
    """The router of the benchmark beside it, its backends there without being asked."""
    ours(1, ["http://127.0.0.1:1", "http://127.0.0.1:1"], work, Path(sys.executable))  # writes the fleet file
    loaded = load_fleet_with_profiles(work / "fleet.toml")
    configuration = Configuration(
        fleet=loaded, policy=load_policy_file("min_energy"), fallback=load_policy_file("least_loaded")
    )
    log = DecisionLogWriter(work / "decisions.jsonl", configuration.start_event(0))
    generation = Generation(configuration, log=log, section=LogSection(log))
    await generation.prepare(
        seed=0,
        now_s=now_s,
        metrics=metrics,
        keys=KeyRing((), metrics, now_s),
        own_control_port=False,
        reloads=Reloads(since=wall_time()),
        tracing=None,
    )
    info = {"version": "0.5.23", "model_path": "x", "served_model_name": "Qwen3-8B", "internal_states": [{}]}
    for (name, backend), arm in zip(generation.state.watch.backends.items(), ARMS.values(), strict=True):
        backend.facts = server_facts({**info, **arm})
        generation.state.dispatcher.health_changed(name, available=True, reason=None)
    return generation


async def measured(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Microseconds and calls by part."""
    started_s = time.monotonic()
    metrics = RouterMetrics()
    generation = await generation_of(work, lambda: time.monotonic() - started_s, metrics)
    request = request_bytes(Load(url="http://127.0.0.1:1", connections=1, requests=1))
    end = b"".join(map(framed, [_FINISH, usage_event(64), _DONE])) + b"0\r\n\r\n"
    chunks = [content_chunk() for _ in range(62)]
    answer = (request, _STREAM_HEAD + content_chunk(), chunks, end)
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    path = OnePath(generation, metrics, lambda: time.thread_time_ns() / 1e3)
    other = bytearray(COLD_BYTES)
    for number in range(options.requests):
        if number == options.requests // 10:
            path.parts = {part: [] for part in PARTS}
        if options.cold:
            other[:] = bytes(COLD_BYTES)
        await path.one(*answer)
    times = {part: round(_mean(values), 2) for part, values in path.parts.items()}
    calls = await _counted(generation, metrics, answer)
    if options.profile:
        profiler = cProfile.Profile()
        path = OnePath(generation, metrics, time.perf_counter)
        profiler.enable()
        for _ in range(options.requests):
            await path.one(*answer)
        profiler.disable()
        pstats.Stats(profiler, stream=sys.stderr).sort_stats(options.sort).print_stats(options.profile)
    await generation.close()
    return {"us": times, "us_of_a_request": round(sum(times.values()) - times["chunk"], 1), "calls": calls}


def _mean(values: list[float]) -> float:
    """Without the highest hundredth, which other work made; what is done once for dozens of requests counts."""
    kept = sorted(values)[: len(values) - len(values) // 100]
    return sum(kept) / len(kept)


async def _counted(generation: Generation, metrics: RouterMetrics, answer: tuple[Any, ...]) -> dict[str, float]:
    count = 0

    def seen(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    path = OnePath(generation, metrics, lambda: float(count))
    sys.setprofile(seen)
    try:
        for _ in range(20):
            await path.one(*answer)
    finally:
        sys.setprofile(None)
    return {part: median(values) for part, values in path.parts.items()}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--cold", action="store_true", help="go through much other memory between requests")
    parser.add_argument("--profile", type=int, default=0, metavar="N", help="show the N costliest functions")
    parser.add_argument("--sort", default="tottime", help="of --profile, as pstats sorts")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="request-path-") as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        result = runner.run(measured(options, Path(folder)))
    host = {"cpu": cpu_model(), "cpus": os.cpu_count(), "load_1m": os.getloadavg()[0]}
    compiled = not str(stream.__file__).endswith(".py")
    versions = {"drafter-selector": __version__, "python": platform.python_version(), "compiled": compiled}
    print(json.dumps({"benchmark": "request_path", "host": host, "versions": versions, **result}, indent=1))


if __name__ == "__main__":
    main()
