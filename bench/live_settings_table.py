"""One GPU whose engine turns its verify budget, against co-located servers and two GPUs of fixed arms: simulated.

    python bench/live_settings_table.py --rows bench/results/live_settings_table.jsonl      runs what is missing
    python bench/live_settings_table.py --rows … --summary                                 judges what is there

Steps at every budget are those measured (the profile's dspark-8-compact); accept lengths below the whole budget are
derived from published ones. The arm was measured on another board than the others, so every cell is run twice: with the
costs as measured, and with those evened to the board of the others (`_budget_arms.py`).

Parts
    steady   closed loop of 1 … 64 clients × two text mixes × with and without a TBT target
    ramp     closed loop of 1 → 64 → 1 clients
    text     16 clients whose text changes from code to Romansh to conversation

Choices of a cell: `in engine` is one GPU with one dspark-8-compact server under `min_energy`; `budget F` the same
server left at F; `co-located` one GPU with none, eagle3-k1 and dspark-8 taking turns; `two GPUs` a fixed arm on each.
Both joules are given: with two GPUs the second one's idle power is in the first of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from _budget_arms import COMPACT, accept_lengths, baseline_ratios, budgets, on_one_board, with_fixed_budgets
from _cell_table import made_by, run_table
from _planner_cells import MIXES, MOST_CONTEXT_TOKENS, PROFILE, profile
from _planner_runs import made_up, short
from _planner_verdict import worse_because

from selector.files.fleet import Backend, Fleet, LoadedFleet
from selector.files.profile import Profile
from selector.simulator.arrivals import ClosedLoop, Load
from selector.simulator.run import Window
from selector.simulator.trial import simulate_policy

COSTS = ("measured", "one board")
CO_LOCATED = ("none", "eagle3-k1", "dspark-8")
TWO_GPUS = (("dspark-8", "dspark-8"), ("eagle3-k1", "dspark-8"))
CLIENTS = (1, 16, 64)


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the table."""

    part: str
    mix: str
    target_ms: float | None
    clients: str
    costs: str
    seed: int = 0


def all_cells() -> Iterator[Cell]:
    """Every cell, at either costs."""
    for costs in COSTS:
        for mix in ("code+romansh", "ten types"):
            for target_ms in (None, 10.0):
                for clients in CLIENTS:
                    yield Cell("steady", mix, target_ms, str(clients), costs)
            yield Cell("ramp", mix, 25.0, "1-64-1", costs)
        yield Cell("text", "code, romansh, conversation", None, "16", costs)


@cache
def priced(costs: str) -> Profile:
    """The profile at those costs, with an arm for every budget."""
    return with_fixed_budgets(profile() if costs == "measured" else on_one_board(profile()))


def load_of(cell: Cell) -> tuple[Load, Window, float]:
    """The requests of a cell, what of the run is measured, and when it ends."""
    if cell.part == "steady":
        clients = int(cell.clients)
        requests = made_up(MIXES[cell.mix], cell.target_ms, 20_000, cell.seed, clients=clients)
        window = Window(from_s=90.0, to_s=150.0 if clients > 1 else 390.0)
        return ClosedLoop(requests, [(0.0, 1), (10.0, clients)]), window, window.to_s + 30.0
    if cell.part == "ramp":
        requests = made_up(MIXES[cell.mix], cell.target_ms, 20_000, cell.seed, clients=64)
        window = Window(from_s=0.0, to_s=360.0)
        return ClosedLoop(requests, [(0.0, 1), (120.0, 64), (240.0, 1)]), window, 420.0
    clients = int(cell.clients)
    texts = ("code", "romansh", "conversation")
    third = [made_up({text: 1.0}, None, 1_500, cell.seed, clients=clients) for text in texts]
    changing = [request for part in third for request in part]
    named = [replace(each, trace=replace(each.trace, request_id=f"r{n}")) for n, each in enumerate(changing)]
    return ClosedLoop(named, [(0.0, clients)]), Window(), float("inf")


def fleet_of(arms: Sequence[str], gpus: Sequence[str], costs: str) -> LoadedFleet:
    """Backends of those arms on those GPUs, at those costs."""
    name = f"{PROFILE}, {costs}"
    backends = tuple(
        Backend(name=f"b{n}-{arm}", arm=arm, gpus=(gpu,), profile=name, max_context_tokens=MOST_CONTEXT_TOKENS)
        for n, (arm, gpu) in enumerate(zip(arms, gpus, strict=True))
    )
    fleet = Fleet(version=1, target=profile().target.name, backends=backends)
    return LoadedFleet(fleet, "bench", {name: priced(costs)})


def run_cell(cell: Cell) -> dict[str, object]:
    """All runs of a cell."""
    results: dict[str, dict[str, object]] = {}
    load, window, until_s = load_of(cell)

    def run(name: str, arms: Sequence[str], gpus: Sequence[str], policy: str) -> None:
        fleet = fleet_of(arms, gpus, cell.costs)
        results[name] = short(simulate_policy(fleet, load, policy, seed=cell.seed, window=window, until_s=until_s))

    run("in engine", [COMPACT], ["gpu0"], "min_energy")
    run("budget 1", [COMPACT], ["gpu0"], f"static:{COMPACT}")
    for budget in budgets(profile()):
        arm = f"{COMPACT}-{budget:g}"
        run(f"budget {budget:g}", [arm], ["gpu0"], f"static:{arm}")
    for policy in ("min_energy", "affinity", *(f"static:{arm}" for arm in CO_LOCATED)):
        run(f"co-located {policy}", CO_LOCATED, ["gpu0"] * len(CO_LOCATED), policy)
    for arms in TWO_GPUS:
        for policy in ("min_energy", "least_loaded", "affinity"):
            run(f"two GPUs {'+'.join(arms)} {policy}", arms, ["gpu0", "gpu1"], policy)
    return {**asdict(cell), "results": results}


def provenance() -> dict[str, object]:
    """What made the rows, and what they rest on."""
    return {
        "benchmark": "live_settings_table",
        "simulated": True,
        "measured": "all steps, prefill and idle power; dspark-8-compact on another board than the other arms",
        "derived": {
            "accept lengths by budget": accept_lengths(profile()),
            "one board: times and energies of none over those beside dspark-8-compact": baseline_ratios(profile()),
        },
        "profile": PROFILE,
        **made_by(),
    }


def print_summary(rows: Path) -> None:
    """In each cell, in-engine joules over the least of each group that is no worse service."""
    groups = ("budget ", "co-located ", "two GPUs ")
    print(f"{'cell':58}  J/token  " + "  ".join(f"{group.strip():>30}" for group in groups))
    for line in rows.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "part" not in row:
            continue
        results, ours = row["results"], row["results"]["in engine"]
        words = f"{row['part']} {row['mix']} {row['clients']} {row['target_ms']}, {row['costs']}"
        told = []
        for group in groups:
            competing = {n: r for n, r in results.items() if n.startswith(group) and not worse_because(r, ours)}
            best = min(competing, key=lambda name: competing[name]["j"], default=None)
            if best is None:
                told.append(f"{'none serves as well':>30}")
                continue
            other = competing[best]
            ratios = f"{ours['j'] / other['j']:.3f} {ours['decode_j'] / other['decode_j']:.3f}"
            told.append(f"{best.removeprefix(group)[:17]:>18} {ratios}")
        print(f"{words:58}  {ours['j']:7.3f}  " + "  ".join(told))
    print("joules, then decode joules, over the best of each group that serves no worse; below 1 the engine wins")


def main() -> None:
    """Runs the missing cells, or judges."""
    run_table(__doc__ or "", Cell, all_cells, run_cell, print_summary, provenance)


if __name__ == "__main__":
    main()
