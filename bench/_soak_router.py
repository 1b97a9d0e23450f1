"""Processes of the soak and of the fuzz run: how they are started, and what is left in the router afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import selector

MODEL = "Qwen3-8B"
START_LIMIT_S = 30.0


class Process:
    """A child that says when it is ready."""

    def __init__(self, *command: str) -> None:
        self._command = command
        self.child: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Of the running child."""
        assert self.child is not None
        return self.child.pid

    async def start(self) -> None:
        """Returns when it is ready."""
        pipe = asyncio.subprocess.PIPE
        self.child = await asyncio.create_subprocess_exec(sys.executable, *self._command, stdin=pipe, stdout=pipe)
        await self.says(b"ready")

    async def says(self, word: bytes) -> None:
        """Returns when it has said so, on a line of its own."""
        assert self.child is not None
        assert self.child.stdout is not None
        async with asyncio.timeout(START_LIMIT_S):
            while not (line := await self.child.stdout.readline()).startswith(word):
                if not line:
                    raise SystemExit(f"{' '.join(self._command)} ended before it said {word.decode()}")

    def tell(self, line: str) -> None:
        """A line on its standard input."""
        assert self.child is not None
        assert self.child.stdin is not None
        self.child.stdin.write(line.encode() + b"\n")

    def signal(self, number: int) -> None:
        """Sends it a signal."""
        assert self.child is not None
        self.child.send_signal(number)

    async def end(self, number: int) -> int:
        """Sends it a signal and waits; its exit code."""
        self.signal(number)
        assert self.child is not None
        return await self.child.wait()

    async def kill(self) -> None:
        """At once, if it runs."""
        if self.child is not None:
            if self.child.returncode is None:
                self.child.kill()
            await self.child.wait()


def backend_process(port: int, arm: str, seed: int) -> Process:
    """A server that can misbehave."""
    return Process(str(Path(__file__).with_name("_soak_backend.py")), str(port), arm, str(seed))


def router_process(config: Path, log: Path) -> Process:
    """`drafter-selector serve`."""
    return Process("-m", "selector", "serve", "--config", str(config), "--decision-log", str(log))


def fleet_text(port: int, backends: Sequence[tuple[int, str]], policy: str, router: str = "", faults: str = "") -> str:
    """A fleet file: the router's port, port and arm of each backend, and more lines of the two tables."""
    tables = "".join(
        f'[[backends]]\nname = "b{index}"\nurl = "http://127.0.0.1:{at}"\narm = "{arm}"\n'
        f'gpus = ["host0:{index}"]\nprofile = "h200__qwen3-8b"\n'
        for index, (at, arm) in enumerate(backends)
    )
    head = f'version = 1\ntarget = "{MODEL}"\n{tables}[policy]\nname = "{policy}"\n'
    return f"{head}[router]\nport = {port}\n{router}\n[faults]\n{faults}\n"


def what_is_left(url: str, pid: int, *, most_files: int, within_s: float) -> dict[str, Any]:
    """What is left in the router once nobody asks any more, and has not gone in that time."""
    until_s = time.monotonic() + within_s
    while True:
        with urlopen(f"{url}/router/state", timeout=10) as answer:
            state: Mapping[str, Any] = json.load(answer)
        on_backends = sum(backend["own_in_flight"] for backend in state["backends"])
        files = open_files(pid)
        if (state["in_flight"] + on_backends == 0 and files <= most_files) or time.monotonic() > until_s:
            break
        time.sleep(0.5)
    return {
        "in_flight": state["in_flight"],
        "on_backends": on_backends,
        "open_files": files,
        "most_open_files": most_files,
        "rss_mb": resident_mb(pid),
    }


def open_files(pid: int) -> int:
    """Files and connections that a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def resident_mb(pid: int) -> float:
    """Memory of a process, in 10⁶ bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def leftovers(left: Mapping[str, Any]) -> list[str]:
    """What of that must not be."""
    found = [f"{name} is {left[name]}" for name in ("in_flight", "on_backends") if left[name]]
    if left["open_files"] > left["most_open_files"]:
        found.append(f"{left['open_files']} files are open at the end")
    return found


def provenance(script: str) -> dict[str, Any]:
    """Command, host and versions of a run."""
    return {
        "command": " ".join(["python", f"bench/{script}", *sys.argv[1:]]),
        "host": {
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "system": platform.release(),
            "python": platform.python_version(),
            "load_1m": round(os.getloadavg()[0], 1),
        },
        "version": selector.__version__,
    }
