"""How many requests a second one core simulates, by policy and number of backends; prints JSON.

The load is the Azure 2023 conversation trace as it is, and for more backends than 8 also as many times as fast as they
are more, so that each is as busy as with 8. The fleet cycles through every arm of a shipped profile. Seconds are those
of the CPU, the least of several runs, of `Simulation.run` alone: reading the trace and building the fleet are left out.

    python bench/simulation_speed.py AzureLLMInferenceTrace_conv.csv > bench/results/simulation_speed.json

`compiled` says whether the package was installed with DRAFTER_SELECTOR_COMPILE=1 (see scripts/hatch_build.py).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from _timing import cpu_model, make_fleet

from selector import __version__
from selector.files.fleet import LoadedFleet
from selector.files.policy import load_policy_file
from selector.files.trace import load_trace, with_text_types
from selector.simulator import decoding
from selector.simulator.engine import SimulatedRequest, Simulation
from selector.simulator.trial import prepare, true_acceptance

TBT_TARGET_MS = 25.0
BUSY_BACKENDS = 8
"""So many backends take the trace at its own speed."""


def cpu_s(loaded: LoadedFleet, requests: Sequence[SimulatedRequest], policy: str) -> float:
    """CPU seconds of one run."""
    context = loaded.policy_context()
    simulation = Simulation(context, load_policy_file(policy).make({}, context), true_acceptance(loaded))
    gc.collect()
    started = time.process_time()
    run = simulation.run(requests)
    spent_s = time.process_time() - started
    assert len(run.records) + run.dropped == len(requests)
    return spent_s


def measure(
    trace_path: Path, profile: str, policy: str, backends: int, *, rate_scale: float, repeats: int, limit: int | None
) -> dict[str, object]:
    """The least CPU time of `repeats` runs."""
    loaded = make_fleet(profile, backends)
    trace = with_text_types(load_trace(trace_path), {"conversation": 1.0}, 0)
    requests = prepare(trace, loaded, tbt_target_ms=TBT_TARGET_MS, rate_scale=rate_scale, limit=limit)
    spent_s = min(cpu_s(loaded, requests, policy) for _ in range(repeats))
    return {
        "policy": policy,
        "backends": backends,
        "rate_scale": rate_scale,
        "requests": len(requests),
        "cpu_s": round(spent_s, 4),
        "requests_per_cpu_s": round(len(requests) / spent_s),
        "us_per_request": round(1e6 * spent_s / len(requests), 1),
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace", type=Path, help="the Azure 2023 conversation trace (CSV)")
    parser.add_argument("--profile", default="h200__qwen3-8b")
    parser.add_argument("--backends", type=int, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("--policies", nargs="+", default=["least_loaded", "min_energy"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit", type=int, help="only the first N requests")
    options = parser.parse_args()
    rows = []
    for policy in options.policies:
        for backends in options.backends:
            for rate_scale in sorted({1.0, max(1.0, backends / BUSY_BACKENDS)}):
                rows.append(
                    measure(
                        options.trace,
                        options.profile,
                        policy,
                        backends,
                        rate_scale=rate_scale,
                        repeats=options.repeats,
                        limit=options.limit,
                    )
                )
                print(json.dumps(rows[-1]), file=sys.stderr)
    report = {
        "benchmark": "simulation_speed",
        "command": " ".join(["bench/simulation_speed.py", options.trace.name, *sys.argv[2:]]),
        "trace": options.trace.name,
        "profile": options.profile,
        "tbt_target_ms": TBT_TARGET_MS,
        "repeats": options.repeats,
        "host": {"cpu": cpu_model(), "cpus": os.cpu_count(), "load_1m": os.getloadavg()[0]},
        "versions": {
            "drafter-selector": __version__,
            "python": platform.python_version(),
            "compiled": not str(decoding.__file__).endswith(".py"),
            "numpy": version("numpy"),
            "system": platform.platform(),
        },
        "rows": rows,
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
