"""Two hours' worth of faults in eight minutes: four misbehaving backends, clients that misbehave too, and a router.

    scripts/bench soak [--seconds 480] [--clients 24] [--seed 1] [--out bench/results/soak.json]

Everything is a process of its own on the loopback interface. Every second something happens to the fleet: a backend
changes its mood (`_soak_backend.MOODS`), is killed and started again, comes back with another arm, the configuration is
reloaded (well, or with a fault in it, by SIGHUP or by a change of the file), or the router is restarted under load. One
such event a minute and backend for two hours would be about as many as happen here in eight minutes.

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

from selector.files.decision_log import DecisionEvent, EndEvent, RetractEvent, StartEvent, read_decision_log
from selector.loadgen.live import free_ports

sys.path.insert(0, str(Path(__file__).parent))
from _soak_backend import MOODS
from _soak_clients import NEVER, Tally, client
from _soak_router import (
    backend_process,
    fleet_text,
    leftovers,
    open_files,
    provenance,
    router_process,
    what_is_left,
)

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
_RELOAD_CHECK_S = 0.2
_SETTLE_LIMIT_S = 20.0
_MOST_MORE_FDS = 8
"""Beyond what the router has open when it is ready: polls of four backends, the question how it is, and no client."""


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
        self._backends = [backend_process(self._ports[index], arm, index) for index, arm in enumerate(ARMS)]
        self._router = router_process(self._config, self.log)

    def _write_config(self, more: str = "") -> None:
        router = (
            "poll_interval_s = 0.2\npoll_timeout_s = 1.0\nconnect_timeout_s = 0.5\nfirst_byte_timeout_s = 1.0\n"
            f"stream_idle_timeout_s = 1.0\ndrain_timeout_s = 20.0\nreload_check_s = {_RELOAD_CHECK_S}\n{more}"
        )
        faults = "outlier_eject_s = 3.0\noutlier_eject_max_s = 12.0\nbreaker_open_max_s = 4.0"
        backends = list(zip(self._ports, ARMS, strict=False))
        self._config.write_text(fleet_text(self._ports[-1], backends, self._policy, router, faults), encoding="utf-8")

    async def run(self, *, seconds: float, clients: int, event_every_s: float, pause_s: float) -> dict[str, Any]:
        """Starts everything, lets it happen, ends everything; what came of it."""
        self._write_config()
        for backend in self._backends:
            await backend.start()
        tally, over = Tally(), asyncio.Event()
        try:
            await self._router.start()
            fds = await asyncio.to_thread(open_files, self._router.pid)
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
            left = await asyncio.to_thread(
                what_is_left, self.url, self._router.pid, most_files=fds + _MOST_MORE_FDS, within_s=_SETTLE_LIMIT_S
            )
            self.exit_codes.append(await self._router.end(signal.SIGTERM))
        finally:
            for process in (self._router, *self._backends):
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
                self._router.signal(signal.SIGHUP)
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
        self._backends[index].tell(mood)

    async def _again(self, index: int, arm: str) -> None:
        await self._backends[index].kill()
        self._backends[index] = backend_process(self._ports[index], arm, index)
        await self._backends[index].start()

    async def _restart(self) -> None:
        self._write_config()
        self._away = True
        self.exit_codes.append(await self._router.end(signal.SIGTERM))
        await self._router.start()
        self._away = False


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
    found += leftovers(result)
    if result["unbalanced"]:
        found.append(f"unbalanced is {result['unbalanced']}")
    if result["told_but_not_in_log"]:
        found.append(f"{result['told_but_not_in_log']} answered requests are not in the log")
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
        **provenance("soak.py"),
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
