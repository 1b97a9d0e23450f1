"""The router beside nginx, sglang-router, smg and LiteLLM, on the same streams in one run; prints a table and JSON.

All proxies are up on one core, one of them in use at a time; the stub that plays the backends and the client share the
other. Every proxy stands in front of the same two backends and is warmed up first. CPU times are taken in rounds, each
proxy once a round, and are medians. Figures that depend on the machine's other load (everything in milliseconds) are
measured directly against the stub too, right before each proxy, and subtracted.

    added TTFB          16 streams at 20 ms, from the request written to the first content chunk
    whole answer        one at a time, not streamed
    chunk way, gap      64 streams at 20 ms; a chunk's way is from the stub's write to the client's read
    CPU per chunk       256 streams at 20 ms; CPU time of the proxy over content chunks, requests and polls included;
                        streams of 512 chunks tell the cost of a request from that of a chunk
    RSS per stream      2,000 streams held open at a slow pace; also whether all of them got through
    RSS growth          many short streams; resident memory after the last tenth against after the first tenth
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from typing import Any, TextIO

from load import Load
from peers import ARMS, PEERS, MissingPeer, Proxy, ours
from processes import cpu_s, rss_kb, started, wait_for

from selector.loadgen.live import free_ports

HERE = Path(__file__).parent
RESULT = HERE.parent / "results" / "relay.json"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "drafter-selector-peers"
SHORT_TOKENS, LONG_TOKENS = 64, 512
"""Lengths of streams between which the cost of a request and that of a chunk are told apart."""

OURS = "drafter-selector"
Figures = dict[str, float | int | None]
ProxyAt = Callable[[int, Sequence[str], Path], Proxy]
"""A proxy on a port, before these backends, with a folder for its files. Raises `MissingPeer`."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client that runs, and what it says when it has ended."""

    process: subprocess.Popen[bytes]
    output: TextIO

    def seen(self) -> Any:
        """What it saw. Raises `RuntimeError` if it failed."""
        if self.process.returncode:
            raise RuntimeError(f"the client ended with status {self.process.returncode}; its error is above")
        self.output.seek(0)
        return json.load(self.output)


def load(core: int, **fields: Any) -> Any:
    """Runs the client; what it saw."""
    given = Load(**fields)
    with begun_load(core, given) as client:
        client.process.wait(timeout=given.limit_s + 60.0)
        return client.seen()


@contextmanager
def begun_load(core: int, given: Load) -> Iterator[Client]:
    """The client, running; stopped at the end if it still does."""
    command = ["taskset", "-c", str(core), sys.executable, str(HERE / "load.py"), json.dumps(asdict(given))]
    # A file takes any amount at once; a pipe that is read now and then would hold up the client.
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output)
        try:
            yield Client(process, output)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def at(values: Sequence[float], percent: int) -> float | None:
    """A percentile; `None` of too few values."""
    return round(quantiles(values, n=100, method="inclusive")[percent - 1], 4) if len(values) >= 2 else None


class Bench:
    """One run over one address after the other."""

    def __init__(self, options: argparse.Namespace, client_core: int) -> None:
        self._options = options
        self.core = client_core

    def times(self, url: str) -> Figures:
        """What a reader notices, with the stub or a proxy at `url`."""
        options = self._options
        load(self.core, url=url, connections=16, requests=64, tokens=16, pace_ms=1)
        first = load(self.core, url=url, connections=16, requests=16 * options.rounds)
        whole = load(self.core, url=url, connections=1, requests=options.whole, stream=False)
        even = load(self.core, url=url, connections=64, requests=64 * options.rounds // 4)
        burst = load(self.core, url=url, connections=4, requests=64, pace_ms=0)
        return {
            "ttfb_p50_ms": at(first["ttfb_ms"], 50),
            "ttfb_p99_ms": at(first["ttfb_ms"], 99),
            "whole_p50_ms": at(whole["latency_ms"], 50),
            "whole_p99_ms": at(whole["latency_ms"], 99),
            "way_p50_ms": at(even["way_ms"], 50),
            "way_p99_ms": at(even["way_ms"], 99),
            "gap_p50_ms": at(even["gap_ms"], 50),
            "gap_p99_ms": at(even["gap_ms"], 99),
            "merged_chunks": even["merged_chunks"],
            "split_chunks": even["split_chunks"],
            "burst_merged_chunks": burst["merged_chunks"],
            "burst_split_chunks": burst["split_chunks"],
            "failed": sum(seen["failed"] for seen in (first, whole, even, burst)),
        }

    def costs(self, addresses: Mapping[str, tuple[str, int]]) -> dict[str, Figures]:
        """CPU time per chunk at many paced streams, by proxy; in rounds, so that all meet the same machine."""
        rounds: dict[str, list[Figures]] = {name: [] for name in addresses}
        for number in range(self._options.cpu_rounds):
            for name, (url, pid) in addresses.items():
                rounds[name].append(self._cost(url, pid))
                print(f"round {number}: {name} {rounds[name][-1]['cpu_us_per_chunk']}", file=sys.stderr, flush=True)
        return {name: _over_rounds(figures) for name, figures in rounds.items()}

    def _cost(self, url: str, pid: int) -> Figures:
        """One round of one proxy, and how its cost divides between requests and chunks."""
        fields: dict[str, Any] = {"url": url, "connections": 256, "limit_s": 30.0}
        begun_s = time.monotonic()
        used_s, seen = self._used(pid, requests=256 * 3, tokens=SHORT_TOKENS, **fields)
        took_s = time.monotonic() - begun_s
        long_used_s, long_seen = self._used(pid, requests=256, tokens=LONG_TOKENS, **fields)
        short_us = 1e6 * used_s / max(1, seen["chunks"])
        long_us = 1e6 * long_used_s / max(1, long_seen["chunks"])
        # us(tokens) = per chunk + per request / tokens, at two lengths.
        request_us = (short_us - long_us) / (1 / SHORT_TOKENS - 1 / LONG_TOKENS)
        # A run that was cut off tells what a chunk costs, but not how that divides.
        whole = seen["completed"] == 256 * 3 and long_seen["completed"] == 256
        return {
            "cpu_us_per_chunk": round(short_us, 2),
            "cpu_us_per_chunk_long": round(long_us, 2),
            "cpu_us_of_a_request": round(request_us, 1) if whole else None,
            "cpu_us_of_a_chunk": round(long_us - request_us / LONG_TOKENS, 2) if whole else None,
            "cpu_frac": round(used_s / took_s, 3),
            "loaded_ttfb_p50_ms": at(seen["ttfb_ms"], 50),
            "loaded_gap_p99_ms": at(seen["gap_ms"], 99),
            "loaded_merged_chunks": seen["merged_chunks"],
            "loaded_split_chunks": seen["split_chunks"],
            "loaded_failed": seen["failed"] + long_seen["failed"],
        }

    def _used(self, pid: int, **fields: Any) -> tuple[float, Any]:
        before_s = cpu_s(pid)
        seen = load(self.core, **fields)
        return cpu_s(pid) - before_s, seen

    def held(self, url: str, pid: int) -> Figures:
        """Memory of streams that are open at the same time."""
        count = self._options.held
        spread_s = count / 250.0
        before_kb = most_kb = rss_kb(pid)
        # Every stream outlasts the opening of all of them.
        given = Load(
            url=url,
            connections=count,
            requests=count,
            tokens=round(spread_s) + 10,
            pace_ms=1_000,
            spread_s=spread_s,
            limit_s=4 * spread_s + 60.0,
        )
        with begun_load(self.core, given) as client:
            while client.process.poll() is None:  # it ends at its own limit
                most_kb = max(most_kb, rss_kb(pid))
                time.sleep(0.5)
            seen = client.seen()
        return {
            "held_streams": seen["most_open_streams"],
            "held_failed": seen["failed"],
            "rss_kb_per_stream": round((most_kb - before_kb) / count, 1),
        }

    def growth(self, url: str, pid: int) -> Figures:
        """Memory over many streams."""
        tenth = max(1, self._options.soak // 10)
        fields: dict[str, Any] = {"url": url, "connections": 64, "tokens": 4, "pace_ms": 0, "limit_s": 900.0}
        rss = []
        failed = 0
        for _ in range(10):
            failed += load(self.core, requests=tenth, **fields)["failed"]
            rss.append(rss_kb(pid))
        return {
            "soak_streams": 10 * tenth,
            "soak_failed": failed,
            "soak_rss_first_tenth_kb": rss[0],
            "soak_rss_last_tenth_kb": rss[-1],
        }


def _over_rounds(rounds: Sequence[Figures]) -> Figures:
    """Medians of measured figures, sums of counts, and the range of the headline."""
    figures: Figures = {}
    for key in rounds[0]:
        values = [found for figures_of_round in rounds if (found := figures_of_round[key]) is not None]
        counts = key.endswith(("_chunks", "_failed"))
        figures[key] = None if not values else sum(values) if counts else round(median(values), 3)
    headlines = [figures_of_round["cpu_us_per_chunk"] or 0.0 for figures_of_round in rounds]
    return figures | {"cpu_us_per_chunk_least": min(headlines), "cpu_us_per_chunk_most": max(headlines)}


def added(proxy: Figures, direct: Figures) -> Figures:
    """What a proxy adds to the times measured without one."""
    figures: Figures = {}
    for name, value in proxy.items():
        base = direct.get(name)
        if name.endswith("_ms") and value is not None and base is not None:
            figures[f"added_{name}"] = round(value - base, 4)
    return figures


def measure(bench: Bench, name: str, url: str, pid: int, upstream: str, options: argparse.Namespace) -> Figures:
    """The figures of one proxy but those of its CPU time; times without it have names that begin with `direct_`."""
    # Right before, so that both meet the same machine.
    direct = bench.times(upstream)
    figures = bench.times(url)
    figures |= added(figures, direct)
    if options.held:
        figures |= bench.held(url, pid)
    if options.soak and (name == OURS or options.soak_all):
        figures |= bench.growth(url, pid)
    return figures | {f"direct_{key}": value for key, value in direct.items() if key.endswith("_ms")}


def until_it_answers(bench: Bench, url: str, name: str) -> None:
    """Some say that they are healthy before they know their backends."""
    end_s = time.monotonic() + 30.0
    while time.monotonic() < end_s:
        if load(bench.core, url=url, connections=1, requests=1, tokens=2, pace_ms=1, limit_s=10.0)["completed"]:
            return
        time.sleep(0.5)
    raise MissingPeer(f"{name} answers no request")


TABLE = (
    ("cpu_us_per_chunk", "CPU µs/chunk", True),
    ("cpu_us_per_chunk_least", "least", False),
    ("cpu_us_of_a_request", "µs/request", False),
    ("cpu_us_of_a_chunk", "µs/more chunk", False),
    ("added_ttfb_p50_ms", "TTFB p50 +ms", False),
    ("added_ttfb_p99_ms", "TTFB p99 +ms", False),
    ("added_whole_p50_ms", "whole +ms", False),
    ("added_gap_p50_ms", "gap p50 +ms", False),
    ("added_way_p50_ms", "way p50 +ms", False),
    ("merged_chunks", "merged", False),
    ("split_chunks", "split", False),
    ("held_streams", "held", False),
    ("rss_kb_per_stream", "KB/stream", False),
    ("failed", "failed", False),
)


def table(results: Mapping[str, Figures]) -> str:
    """The figures side by side; behind the CPU time its ratio to ours."""
    own = results.get(OURS, {}).get("cpu_us_per_chunk")
    lines = ["".join([f"{'':28}", *(f"{title:>16}" for _, title, _ in TABLE)])]
    for name, figures in results.items():
        cells = []
        for key, _, has_ratio in TABLE:
            value = figures.get(key)
            text = "–" if value is None else f"{value:g}"
            if has_ratio and value is not None and own:
                text += f" ({value / own:.2f}x)"
            cells.append(f"{text:>16}")
        lines.append("".join([f"{name:28}", *cells]))
    return "\n".join(lines)


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[OURS, *PEERS], help="leave the others out")
    parser.add_argument(
        "--python",
        type=Path,
        help="runs the router once more, by another interpreter: as it is installed there, or else as it is here",
    )
    parser.add_argument("--rounds", type=int, default=20, help="streams per connection where TTFB is measured")
    parser.add_argument("--cpu-rounds", type=int, default=3, help="rounds in which CPU time is measured")
    parser.add_argument("--whole", type=int, default=1_000, help="whole answers")
    parser.add_argument("--held", type=int, default=2_000, help="streams held open; 0 leaves it out")
    parser.add_argument("--soak", type=int, default=20_000, help="short streams for the growth of memory; 0: none")
    parser.add_argument("--soak-all", action="store_true", help="for the peers too")
    parser.add_argument("--output", type=Path, default=RESULT)
    return parser.parse_args(arguments)


def proxies(options: argparse.Namespace) -> dict[str, ProxyAt]:
    """Those that are compared, by the names that they have in results."""
    chosen: dict[str, ProxyAt] = {OURS: partial(ours, python=Path(sys.executable))}
    chosen |= {name: partial(peer, cache=CACHE) for name, peer in PEERS.items()}
    if options.only:
        chosen = {name: proxy for name, proxy in chosen.items() if name in options.only}
    if options.python is not None:
        chosen[f"{OURS}, --python"] = partial(ours, python=options.python)
    return chosen


def main() -> None:
    """The command."""
    options = options_of()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        sys.exit("needs two cores: one for the proxy, one for stub and client")
    other_core, proxy_core = cores[0], cores[1]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 20_000)), hard))
    ports = free_ports(len(ARMS))
    upstreams = [f"http://127.0.0.1:{port}" for port in ports]
    results: dict[str, Figures] = {}
    about: dict[str, str] = {}
    missing: dict[str, str] = {}
    document = {
        "command": " ".join(["python", "bench/relay/run.py", *sys.argv[1:]]),
        "host": {"machine": platform.machine(), "cores": os.cpu_count(), "kernel": platform.release()},
        "load_average_at_the_start": os.getloadavg()[0],
        "python": platform.python_version(),
        "packages": {name: version(name) for name in ("uvicorn", "uvloop", "httptools", "orjson")},
        "versions": about,
        "missing": missing,
        "results": results,
    }
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder, ExitStack() as stack:
        work = Path(folder)
        backends = json.dumps(dict(zip(map(str, ports), ARMS.values(), strict=True)))
        stub = [sys.executable, str(HERE / "stub.py"), backends]
        stub_pid = stack.enter_context(started(stub, other_core, work / "stub.log"))
        wait_for(upstreams[0] + "/health", "the stub", stub_pid, work / "stub.log")
        bench = Bench(options, other_core)
        addresses: dict[str, tuple[str, int]] = {}
        for name, proxy_at in proxies(options).items():
            port = free_ports(1)[0]
            home = work / name
            home.mkdir()
            url, log = f"http://127.0.0.1:{port}", home / "log"
            try:
                proxy = proxy_at(port, upstreams, home)
                pid = stack.enter_context(started(proxy.command, proxy_core, log, proxy.environment))
                wait_for(url + proxy.path, name, pid, log)
                until_it_answers(bench, url, name)
            except MissingPeer as absent:
                missing[name] = str(absent)
                print(f"{name} left out: {absent}", file=sys.stderr)
                continue
            addresses[name], about[name] = (url, pid), proxy.version
        for url, _ in addresses.values():
            load(other_core, url=url, connections=256, requests=512, tokens=16, pace_ms=5, limit_s=30.0)
        costs = bench.costs(addresses)
        for name, (url, pid) in addresses.items():
            print(f"{name} ...", file=sys.stderr, flush=True)
            results[name] = costs[name] | measure(bench, name, url, pid, upstreams[0], options)
            # After each, so that what was measured is kept if the next one hangs.
            options.output.write_text(
                json.dumps(document | {"load_average_at_the_end": os.getloadavg()[0]}, indent=2) + "\n"
            )
        print(table(results))


if __name__ == "__main__":
    main()
