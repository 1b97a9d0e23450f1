"""How fast traces are read and reshaped, and what they take in memory; prints JSON.

The rows are made up in the layouts of the published files: a million of Azure 2024, in order of arrival at 35 a second,
and a tenth of that for each other format. Times are CPU times, the least of several runs. Memory is what `tracemalloc`
counts for the first 20,000 requests, in a run of its own, since counting is slow.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TypeVar

from selector import __version__
from selector.files.trace import load_trace, scaled, with_text_types

REQUESTS_PER_S = 35.0
MEMORY_SAMPLE = 20_000

Result = TypeVar("Result")


def azure(rows: int) -> Iterator[str]:
    """Lines of an Azure 2024 file."""
    random, at = Random(0), datetime(2024, 5, 10, tzinfo=UTC)
    yield "TIMESTAMP,ContextTokens,GeneratedTokens"
    for _ in range(rows):
        at += timedelta(seconds=random.expovariate(REQUESTS_PER_S))
        yield f"{at.isoformat(sep=' ')},{random.randint(1, 8_000)},{random.randint(1, 800)}"


def burstgpt(rows: int) -> Iterator[str]:
    """Lines of a BurstGPT file with sessions, one request in fourteen failed."""
    random, at_s = Random(0), 19_440_110.0
    yield "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
    for _ in range(rows):
        at_s += random.randint(0, 3)
        output = random.randint(1, 400) if random.random() > 1 / 14 else 0
        yield f"{at_s},{random.randrange(rows // 4):032x},2,ChatGPT,{random.randint(1, 2_000)},{output},0,API log"


def servegen(rows: int) -> Iterator[str]:
    """Lines of a workload that ServeGen wrote."""
    random, at_s = Random(0), 0.0
    yield "request_id,timestamp,input_tokens,output_tokens"
    for number in range(rows):
        at_s += random.expovariate(REQUESTS_PER_S)
        yield f"{number},{at_s},{random.randint(1, 4_000)},{random.randint(1, 800)}"


def mooncake(rows: int) -> Iterator[str]:
    """Lines of a Mooncake file: 24 blocks a prompt, of which 8 are another prompt's."""
    random = Random(0)
    for number in range(rows):
        start = random.randrange(number + 1) * 16
        ids = [*range(start, start + 8), *range(number * 16, number * 16 + 16)]
        row = {"timestamp": number // 10 * 3_000, "input_length": 24 * 512, "output_length": 343, "hash_ids": ids}
        yield json.dumps(row)


def least_cpu_s(work: Callable[[], Result], repeats: int) -> tuple[float, Result]:
    """The least CPU time of several runs, and the result of the last."""
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        result = work()
        taken.append(time.process_time() - start)
    return min(taken), result


def bytes_held(work: Callable[[], object]) -> int:
    """What the result of some work takes in memory."""
    tracemalloc.start()
    result = work()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del result
    return held


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the Azure file; a tenth for the others")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = measured(Path(folder), args.rows, args.repeats)
    host = {"cpu": platform.processor() or platform.machine(), "cpus": os.cpu_count(), "load_1m": os.getloadavg()[0]}
    versions = {"drafter-selector": __version__, "python": platform.python_version(), "system": platform.platform()}
    print(json.dumps({"benchmark": "trace_reading", "host": host, "versions": versions, "rows": results}, indent=1))


def measured(folder: Path, rows: int, repeats: int) -> list[dict[str, object]]:
    """A row per task: CPU seconds and requests/s, and for reading bytes per request."""
    found: list[dict[str, object]] = []

    def note(task: str, cpu_s: float, count: int, **more: object) -> None:
        per_s = round(count / cpu_s) if cpu_s else None
        found.append({"task": task, "rows": count, "cpu_s": round(cpu_s, 3), "rows_per_s": per_s, **more})

    makers = {"azure": (azure, rows), "burstgpt": (burstgpt, rows // 10)}
    makers |= {"servegen": (servegen, rows // 10), "mooncake": (mooncake, rows // 10)}
    for name, (maker, count) in makers.items():
        path = folder / name
        path.write_text("\n".join(maker(count)))
        cpu_s, trace = least_cpu_s(lambda path=path: load_trace(path), repeats)
        sample = min(MEMORY_SAMPLE, len(trace.requests))
        held = bytes_held(lambda path=path, sample=sample: load_trace(path, limit=sample))
        note(f"read {name}", cpu_s, count, bytes_per_request=round(held / sample))
    late_s = 0.9 * rows / REQUESTS_PER_S
    cpu_s, trace = least_cpu_s(lambda: load_trace(folder / "azure", from_s=late_s, to_s=late_s + 60), repeats)
    note("read a minute at nine tenths of azure", cpu_s, rows, requests=len(trace.requests))
    cpu_s, _ = least_cpu_s(lambda: load_trace(folder / "azure", limit=1_000), repeats)
    note("read the first 1,000 of azure", cpu_s, 1_000)
    whole = load_trace(folder / "azure")
    cpu_s, typed = least_cpu_s(lambda: with_text_types(whole, {"code": 0.5, "math": 0.5}, 0), repeats)
    note("give text types", cpu_s, rows)
    cpu_s, _ = least_cpu_s(lambda: scaled(typed.requests, 2.0), repeats)
    note("scale the rate", cpu_s, rows)
    return found


if __name__ == "__main__":
    main()
