"""`check` on adaptive servers: a schedule that is far from the measured costs is named, one that is near is not."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from selector.core.adaptiveschedule import schedule_at
from selector.core.scheduleaim import Aim
from selector.core.sglangadaptive import Expected, Schedule, Tier
from selector.files.adaptivecheck import FAR_FRAC, _gaps, schedule_trouble
from selector.files.adaptiveconfig import adaptive_config_text
from selector.files.depthcosts import depth_costs
from selector.files.fleet import LoadedFleet, parse_fleet
from selector.files.profile import Launch
from tests.profiles import sparse_profile

SPARSE = sparse_profile()
DEEP: Schedule = {1: Tier(candidate_steps=(3,))}
NEVER: Schedule = {1: Tier(candidate_steps=(0,))}


def fleet(*flags: str, takes_tbt_target: bool = False, target_ms: float | None = None) -> LoadedFleet:
    """One backend of an adaptive arm; accept lengths are those of code alone."""
    deep = SPARSE.arms["eagle3-k3"]
    deep = deep.model_copy(update={"acceptance": {"code": deep.acceptance["code"]}})
    adaptive = deep.model_copy(
        update={"draft_steps": None, "takes_tbt_target": takes_tbt_target, "launch": Launch(flags=flags)}
    )
    profile = SPARSE.model_copy(update={"arms": {**SPARSE.arms, "eagle3-k3": deep, "eagle3-adaptive": adaptive}})
    slo = "" if target_ms is None else f'[slo]\ndefault_class = "c"\n[slo.classes.c]\ntbt_target_ms = {target_ms}\n'
    text = (
        'version = 1\ntarget = "Qwen3-8B"\n[[backends]]\nname = "b"\narm = "eagle3-adaptive"\ngpus = ["h:0"]\n'
        'profile = "made-up"\n'
    )
    return LoadedFleet(parse_fleet(text + slo, "f.toml"), "f.toml", {"made-up": profile})


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "adaptive.json"


def written(config: Path, schedule: Schedule) -> str:
    config.write_text(adaptive_config_text(schedule, {}), encoding="utf-8")
    return str(config)


def test_the_default_schedule_is_far_where_drafting_always_pays() -> None:
    trouble = schedule_trouble(fleet("--speculative-adaptive"), 0, None)
    assert trouble is not None
    assert "default adaptive schedule" in trouble[0] and "code at 64" in trouble[0]
    assert "export sglang-adaptive --profile made-up" in trouble[1]


def test_a_schedule_of_the_best_depths_is_near(config: Path) -> None:
    flags = ("--speculative-adaptive", "--speculative-adaptive-config", written(config, DEEP))
    assert schedule_trouble(fleet(*flags), 0, None) is None


@pytest.mark.parametrize("target_ms", [None, 50.0])
def test_one_that_is_near_under_either_load_is_not_named(config: Path, target_ms: float | None) -> None:
    # At the same batch depth 3 is cheapest throughout, at the same pace these are.
    paced: Schedule = {1: Tier(candidate_steps=(3,)), 2: Tier(candidate_steps=(0,)), 48: Tier(candidate_steps=(3,))}
    flags = ("--speculative-adaptive", "--speculative-adaptive-config", written(config, paced))
    loaded = fleet(*flags, target_ms=target_ms)
    costs = depth_costs(loaded.profiles["made-up"], "made-up", algorithm="EAGLE3")
    of_loads = _gaps(loaded.profiles["made-up"], costs, paced, (1, 8, 32, 64), target_ms)
    means = [fmean(gap.excess_frac for gap in gaps.values()) for gaps in of_loads]
    assert means[0] > FAR_FRAC > means[1]
    assert schedule_trouble(loaded, 0, None) is None


def test_what_is_named_is_the_load_that_costs_less(config: Path) -> None:
    flags = ("--speculative-adaptive", "--speculative-adaptive-config", written(config, NEVER))
    loaded = fleet(*flags)
    costs = depth_costs(loaded.profiles["made-up"], "made-up", algorithm="EAGLE3")
    _, gaps = _gaps(loaded.profiles["made-up"], costs, NEVER, (1, 8, 32, 64), None)
    mean = fmean(gap.excess_frac for gap in gaps.values())
    trouble = schedule_trouble(loaded, 0, None)
    assert trouble is not None and f"costs {mean:.0%} more" in trouble[0]
    assert "more where clients wait" in trouble[0]


def test_a_schedule_runs_once_at_each_batch_for_both_loads(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def counted(aim: Aim, schedule: Schedule, batch: int, *rest: Any) -> Expected | None:
        ran.append(batch)
        return schedule_at(aim, schedule, batch, *rest)

    monkeypatch.setattr("selector.files.adaptivecheck.schedule_at", counted)
    flags = ("--speculative-adaptive", "--speculative-adaptive-config", written(config, NEVER))
    assert schedule_trouble(fleet(*flags), 0, None) is not None
    assert ran == [1, 8, 32, 64]


def test_one_that_never_drafts_is_far(config: Path) -> None:
    flags = ("--speculative-adaptive", "--speculative-adaptive-config", written(config, NEVER))
    trouble = schedule_trouble(fleet(*flags), 0, None)
    assert trouble is not None and str(config) in trouble[0]


def test_a_target_that_a_schedule_misses_is_named(config: Path) -> None:
    flags = ("--speculative-adaptive", "--speculative-adaptive-config", written(config, NEVER))
    trouble = schedule_trouble(fleet(*flags, target_ms=4.0), 0, None)
    assert trouble is not None and "misses 4 ms for code" in trouble[0]
    assert "--tbt-target-ms 4 " in trouble[1]


def test_a_running_server_says_itself_what_it_runs(config: Path) -> None:
    loaded = fleet("--speculative-adaptive")
    running = {"speculative_adaptive": True, "version": "0.5.17"}
    trouble = schedule_trouble(loaded, 0, running)
    assert trouble is not None and "0.5.17" in trouble[0]
    assert schedule_trouble(loaded, 0, {**running, "speculative_adaptive_config": written(config, DEEP)}) is None
    assert schedule_trouble(loaded, 0, {**running, "speculative_adaptive": False}) is None


def test_a_file_on_another_machine_says_nothing(tmp_path: Path) -> None:
    flags = ("--speculative-adaptive", "--speculative-adaptive-config", str(tmp_path / "not-here.json"))
    assert schedule_trouble(fleet(*flags), 0, None) is None


def test_a_file_that_the_engine_would_refuse_is_named(config: Path) -> None:
    config.write_text(json.dumps({"1": {"candidate_steps": []}}), encoding="utf-8")
    flags = ("--speculative-adaptive", "--speculative-adaptive-config", str(config))
    trouble = schedule_trouble(fleet(*flags), 0, None)
    assert trouble is not None and "candidate_steps" in trouble[0]


def test_what_a_plugin_chooses_is_not_judged_by_its_schedule() -> None:
    assert schedule_trouble(fleet("--speculative-adaptive", takes_tbt_target=True), 0, None) is None


def test_a_fixed_arm_has_no_schedule() -> None:
    assert schedule_trouble(fleet(), 0, None) is None


def test_a_server_that_starts_shallower_than_its_schedule_goes_is_named(config: Path) -> None:
    steps = ("--speculative-adaptive", "--speculative-num-steps")
    for plugin in (True, False):
        trouble = schedule_trouble(fleet(*steps, "3", takes_tbt_target=plugin), 0, None)
        assert trouble is not None and "depth 7" in trouble[0] and "does not start" in trouble[0]
        assert "--speculative-num-steps 7" in trouble[1]
    assert schedule_trouble(fleet(*steps, "7", takes_tbt_target=True), 0, None) is None
    given = ("--speculative-adaptive-config", written(config, DEEP))
    assert schedule_trouble(fleet(*steps, "3", *given), 0, None) is None
    trouble = schedule_trouble(fleet(*steps, "1", *given), 0, None)
    assert trouble is not None and str(config) in trouble[0]
    # One that runs has started.
    assert schedule_trouble(fleet(*steps, "3", takes_tbt_target=True), 0, {"speculative_adaptive": True}) is None
