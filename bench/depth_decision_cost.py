"""What the engine plugin costs per decode step: the choice of depth and what it learns; prints JSON.

The plugin's own objects with the depth file of bench/live and requests that have as much as it reads of SGLang's `Req`,
batches of 1 to 64 with a target in every request. A step is `announce` and `depth_for`, then `verified` with the
result; every so often a request is replaced, as a batch changes when requests come and go. CPU time of the thread, each
call by itself; garbage collection stays on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from random import Random
from statistics import median
from types import SimpleNamespace
from typing import Any

from _timing import cpu_model

from selector import __version__
from selector.core.enginefields import TARGET_FIELD, TEXT_FIELD
from selector.core.types import TEXT_TYPES
from selector.engine.batchfacts import BatchFacts
from selector.engine.depthpolicy import Steering
from selector.files.depthfile import load_depth_file

DEPTHS = Path(__file__).parent / "live" / "exported" / "depths.json"
BATCHES = (1, 8, 16, 32, 64)
STEPS_PER_REQUEST = 100
"""After about as many steps a request has its tokens."""
BUDGET_US = 20.0


def request(draw: Random) -> Any:
    """What the plugin reads of a request."""
    params = {
        TARGET_FIELD: draw.choice([10.0, 15.0, 25.0]),
        TEXT_FIELD: draw.choice(TEXT_TYPES),
        "thinking_budget": 100,
    }
    return SimpleNamespace(
        rid=f"{draw.getrandbits(64):016x}",
        sampling_params=SimpleNamespace(custom_params=params),
        origin_input_ids=[0] * draw.randint(100, 1_500),
        output_ids=[0] * draw.randint(1, 300),
    )


def timed(batch: int, steps: int, seed: int) -> dict[str, float]:
    """Microseconds of the parts of a step."""
    draw = Random(seed)
    file = load_depth_file(DEPTHS)
    steering = Steering(file.choice(start_depth=3), BatchFacts(None))
    requests = [request(draw) for _ in range(batch)]
    # Made beforehand: what making one does to the caches is not the plugin's.
    changes = [draw.random() < batch / STEPS_PER_REQUEST for _ in range(steps)]
    coming = [request(draw) for changed in changes if changed]
    chose_us, learnt_us, changed_us = [], [], []
    for changed in changes:
        if changed:
            requests = [*requests[1:], coming.pop()]
        begun = time.thread_time_ns()
        steering.announce(requests)
        depth = steering.depth_for(batch)
        done = time.thread_time_ns()
        (changed_us if changed else chose_us).append((done - begun) / 1e3)
        accepted = [min(depth, int(draw.expovariate(1.0))) for _ in range(batch)]
        begun = time.thread_time_ns()
        steering.verified(accepted, batch)
        learnt_us.append((time.thread_time_ns() - begun) / 1e3)
    both = sorted([*chose_us, *changed_us])
    return {
        "choose_us_p50": median(both),
        "choose_us_mean": sum(both) / len(both),
        "choose_us_p99": both[int(0.99 * len(both))],
        "choose_changed_batch_us_p50": median(changed_us) if changed_us else float("nan"),
        "learn_us_p50": median(learnt_us),
        "learn_us_mean": sum(learnt_us) / len(learnt_us),
        "step_us_mean": (sum(both) + sum(learnt_us)) / steps,
    }


def main() -> int:
    """Prints one row a batch; the best of several runs, since other work on the machine only slows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    load_1m = os.getloadavg()[0]
    rows = []
    for batch in BATCHES:
        runs = [timed(batch, args.steps, seed) for seed in range(args.repeats)]
        best = min(runs, key=lambda row: row["step_us_mean"])
        rows.append({"batch": batch, **{name: round(value, 2) for name, value in best.items()}})
    document = {
        "what": "the engine plugin's part of a decode step, CPU microseconds",
        "budget_us": BUDGET_US,
        "depths": [0, 1, 3],
        "rows": rows,
        "version": __version__,
        "python": platform.python_version(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "load_1m": load_1m,
        "command": f"scripts/bench depth_decision_cost --steps {args.steps} --repeats {args.repeats}",
    }
    print(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
