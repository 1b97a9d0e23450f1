"""The table of one GPU with in-engine depths: its cells, its servers, and who competes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

from _depth_fleets import FIXED, IN_ENGINE, OWN_SCHEDULE, PLUGIN, exported, fleet_of
from _planner_cells import MIXES
from _planner_runs import made_up, short
from depth_fleet_table import Cell, against, all_cells, load_of

from selector.simulator.arrivals import ClosedLoop
from selector.simulator.trial import simulate_policy

BENCH = Path(__file__).parents[3] / "bench"


def test_every_cell_has_a_load_with_its_clients_texts_and_target() -> None:
    cells = list(all_cells())
    assert len(set(cells)) == len(cells) == 4 * (5 * 4 + 3 + 2)
    load, window, until_s = load_of(Cell("text", "code, romansh, conversation", 10.0, "16"))
    assert [request.text_type for request in load.requests] == [
        text for text in ("code", "romansh", "conversation") for _ in range(480)
    ]
    assert {request.tbt_target_ms for request in load.requests} == {10.0}
    assert (window.from_s, until_s) == (0.0, float("inf"))


def test_the_servers_are_launched_with_what_a_user_would_export(tmp_path: Path) -> None:
    arms = exported(tmp_path, 10.0)
    assert tuple(arms) == IN_ENGINE
    specs = fleet_of(IN_ENGINE, ["g"] * 3, arms).specs
    assert all(tuple(at.arm for at in spec.depths) == FIXED for spec in specs)
    told = [own.takes_tbt_target for spec in specs if (own := spec.own_depth) is not None]
    assert told == [True, False, False]


def test_where_drafting_pays_the_plugin_takes_less_than_sglangs_schedule(tmp_path: Path) -> None:
    """SGLang's default stops drafting at batch 64 whatever it costs."""
    arms = exported(tmp_path, None)
    load = ClosedLoop(made_up(MIXES["code"], None, 150, 0, clients=64), [(0.0, 64)])
    results = {
        f"in engine {arm}": short(simulate_policy(fleet_of([arm], ["g"], arms), load, "least_loaded"))
        for arm in (PLUGIN, OWN_SCHEDULE)
    }
    fixed = short(simulate_policy(fleet_of(["eagle3-k3"], ["g"], arms), load, "least_loaded"))
    row = {"results": {**results, "fixed eagle3-k3": fixed, "co-located x": {**fixed, "lost": 1}}}
    assert 0.98 < against(row, PLUGIN, "fixed")["ratio"] < 1.02
    assert against(row, OWN_SCHEDULE, "fixed")["ratio"] > 1.1
    assert against(row, PLUGIN, "co-located")["ratio"] is None


def test_one_run_of_every_cell_can_be_made_anew(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    cell = {"part": "steady", "mix": "code", "target_ms": None, "clients": "1", "seed": 0}
    before = {"in engine eagle3-plugin": {"j": 9.0}, "fixed none": {"j": 2.0}}
    rows.write_text(json.dumps({"benchmark": "x"}) + "\n" + json.dumps({**cell, "results": before}) + "\n")
    command = [sys.executable, BENCH / "depth_fleet_table.py", "--rows", rows, "--anew", "fixed none"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    head, row = (json.loads(line) for line in rows.read_text().splitlines())
    assert head["anew"]["fixed none"]["python"], ran.stderr
    assert row["results"]["in engine eagle3-plugin"] == {"j": 9.0}
    assert row["results"]["fixed none"]["requests"] > 50
