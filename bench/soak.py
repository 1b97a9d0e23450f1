"""Two hours' worth of faults in eight minutes: four misbehaving backends, clients that misbehave too, and a router.

    scripts/bench soak [--seconds 480] [--clients 24] [--seed 1] [--out bench/results/soak.json]

Everything is a process of its own on the loopback interface. Every second something happens to the fleet: a backend
changes its mood (`_soak_backend.MOODS`), is killed and started again, comes back with another arm, the configuration is
reloaded (well, or with a fault in it, by SIGHUP or by a change of the file), or the router is restarted under load. One
such event a minute and backend for two hours would be as many as happen here in eight minutes.

Prints a table and one JSON document, and ends with 1 unless
- every request ended, in time, in an answer, an error or an error event: nothing stuck, nothing lost, no 500 of the
  router's own;
- the decision log accounts for every request that a client was told of, over all restarts and reloads, and each
  decision has its end or was taken back;
- nothing is in flight at the end, and the router's connections are closed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import selector
from selector.files.decision_log import DecisionEvent, EndEvent, RetractEvent, StartEvent, read_decision_log
from selector.loadgen.live import free_ports

sys.path.insert(0, str(Path(__file__).parent))
from _soak_backend import MOODS
from _soak_clients import NEVER, Tally, client

ARMS = ("none", "none", "eagle3-k3", "eagle3-k3")
OTHER_ARM: Mapping[str, str] = {"none": "eagle3-k3", "eagle3-k3": "none"}
POLICIES = ("least_loaded", "round_robin", "min_energy")
EVENTS = {
    "mood": 60,
    "fine": 25,
    "killed": 8,
    "other arm": 3,
    "SIGHUP": 1,
    "file changed": 1,
    "bad file": 1,
    "restart": 1,
}
"""What happens, and how often out of their sum."""
_START_LIMIT_S = 30.0
_RELOAD_CHECK_S = 0.2
_SETTLE_LIMIT_S = 20.0
_MOST_MORE_FDS = 8
"""Beyond what the router has open when it is ready: polls of four backends, the question how it is, and no client."""


class Process:
    """A child that says when it is ready."""

    def __init__(self, *command: str) -> None:
        self._command = command
        self.child: asyncio.subprocess.Process

    async def start(self) -> None:
        """Returns when it is ready."""
        pipe = asyncio.subprocess.PIPE
        self.child = await asyncio.create_subprocess_exec(sys.executable, *self._command, stdin=pipe, stdout=pipe)
        await self.says(b"ready")

    async def says(self, word: bytes) -> None:
        """Returns when it has said so, on a line of its own."""
        assert self.child.stdout is not None
        async with asyncio.timeout(_START_LIMIT_S):
            while not (line := await self.child.stdout.readline()).startswith(word):
                if not line:
                    raise SystemExit(f"soak: {' '.join(self._command)} ended before it said {word.decode()}")

    async def kill(self) -> None:
        """At once."""
        if self.child.returncode is None:
            self.child.kill()
        await self.child.wait()


class Soak:
    """One run."""

    def __init__(self, folder: Path, *, seed: int) -> None:
        self._draw = random.Random(seed)
        self._ports = free_ports(len(ARMS) + 1)
        self._config = folder / "fleet.toml"
        self.log = folder / "decisions.jsonl"
        self.url = f"http://127.0.0.1:{self._ports[-1]}"
        self.happened: Counter[str] = Counter()
        self.exit_codes: list[int | None] = []
        self._policy = POLICIES[0]
        self._dealt = self._draw.sample(list(EVENTS), len(EVENTS))
        self._away = False
        self._backends = [self._backend(index, arm) for index, arm in enumerate(ARMS)]
        self._router = Process(
            "-m", "selector", "serve", "--config", str(self._config), "--decision-log", str(self.log)
        )

    def _backend(self, index: int, arm: str) -> Process:
        script = Path(__file__).with_name("_soak_backend.py")
        return Process(str(script), str(self._ports[index]), arm, str(index))

    def _write_config(self, more: str = "") -> None:
        backends = "".join(
            f'[[backends]]\nname = "b{index}"\nurl = "http://127.0.0.1:{self._ports[index]}"\narm = "{arm}"\n'
            f'gpus = ["host0:{index}"]\nprofile = "h200__qwen3-8b"\n'
            for index, arm in enumerate(ARMS)
        )
        self._config.write_text(
            f'version = 1\ntarget = "Qwen3-8B"\n{backends}[policy]\nname = "{self._policy}"\n'
            f"[router]\nport = {self._ports[-1]}\npoll_interval_s = 0.2\npoll_timeout_s = 1.0\n"
            "connect_timeout_s = 0.5\nfirst_byte_timeout_s = 1.0\nstream_idle_timeout_s = 1.0\n"
            f"drain_timeout_s = 20.0\nreload_check_s = {_RELOAD_CHECK_S}\n{more}"
            "[faults]\noutlier_eject_s = 3.0\noutlier_eject_max_s = 12.0\nbreaker_open_max_s = 4.0\n",
            encoding="utf-8",
        )

    async def run(self, *, seconds: float, clients: int, event_every_s: float, pause_s: float) -> dict[str, Any]:
        """Starts everything, lets it happen, ends everything; what came of it."""
        self._write_config()
        for backend in self._backends:
            await backend.start()
        tally, over = Tally(), asyncio.Event()
        try:
            await self._router.start()
            fds = await asyncio.to_thread(_open_files, self._router.child.pid)
            asking = [
                client(self.url, seed, tally, over=over, away=lambda: self._away, pause_s=pause_s)
                for seed in range(clients)
            ]
            ended = asyncio.gather(*asking)
            last_s = time.monotonic() + seconds
            while time.monotonic() < last_s or self._dealt:
                next_s = time.monotonic() + event_every_s
                await self._happen()
                await asyncio.sleep(max(0.0, next_s - time.monotonic()))
            over.set()
            await ended
            left = await asyncio.to_thread(self._settled, fds + _MOST_MORE_FDS)
            self._router.child.send_signal(signal.SIGTERM)
            self.exit_codes.append(await self._router.child.wait())
        finally:
            for process in (self._router, *self._backends):
                if hasattr(process, "child"):
                    await process.kill()
        return {
            "asked": sum(tally.ends.values()),
            "longest_s": round(tally.longest_s, 2),
            "ends": dict(tally.ends.most_common()),
            "events": dict(self.happened.most_common()),
            **left,
            "exit_codes": self.exit_codes,
            **accounted(self.log, tally.rids),
        }

    async def _happen(self) -> None:
        # Each once, in any order, before chance decides: a short run has all of them.
        what = self._dealt.pop() if self._dealt else self._draw.choices(list(EVENTS), list(EVENTS.values()))[0]
        index = self._draw.randrange(len(ARMS))
        match what:
            case "mood":
                mood = self._draw.choice(MOODS[1:])
                self.happened[f"mood: {mood}"] += 1
                self._feel(index, mood)
                return
            case "fine":
                self._feel(index, "fine")
            case "killed":
                await self._again(index, ARMS[index])
            case "other arm":
                await self._again(index, OTHER_ARM[ARMS[index]])
            case "SIGHUP":
                self._router.child.send_signal(signal.SIGHUP)
                await self._router.says(b"reloaded")
            case "file changed":
                self._policy = self._draw.choice([policy for policy in POLICIES if policy != self._policy])
                self._write_config()
                await self._router.says(b"reloaded")
            case "bad file":
                self._write_config("no_such_key = 1\n")
                await asyncio.sleep(5 * _RELOAD_CHECK_S)
                self._write_config()
                await self._router.says(b"reloaded")
            case "restart":
                await self._restart()
        self.happened[what] += 1

    def _feel(self, index: int, mood: str) -> None:
        pipe = self._backends[index].child.stdin
        assert pipe is not None
        pipe.write(mood.encode() + b"\n")

    async def _again(self, index: int, arm: str) -> None:
        await self._backends[index].kill()
        self._backends[index] = self._backend(index, arm)
        await self._backends[index].start()

    async def _restart(self) -> None:
        self._write_config()
        self._away = True
        self._router.child.send_signal(signal.SIGTERM)
        self.exit_codes.append(await self._router.child.wait())
        await self._router.start()
        self._away = False

    def _settled(self, most_fds: int) -> dict[str, Any]:
        """What is left in the router once nobody asks any more, and has not gone within the limit."""
        pid, until_s = self._router.child.pid, time.monotonic() + _SETTLE_LIMIT_S
        while True:
            state = self._state()
            own = sum(backend["own_in_flight"] for backend in state["backends"])
            fds = _open_files(pid)
            if (state["in_flight"] + own == 0 and fds <= most_fds) or time.monotonic() > until_s:
                break
            time.sleep(0.5)
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        return {
            "in_flight": state["in_flight"],
            "on_backends": own,
            "open_files": fds,
            "most_open_files": most_fds,
            "rss_mb": round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1),
        }

    def _state(self) -> dict[str, Any]:
        with urlopen(f"{self.url}/router/state", timeout=10) as answer:
            document: dict[str, Any] = json.load(answer)
        return document


def _open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def accounted(log: Path, told: list[str]) -> dict[str, int]:
    """Holds a decision log against the requests that clients know of."""
    open_decisions: Counter[str] = Counter()
    ended: set[str] = set()
    counts: Counter[str] = Counter()
    for event in read_decision_log(log):
        counts[event.event] += 1
        match event:
            case StartEvent(reloaded=True):
                counts["reloaded"] += 1
            case DecisionEvent() if event.backend is not None:
                open_decisions[event.request.request_id] += 1
            case RetractEvent():
                open_decisions[event.id] -= 1
            case EndEvent():
                open_decisions[event.outcome.request_id] -= 1
                ended.add(event.outcome.request_id)
    return {
        "log_lines": counts.total() - counts["reloaded"],
        "log_decisions": counts["decision"],
        "log_retracts": counts["retract"],
        "log_ends": counts["end"],
        "router_starts": counts["start"] - counts["reloaded"],
        "reloads": counts["reloaded"],
        "unbalanced": sum(count != 0 for count in open_decisions.values()),
        "told_but_not_in_log": len(set(told) - ended),
    }


def wrong(result: Mapping[str, Any]) -> list[str]:
    """What must not be."""
    found = [f"{result['ends'][end]} requests ended so: {end}" for end in NEVER if result["ends"].get(end)]
    found += [f"{name} is {result[name]}" for name in ("in_flight", "on_backends", "unbalanced") if result[name]]
    if result["told_but_not_in_log"]:
        found.append(f"{result['told_but_not_in_log']} answered requests are not in the log")
    if result["open_files"] > result["most_open_files"]:
        found.append(f"{result['open_files']} files are open at the end")
    if any(result["exit_codes"]):
        found.append(f"the router ended with {result['exit_codes']}")
    return found


def table(result: Mapping[str, Any]) -> str:
    """For people."""
    rows = [("requests ended", "")]
    rows += [(f"  {end}", count) for end, count in result["ends"].items()]
    rows += [("happened to the fleet", "")]
    rows += [(f"  {event}", count) for event, count in result["events"].items()]
    rows += [("at the end", "")]
    rows += [(f"  {name}", value) for name, value in result.items() if not isinstance(value, (dict, list))]
    return "\n".join(f"{name:<44}{value:>10}" for name, value in rows)


def main() -> int:
    """Runs the soak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--event-every-s", type=float, default=1.0)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--pause-s", type=float, default=0.1, help="mean pause of a client between two requests")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep configuration and decision log there")
    parser.add_argument("--out", type=Path, help="write the JSON document there, too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), seed=args.seed)
        result = asyncio.run(
            soak.run(seconds=args.seconds, clients=args.clients, event_every_s=args.event_every_s, pause_s=args.pause_s)
        )
        if args.keep is not None:
            shutil.copytree(folder, args.keep, dirs_exist_ok=True)
    failures = wrong(result)
    document = {
        "benchmark": "soak",
        "command": " ".join(["python", "bench/soak.py", *sys.argv[1:]]),
        "host": {
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "system": platform.release(),
            "python": platform.python_version(),
            "load_1m": round(os.getloadavg()[0], 1),
        },
        "version": selector.__version__,
        "seconds": args.seconds,
        "clients": args.clients,
        "seed": args.seed,
        **result,
        "wrong": failures,
    }
    text = json.dumps(document, indent=1)
    print(table(result), file=sys.stderr)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n", encoding="utf-8")
    for failure in failures:
        print(f"soak: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
