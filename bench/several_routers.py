"""Attainment and joules of several router processes behind nginx against one, on the same replayed slice.

    scripts/bench several_routers [--routers 3] [--repeats 3]

The fleet is emulated (four H200s, as in the demo) and the same for all. Every repeat replays a slice with real prompts
and a seed of its own through one process, through several behind nginx with deploy/nginx.conf, and through several that
share what they learn about acceptance over a Redis or Valkey server of their own. The third is left out, with the
reason, where the fleet file has no `[acceptance]` or no server is installed. The order turns from repeat to repeat.
Several routers see of one another's requests only what polls tell, up to `poll_interval_s` late.

Prints one JSON document and writes it to bench/results/several_routers.json.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import platform
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import stdev
from typing import Any

import aiohttp

import selector
from selector.cli.demo import bind, trace_slice
from selector.files import fleet as fleet_files
from selector.files.fleet import LoadedFleet, load_fleet_with_profiles
from selector.loadgen.live import LiveResult, free_ports, read_energy, running_process, summarise
from selector.loadgen.replay import LagWatch, Replay

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "bench" / "clients")]
from deploy_check import MissingTool, nginx_main, tool  # noqa: E402 - a script beside the package, found by its folder
from served import fleet_file  # noqa: E402 - likewise

RESULT = ROOT / "bench" / "results" / "several_routers.json"
ARMS = ("none", "eagle3-k3", "dspark-8", "dflash-16")
ONE, SEVERAL, SHARING = "one", "several", "several, sharing acceptance"
POINTS_ALLOWED = 1.0
_START_LIMIT_S = 20.0


@asynccontextmanager
async def server_process(*command: str | Path, url: str | None = None, port: int | None = None) -> AsyncIterator[None]:
    """A server that answers 200 at `url`, or accepts connections at `port`, before the block begins."""
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    try:
        async with asyncio.timeout(_START_LIMIT_S), aiohttp.ClientSession() as session:
            while True:
                if process.returncode is not None:
                    raise MissingTool(f"{Path(command[0]).name} ended with {process.returncode}")
                try:
                    if url is not None:
                        async with session.get(url) as answer:
                            if answer.status == 200:
                                break
                    else:
                        _, writer = await asyncio.open_connection("127.0.0.1", port)
                        writer.close()
                        break
                except (OSError, aiohttp.ClientError):
                    pass
                await asyncio.sleep(0.05)
        yield
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


def nginx_files(port: int, routers: Sequence[int], folder: Path) -> Path:
    """The shipped configuration for these ports, written under `folder`; the main file."""
    shipped = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
    servers = "\n".join(f"    server 127.0.0.1:{one} max_fails=0;" for one in routers)
    text, replaced = re.subn(r"(?:^    server 127\.0\.0\.1:\d+ max_fails=0;\n?)+", servers + "\n", shipped, flags=re.M)
    text, listens = re.subn(r"listen 8000;", f"listen 127.0.0.1:{port};", text)
    if (replaced, listens) != (1, 1):
        raise MissingTool("deploy/nginx.conf has another shape")
    folder.mkdir(exist_ok=True)
    (folder / "site.conf").write_text(text, encoding="utf-8")
    main = folder / "nginx.conf"
    main.write_text(nginx_main(folder, folder / "site.conf"), encoding="utf-8")
    return main


@asynccontextmanager
async def balanced(routers: Sequence[int], folder: Path) -> AsyncIterator[str]:
    """nginx with the shipped configuration in front of router processes; its URL."""
    (port,) = free_ports(1)
    main = nginx_files(port, routers, folder)
    url = f"http://127.0.0.1:{port}"
    command = (tool("nginx"), "-e", folder / "error.log", "-p", folder, "-c", main)
    async with server_process(*command, url=f"{url}/health"):
        yield url


def sharing_server() -> str:
    """The program of a Redis or Valkey. Raises `MissingTool` where sharing cannot be measured."""
    if not hasattr(fleet_files, "Acceptance"):
        raise MissingTool("this release shares no acceptance")
    if importlib.util.find_spec("redis") is None:
        raise MissingTool("the Python package redis is not installed")
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise MissingTool("neither valkey-server nor redis-server is installed")
    return found


class Bench:
    """One emulated fleet, and what is put in front of it."""

    def __init__(self, options: argparse.Namespace, fleet: Path, work: Path) -> None:
        self._options = options
        self._fleet = fleet
        self._work = work
        self._loaded: LoadedFleet = load_fleet_with_profiles(fleet)

    @asynccontextmanager
    async def _routers(self, setup: str) -> AsyncIterator[tuple[str, list[str]]]:
        """Where requests go, and the routers behind it."""
        options = self._options
        async with AsyncExitStack() as stack:
            fleet = self._fleet
            if setup == SHARING:
                (port,) = free_ports(1)
                command = (sharing_server(), "--port", str(port), "--bind", "127.0.0.1", "--save", "")
                await stack.enter_async_context(server_process(*command, "--appendonly", "no", port=port))
                fleet = self._work / "sharing.toml"
                shares = f'[acceptance]\nredis_url = "redis://127.0.0.1:{port}/0"\nshare_every_s = 1\n'
                fleet.write_text(self._fleet.read_text(encoding="utf-8") + shares, encoding="utf-8")
            ports = free_ports(1 if setup == ONE else options.routers)
            for port in ports:
                command = ("serve", "--config", str(fleet), "--policy", options.policy, "--port", str(port))
                await stack.enter_async_context(running_process(*command))
            urls = [f"http://127.0.0.1:{port}" for port in ports]
            if setup == ONE:
                yield urls[0], urls
            else:
                yield await stack.enter_async_context(balanced(ports, self._work / "nginx")), urls

    async def replay(self, setup: str, seed: int) -> dict[str, Any]:
        """One row."""
        options = self._options
        merged = trace_slice(seconds=options.seconds * options.time_scale, rate_scale=options.rate_scale)
        requests, _ = bind(merged, self._loaded, seed)
        energy = [f"{backend.url}/energy" for backend in self._loaded.fleet.backends]
        async with self._routers(setup) as (url, routers), aiohttp.ClientSession() as session:
            before = await read_energy(session, energy)
            async with LagWatch() as lag:
                answers = await Replay(url, requests, time_scale=options.time_scale).run()
            after = await read_energy(session, energy)
            counted = [await _outcomes(session, router) for router in routers]
        result: LiveResult = summarise(options.policy, answers, before, after, lag.lags_ms)
        row = {"setup": setup, "seed": seed, **asdict(result), "requests_by_router": counted}
        print(f"{setup}, seed {seed}: {result.tbt_attainment} {result.j_per_accepted_token}", file=sys.stderr)
        return row

    async def rows(self) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """Every repeat of every setup, and why a setup is left out."""
        options = self._options
        setups, left_out = [ONE, SEVERAL], {}
        try:
            sharing_server()
            setups.append(SHARING)
        except MissingTool as missing:
            left_out[SHARING] = str(missing)
        rows = []
        emulate = ("emulate", "--fleet", str(self._fleet), "--time-scale", str(options.time_scale))
        async with running_process(*emulate):
            for seed in range(options.repeats):
                turn = seed % len(setups)
                for setup in (*setups[turn:], *setups[:turn]):
                    rows.append(await self.replay(setup, seed))
        return rows, left_out


async def _outcomes(session: aiohttp.ClientSession, url: str) -> int:
    """Requests that a router has ended."""
    async with session.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    ended = [line for line in lines if line.startswith("drafter_selector_outcomes_total{")]
    return round(sum(float(line.rpartition(" ")[2]) for line in ended))


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Attainment and joules of each setup over all repeats, and what several differ from one by."""
    totals: dict[str, Any] = {}
    seeds = sorted({row["seed"] for row in rows})
    for setup in dict.fromkeys(row["setup"] for row in rows):
        own = [row for row in rows if row["setup"] == setup]
        requests = sum(row["requests"] + row["failed"] for row in own)
        met = sum(row["tbt_attainment"] * (row["requests"] + row["failed"]) for row in own)
        totals[setup] = {
            "requests": requests,
            "failed": sum(row["failed"] for row in own),
            "attainment": met / requests,
            "j_per_accepted_token": sum(row["energy_j"] for row in own) / sum(row["accepted_tokens"] for row in own),
        }
    for setup, figures in totals.items():
        points = 100.0 * (figures["attainment"] - totals[ONE]["attainment"])
        figures["points_against_one"] = points
        differences = [100.0 * (one_of(rows, setup, seed) - one_of(rows, ONE, seed)) for seed in seeds]
        error = stdev(differences) / len(seeds) ** 0.5 if len(seeds) > 1 else None
        figures["points_standard_error"] = error
        # Better than one process is no fault.
        figures["within_bar"] = points >= -POINTS_ALLOWED
        # Two standard errors on either side of the bar: short of that, more repeats could say otherwise.
        figures["decided"] = error is not None and abs(points + POINTS_ALLOWED) >= 2.0 * error
    return totals


def one_of(rows: Sequence[Mapping[str, Any]], setup: str, seed: int) -> float:
    """The attainment of one replay."""
    (attainment,) = [row["tbt_attainment"] for row in rows if (row["setup"], row["seed"]) == (setup, seed)]
    return float(attainment)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--routers", type=int, default=3, help="processes behind nginx")
    parser.add_argument("--repeats", type=int, default=3, help="replays of every setup, each with a seed of its own")
    parser.add_argument("--seconds", type=float, default=40.0, help="real seconds of arrivals a replay")
    parser.add_argument("--time-scale", type=float, default=0.5, help="emulated seconds per real second")
    parser.add_argument("--rate-scale", type=float, default=3.0, help="arrivals so many times as fast")
    parser.add_argument("--policy", default="min_energy")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="several-routers-") as folder:
        work = Path(folder)
        bench = Bench(options, fleet_file(work, arms=ARMS), work)
        rows, left_out = asyncio.run(bench.rows())
    document = {
        "command": " ".join(["scripts/bench several_routers", *sys.argv[1:]]),
        "host": {"system": platform.platform(), "python": platform.python_version()},
        "version": selector.__version__,
        "options": {name: value for name, value in vars(options).items() if name != "output"},
        "summary": summary(rows),
        "left_out": left_out,
        "rows": rows,
    }
    options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document["summary"] | {"left_out": left_out}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
