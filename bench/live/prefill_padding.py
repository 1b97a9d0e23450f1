"""Live cells against a simulation in which prefill graphs pad: a trial of what the simulator does not do yet.

    python bench/live/prefill_padding.py --plan bench/live/one-server.toml --rows bench/results/h200_live.jsonl

A server with graphs for prompts of some lengths computes every token of the smallest that holds a pass
(`prefill_cuda_graph_runner.py` of SGLang). Here passes are as long as that says, by the plan's
`--cuda-graph-bs-prefill`, and nobody waits after one: the times to resume, fitted to live cells, are left out. One line
for each cell that the rows have: live over simulated less 1.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from bisect import bisect_left
from pathlib import Path
from unittest.mock import patch

from imposing import with_imposed
from plan import cells as cells_of
from plan import load_plan
from run import errors
from workload import simulated_result, trace_of, workload

from selector.files.depthcosts import numbers_behind
from selector.simulator.job import Job
from selector.simulator.server import ServerModel

_FLAG = "--cuda-graph-bs-prefill"
_SHOWN = ("j_per_accepted_token", "tbt_p50_ms", "tbt_p99_ms", "ttft_p50_ms")


def main() -> None:
    """Prints the cells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True, help="results.jsonl of run.py")
    args = parser.parse_args()
    plan, folder = load_plan(args.plan), args.plan.parent
    graphs = numbers_behind(plan.servers.flags, _FLAG)
    measured = {row["key"]: row for row in map(json.loads, args.rows.read_text(encoding="utf-8").splitlines())}

    def padded(server: ServerModel, chunks: list[tuple[Job, int]], tokens: int) -> tuple[float, float]:
        """In place of `_pass_cost`."""
        prefill = server.cost.prefill
        parts = [prefill.work(todo, after=job._prefilled) for job, todo in chunks]
        whole = prefill.work(tokens)
        ms, j = (min(sum(values), limit) for values, limit in zip(zip(*parts, strict=True), whole, strict=True))
        if graphs and tokens <= graphs[-1]:
            full = prefill.work(graphs[bisect_left(graphs, tokens)])
            ms, j = ms + full[0] - whole[0], j + full[1] - whole[1]
        return prefill.of_pass(ms, j)

    trace = trace_of(plan, folder)
    with patch.object(ServerModel, "_pass_cost", padded), tempfile.TemporaryDirectory() as made:
        for cell in cells_of(plan):
            row = measured.get(cell.key)
            if row is None:
                continue
            _, loaded = with_imposed(folder / cell.fleet, plan, Path(made) / Path(cell.fleet).stem, folder)
            load = workload(plan, cell, trace, loaded, rate=row["rate"])
            found = errors(row["live"], simulated_result(loaded, load, plan, cell))
            print(f"{cell.key}: " + ", ".join(f"{name} {found[name]:+.1%}" for name in _SHOWN), flush=True)


if __name__ == "__main__":
    main()
