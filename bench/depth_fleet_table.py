"""One GPU whose engine chooses its draft depth, against co-located servers and two GPUs of fixed arms: simulated.

    python bench/depth_fleet_table.py --rows bench/results/depth_fleet_table.jsonl      runs what is missing
    python bench/depth_fleet_table.py --rows … --summary                               judges what is there

No engine ran: steps cost what the profile measured of `none`, `eagle3-k1` and `eagle3-k3`, and depth 0 is priced as
`none`, which flatters every engine that may go there (`docs/in-engine.md`).

Parts
    steady   closed loop of 1 … 64 clients × text mixes × TBT targets
    ramp     closed loop of 1 → 64 → 1 clients × mixes × targets
    text     16 or 64 clients whose text changes from code to Romansh to conversation

Choices of a cell
    in engine      one GPU, one server: the plugin, the exported schedule, or SGLang's default schedule chooses
    fixed          one GPU, one server of one arm
    co-located     one GPU, a server of each fixed arm taking turns, under every policy that tells them apart
    two GPUs       two servers of fixed arms: one arm least loaded or packed, or eagle3-k1 beside eagle3-k3
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from _cell_table import made_by, run_table
from _depth_fleets import FIXED, IN_ENGINE, exported, fleet_of
from _planner_cells import MIXES, PROFILE
from _planner_runs import made_up, short
from _planner_verdict import compared, passes, read_rows

from selector.simulator.arrivals import ClosedLoop, Load
from selector.simulator.run import Window
from selector.simulator.trial import simulate_policy

TARGETS_MS = (None, 25.0, 10.0, 6.0)
CLIENTS = (1, 4, 16, 64)
CO_LOCATED_POLICIES = (
    "min_energy", "least_loaded", "round_robin", "affinity", "batch_threshold", "goodput", "greedy_energy",
)  # fmt: skip
TWO_ARMS = ("eagle3-k1", "eagle3-k3")
TWO_ARMS_POLICIES = ("min_energy", "least_loaded", "affinity")
GROUPS = ("fixed", "co-located", "two GPUs")
TEXTS_IN_TURN = ("code", "romansh", "conversation")


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the table."""

    part: str
    mix: str
    target_ms: float | None
    clients: str
    seed: int = 0


def all_cells() -> Iterator[Cell]:
    """Every cell."""
    for target_ms in TARGETS_MS:
        for mix in MIXES:
            for clients in CLIENTS:
                yield Cell("steady", mix, target_ms, str(clients))
        for mix in ("conversation", "code+romansh", "ten types"):
            yield Cell("ramp", mix, target_ms, "1-64-1")
        for clients in (16, 64):
            yield Cell("text", ", ".join(TEXTS_IN_TURN), target_ms, str(clients))


def load_of(cell: Cell) -> tuple[Load, Window, float]:
    """The requests of a cell, what of the run is measured, and when it ends."""
    if cell.part == "steady":
        clients = int(cell.clients)
        requests = made_up(MIXES[cell.mix], cell.target_ms, 20_000, cell.seed, clients=clients)
        window = Window(from_s=60.0, to_s=60.0 + {1: 300.0, 4: 120.0}.get(clients, 60.0))
        return ClosedLoop(requests, [(0.0, 1), (10.0, clients)]), window, window.to_s + 30.0
    if cell.part == "ramp":
        requests = made_up(MIXES[cell.mix], cell.target_ms, 20_000, cell.seed, clients=64)
        window = Window(from_s=0.0, to_s=300.0)
        return ClosedLoop(requests, [(0.0, 1), (150.0, 64), (300.0, 1)]), window, 360.0
    clients = int(cell.clients)
    parts = [made_up({text: 1.0}, cell.target_ms, 30 * clients, cell.seed, clients=clients) for text in TEXTS_IN_TURN]
    changing = [request for part in parts for request in part]
    named = [replace(each, trace=replace(each.trace, request_id=f"r{n}")) for n, each in enumerate(changing)]
    return ClosedLoop(named, [(0.0, clients)]), Window(), float("inf")


@dataclass(frozen=True, slots=True)
class Choice:
    """What serves a cell."""

    name: str
    arms: Sequence[str]
    gpus: Sequence[str]
    policy: str


def choices() -> Iterator[Choice]:
    """All that are compared in a cell."""
    for arm in (*IN_ENGINE, *FIXED):
        yield Choice(f"{'in engine' if arm in IN_ENGINE else 'fixed'} {arm}", [arm], ["gpu0"], "least_loaded")
    for policy in CO_LOCATED_POLICIES:
        yield Choice(f"co-located {policy}", FIXED, ["gpu0"] * len(FIXED), policy)
    for arm in FIXED:
        for policy in ("static", "pack"):
            yield Choice(f"two GPUs {policy}:{arm}", [arm, arm], ["gpu0", "gpu1"], f"{policy}:{arm}")
    for policy in TWO_ARMS_POLICIES:
        yield Choice(f"two GPUs {'+'.join(TWO_ARMS)} {policy}", TWO_ARMS, ["gpu0", "gpu1"], policy)


def run_cell(cell: Cell) -> dict[str, object]:
    """All runs of a cell."""
    return {**asdict(cell), "results": _results(cell, list(choices()))}


def run_anew(cell: Cell, name: str) -> dict[str, object]:
    """One run of a cell. Raises `KeyError` for a name that no choice has."""
    return _results(cell, [choice for choice in choices() if choice.name == name])[name]


def _results(cell: Cell, chosen: Sequence[Choice]) -> dict[str, dict[str, object]]:
    results = {}
    load, window, until_s = load_of(cell)
    with TemporaryDirectory() as folder:
        in_engine = exported(Path(folder), cell.target_ms)
        for choice in chosen:
            fleet = fleet_of(choice.arms, choice.gpus, in_engine)
            results[choice.name] = short(
                simulate_policy(fleet, load, choice.policy, seed=cell.seed, window=window, until_s=until_s)
            )
    return results


def provenance() -> dict[str, object]:
    """What made the rows."""
    return {
        "benchmark": "depth_fleet_table",
        "simulated": True,
        "assumed": "depth 0 costs what none does and a pass of the draft",
        "profile": PROFILE,
        "command": "python bench/depth_fleet_table.py --rows bench/results/depth_fleet_table.jsonl",
        **made_by(),
    }


def against(row: dict[str, Any], arm: str, group: str) -> dict[str, Any]:
    """An engine of a cell against the choices of a group (see `_planner_verdict`)."""
    ours = row["results"][f"in engine {arm}"]
    return compared(ours, {name: found for name, found in row["results"].items() if name.startswith(group)})


def print_summary(path: Path) -> None:
    """By engine, group and part: how many cells are won and lost. Then every cell of the plugin."""
    rows = read_rows(path)
    for arm in IN_ENGINE:
        for group in GROUPS:
            for part in ("steady", "ramp", "text"):
                found = [against(row, arm, group) for row in rows if row["part"] == part]
                ratios = [each["ratio"] for each in found if each["ratio"] is not None]
                decode = [each["decode_ratio"] for each in found if each["decode_ratio"] is not None]
                if not ratios:
                    continue
                print(
                    f"{arm:16} {group:10} {part:6} {len(found):2} cells, none serves as well in "
                    f"{len(found) - len(ratios):2}; J over the best: median {median(ratios):.3f}, {min(ratios):.3f} to "
                    f"{max(ratios):.3f}; decode {median(decode):.3f}, {min(decode):.3f} to {max(decode):.3f}; "
                    f"{sum(map(passes, found)):2} pass at 2 %"
                )
    for row in rows:
        told = [f"{row['part']} {row['mix']} {row['clients']} {row['target_ms']}".ljust(48)]
        for arm in IN_ENGINE:
            ours = row["results"][f"in engine {arm}"]
            told.append(f"{ours['j']:.3f} {_attained(ours)}")
        for group in GROUPS:
            found = against(row, IN_ENGINE[0], group)
            best = (found["best"] or "none").removeprefix(group).strip()
            told.append(f"{found['ratio'] or 0:.3f} {found['decode_ratio'] or 0:.3f} {best[:28]}".ljust(40))
        print("  ".join(told))


def _attained(result: dict[str, Any]) -> str:
    met = result["attainment"].values()
    return f"{min(met):4.0%}" if met else "   –"


def main() -> None:
    """Runs the missing cells, or judges."""
    run_table(__doc__ or "", Cell, all_cells, run_cell, print_summary, provenance, run_anew)


if __name__ == "__main__":
    main()
