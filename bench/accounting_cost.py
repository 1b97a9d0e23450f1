"""What keeping account costs the router: CPU per request of records, metrics, the work model and shared-out energy.

    .venv/bin/python bench/accounting_cost.py --backends 8 --requests 20000

Prints one JSON document. `us_per_request` covers a request's decision and end as the books take them, once with meters
(every GPU read once a second of the trace) and once without; the least of several runs, since noise only adds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections import deque
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent))

from _timing import cpu_model, make_fleet
from decision_cost import make_request, outcome_of

from selector import __version__
from selector.core.types import NO_CORRECTION, Candidate, Decision
from selector.files.fleet import LoadedFleet
from selector.router.books import Books
from selector.router.metrics import RouterMetrics
from selector.router.outliers import Outliers

REQUESTS_PER_BACKEND = 32
REQUESTS_PER_S = 200.0
RUNS = 5


def measure(fleet: LoadedFleet, requests: int, *, metered: bool) -> float:
    """CPU microseconds a request."""
    context = fleet.policy_context()
    outliers = Outliers([spec.name for spec in fleet.specs], fleet.fleet.faults)
    books = Books(fleet.specs, context.acceptance, RouterMetrics(), metered=metered, outliers=outliers)
    specs = context.backends
    draw, now_s, running = Random(0), 0.0, deque()
    decisions = [
        Decision(
            backend=spec.name,
            reason="planned: request 3 of 8",
            candidates=tuple([Candidate(backend=s.name, arm=s.arm, feasible=True, tbt_ms=9.0) for s in specs]),
        )
        for spec in specs
    ]
    made = [make_request(number, draw, number / REQUESTS_PER_S) for number in range(requests)]
    ends = [
        outcome_of(request, specs[number % len(specs)].name, specs[number % len(specs)].arm, draw, 0.0)
        for number, request in enumerate(made)
    ]
    for gpu in books.gpus:
        books.begin(gpu, 0.0)
    read_s = 0.0
    began = time.process_time()
    for number, request in enumerate(made):
        now_s = number / REQUESTS_PER_S
        place = number % len(specs)
        books.decided(
            request,
            (request.request_id,),
            decisions[place],
            specs[place].arm,
            now_s,
            fallback=False,
            correction=NO_CORRECTION,
        )
        running.append(number)
        if len(running) > REQUESTS_PER_BACKEND * len(specs):
            over = running.popleft()
            books.ended(made[over], ends[over], now_s)
        if metered and now_s - read_s >= 1.0:
            read_s = now_s
            for gpu in books.gpus:
                books.reading(gpu, 400.0, 1.0, now_s)
    return 1e6 * (time.process_time() - began) / requests


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", type=int, default=8)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--profile", default="h200__qwen3-8b")
    args = parser.parse_args()
    fleet = make_fleet(args.profile, args.backends)
    results = {
        name: round(min(measure(fleet, args.requests, metered=metered) for _ in range(RUNS)), 1)
        for name, metered in (("unmetered", False), ("metered", True))
    }
    print(
        json.dumps(
            {
                "benchmark": "accounting_cost",
                "host": {"cpu": cpu_model(), "cpus": os.cpu_count(), "load_1m": os.getloadavg()[0]},
                "versions": {"drafter-selector": __version__, "python": platform.python_version()},
                "command": " ".join(sys.argv),
                "profile": args.profile,
                "backends": args.backends,
                "requests": args.requests,
                "us_per_request": results,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
