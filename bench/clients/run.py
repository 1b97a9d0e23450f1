"""OpenAI's client, SGLang's benchmark, GuideLLM and AIPerf, unchanged, against the router and an emulated fleet.

    python bench/clients/run.py [--install] [--only NAME ...]

Says what each did, and writes bench/results/clients.json. A tool that is not installed is left out with the reason;
`--install` makes its environment with pip. Emulated servers answer with words, at the speed of the profile: the figures
show that the tools get through and read what they need, not how fast a GPU is. That every answer was counted once is
checked against the router's own count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import openai_client
from served import served_fleet
from tools import TOOLS, Failed, Load, MissingTool

import selector

RESULT = Path(__file__).parents[1] / "results" / "clients.json"
_IDLE_POLLS, _IDLE_POLL_S = 400, 0.05


def outcomes(url: str) -> dict[str, float]:
    """How many requests the router has ended, by how they ended."""
    ended: dict[str, float] = {}
    with urllib.request.urlopen(f"{url}/metrics", timeout=10.0) as answer:
        for line in answer.read().decode().splitlines():
            name, _, value = line.rpartition(" ")
            if name.startswith("drafter_selector_outcomes_total{"):
                finish = name.partition('finish="')[2].partition('"')[0]
                ended[finish] = ended.get(finish, 0.0) + float(value)
    return ended


def in_flight(url: str) -> int:
    """Requests that the router waits for."""
    with urllib.request.urlopen(f"{url}/v1/loads", timeout=10.0) as answer:
        return sum(load["num_in_flight_reqs"] for load in json.load(answer)["loads"])


async def idle(url: str) -> None:
    """Returns once no request is in flight: who leaves a stream is noticed a moment later."""
    for _ in range(_IDLE_POLLS):
        if in_flight(url) == 0:
            return
        await asyncio.sleep(_IDLE_POLL_S)
    raise Failed("requests are in flight though every client has ended")


def grown(before: dict[str, float], after: dict[str, float]) -> dict[str, int]:
    """What was added."""
    return {name: round(after[name] - before.get(name, 0.0)) for name in after if after[name] != before.get(name, 0.0)}


async def measured(options: argparse.Namespace) -> dict[str, Any]:
    """One row a client."""
    rows: dict[str, Any] = {}
    wanted = options.only or ["openai", *TOOLS]
    with tempfile.TemporaryDirectory(prefix="clients-") as folder:
        work = Path(folder)
        async with served_fleet(work) as url:
            for name in wanted:
                print(f"{name} ...", file=sys.stderr, flush=True)
                before = outcomes(url)
                try:
                    if name == "openai":
                        row = await openai_client.run(url)
                    else:
                        if options.install:
                            await asyncio.to_thread(TOOLS[name].install)
                        load = Load(requests=options.requests)
                        row = await asyncio.to_thread(TOOLS[name].run, url, "Qwen3-8B", load, work)
                    await idle(url)
                except MissingTool as missing:
                    rows[name] = {"skipped": str(missing)}
                    continue
                except (Failed, openai_client.Unexpected) as failed:
                    rows[name] = {"error": str(failed)}
                    continue
                rows[name] = {**row, "router_counted": grown(before, outcomes(url))}
    return rows


def main() -> int:
    """The command; 1 when a client failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=["openai", *TOOLS], help="leave the others out")
    parser.add_argument("--install", action="store_true", help="install what is missing, with pip")
    parser.add_argument("--requests", type=int, default=24, help="of each load generator")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    rows = asyncio.run(measured(options))
    document = {
        "command": "python bench/clients/run.py",
        "host": {"system": platform.platform(), "python": platform.python_version()},
        "version": selector.__version__,
        "clients": rows,
    }
    options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(rows, indent=1))
    return int(any("error" in row for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
