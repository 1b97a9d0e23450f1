"""A sweep turns an arm's live setting while its server runs; the profile has what each value costs and accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from selector.errors import ProfileError
from selector.files.profile import Profile, parse_profile, write_profile
from selector.profiler.assemble import assemble
from selector.profiler.cells import DecodeCell, FailedStep, read_cells
from selector.profiler.config import SweepConfig, load_config
from selector.profiler.measure import Bench
from selector.profiler.settingacceptance import with_setting_acceptance
from selector.profiler.sweep import Sweep, SweepResult
from tests.unit.profiler.test_assemble import base
from tests.unit.profiler.test_sweep import FACTS, Watcher, config

KNOB = "dspark_force_budget_frac"
ARM = "dspark-8-compact"
SWEEP_FILE = Path(__file__).parents[3] / "bench" / "h200" / "dspark-compact.toml"


def live_config(**changes: Any) -> SweepConfig:
    knob = {"name": KNOB, "launched": 1.0, "others": [0.5, 0.25]}
    arms = [
        {"name": "none", "algorithm": "none", "verify_tokens": 1},
        {"name": ARM, "algorithm": "DSPARK", "verify_tokens": 8, "imposed_accept_length": 1, "live_setting": knob},
    ]
    parts = {"prefill": None, "drift": None, "grid": [{"batches": [1, 8], "prompt_tokens": [512]}], "arms": arms}
    return config(target={"name": "M", "model": "m"}, **(parts | changes))


@pytest.fixture
def run(tmp_path, clock, meter, launcher):
    async def run(config: SweepConfig, watcher: Watcher | None = None) -> SweepResult:
        await clock.sleep(1.0)
        bench = Bench(clock=clock, launcher=launcher, meter=meter, facts=FACTS, host=None, vocab_size=32_000)
        return await Sweep(config, tmp_path, bench, watcher or Watcher()).run()

    return run


def shapes(tmp_path: Path) -> list[tuple[int, float | None]]:
    cells = read_cells(tmp_path / "cells.jsonl")
    return [(cell.batch, cell.setting) for cell in cells if isinstance(cell, DecodeCell) and cell.arm == ARM]


async def test_every_value_is_measured_in_one_launch(run, tmp_path, launcher) -> None:
    result = await run(live_config())
    assert result.failed == result.left == 0
    assert shapes(tmp_path) == [(batch, setting) for batch in (1, 8) for setting in (None, 0.5, 0.25)]
    assert launcher.launched == ["none", ARM]
    assert [told[KNOB] for told in launcher.servers[1].told] == [1.0, 0.5, 0.25, 1.0, 0.5, 0.25]
    assert launcher.servers[0].told == []


async def test_all_else_is_measured_as_launched(run, launcher) -> None:
    await run(live_config(prefill={"prompt_tokens": [1024]}))
    told = [told[KNOB] for told in launcher.servers[1].told]
    assert told[:6] == [1.0, 0.5, 0.25, 1.0, 0.5, 0.25] and set(told[6:]) == {1.0}


async def test_a_server_that_ran_before_gets_back_what_it_had(run, launcher) -> None:
    arm = live_config().arm(ARM).model_dump() | {"url": "http://127.0.0.1:1"}  # the fake launcher asks nobody
    await run(live_config(arms=[arm], idle=None))
    assert [told[KNOB] for told in launcher.servers[0].told] == [1.0, 0.5, 0.25, 1.0, 0.5, 0.25, 1.0]


async def test_a_killed_sweep_goes_on_with_the_values_that_are_left(run, tmp_path, launcher) -> None:
    watcher = Watcher()
    watcher.interrupt_after = 8  # idle twice, none twice, and four of the arm
    with pytest.raises(KeyboardInterrupt):
        await run(live_config(), watcher)
    assert shapes(tmp_path) == [(1, None), (1, 0.5), (1, 0.25), (8, None)]
    await run(live_config())
    assert shapes(tmp_path)[4:] == [(8, 0.5), (8, 0.25)]
    assert [told[KNOB] for told in launcher.servers[-1].told] == [0.5, 0.25]


async def test_a_server_that_refuses_gives_no_cell(run, tmp_path, launcher) -> None:
    launcher.prepare = lambda arm, server: setattr(server, "verdict", False)
    result = await run(live_config())
    assert shapes(tmp_path) == []
    failed = [cell for cell in read_cells(tmp_path / "cells.jsonl") if isinstance(cell, FailedStep)]
    assert result.failed == len(failed) == 6
    assert f"refuses {KNOB} = 0.25" in failed[2].reason and "@0.25" in failed[2].step


async def assembled(run: Any, tmp_path: Path) -> Profile:
    made = live_config(grid=[{"batches": [1, 8], "prompt_tokens": [512]}])
    await run(made)
    profile, report = assemble(made, read_cells(tmp_path / "cells.jsonl"), base())
    (one, eight) = report["arms"][ARM]["settings"]["0.25"]
    assert (one["batch"], eight["batch"]) == (1, 8)
    # The fake's part by batch is a quarter of 0.04 ms: 0.24 of some 5.4 ms at batch 8.
    assert eight["ms_frac"] == pytest.approx(-0.24 / 5.4, rel=0.1)
    return profile


async def test_the_profile_holds_what_every_value_costs(run, tmp_path) -> None:
    profile = await assembled(run, tmp_path)
    knob = profile.arm(ARM).live_setting
    assert knob is not None and (knob.name, knob.launched) == (KNOB, 1.0)
    assert [other.value for other in knob.others] == [0.5, 0.25]
    launched, half, quarter = (setting.step.step(8, 700.0)[0] for setting in profile.settings(ARM))
    assert launched > half > quarter
    assert profile.provenance[knob.others[0].cells[0].provenance].kind == "measured"


async def test_accept_lengths_at_a_budget_are_derived_and_say_so(run, tmp_path) -> None:
    profile = await assembled(run, tmp_path)
    arm = profile.arm(ARM)
    known = {"code": base().arm("eagle3-k2").acceptance["code"].model_copy(update={"mean": 4.0})}
    measured = arm.model_copy(update={"acceptance": known})
    paper = {**profile.provenance, "paper": base().provenance["paper"]}
    full = profile.model_copy(update={"arms": {**profile.arms, ARM: measured}, "provenance": paper})
    path = tmp_path / "profile.json"
    write_profile(full, path)
    with pytest.raises(ProfileError, match="lacks code"):
        parse_profile(path.read_text(), str(path))
    write_profile(with_setting_acceptance(full), path)
    loaded = parse_profile(path.read_text(), str(path))
    half, quarter = loaded.arm(ARM).other_settings
    assert 1.0 < quarter.acceptance["code"].mean < half.acceptance["code"].mean < 4.0
    assert loaded.provenance[half.acceptance["code"].provenance].kind == "derived"
    assert with_setting_acceptance(base()) == base().model_copy(
        update={"provenance": with_setting_acceptance(base()).provenance}
    )


def test_a_value_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        live_config(
            arms=[
                {
                    "name": ARM,
                    "algorithm": "DSPARK",
                    "verify_tokens": 8,
                    "live_setting": {"name": KNOB, "launched": 1.0, "others": [0.5, 1.0]},
                }
            ]
        )


def test_the_sweep_file_for_an_h200_asks_for_every_budget_at_every_batch() -> None:
    sweep = load_config(SWEEP_FILE)
    arm = sweep.arm(ARM)
    assert arm.env == {"SGLANG_RAGGED_VERIFY_MODE": "compact"} and arm.imposed_accept_length == 1.0
    assert arm.live_setting is not None and {arm.live_setting.launched, *arm.live_setting.others} == {
        1,
        0.5,
        0.25,
        0.125,
    }
    assert {batch for part in sweep.grid for batch in part.batches} == {1, 8, 32, 64}
    graphs = sweep.server.flags[sweep.server.flags.index("--cuda-graph-bs-decode") + 1 :]
    buckets = sorted(8 * int(size) for size in graphs)
    for batch in (1, 8, 32, 64):
        for budget in (1.0, 0.5, 0.25, 0.125):
            tokens = batch + int(budget * 7 * batch)
            assert min(bucket for bucket in buckets if bucket >= tokens) - tokens < 8
    table = arm.flags[arm.flags.index("--speculative-dspark-sps-table-path") + 1]
    assert (SWEEP_FILE.parents[2] / table).is_file()
