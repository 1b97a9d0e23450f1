"""The profiles that are shipped: complete, every number traceable, and made of the raw cells beside them.

No number of theirs is here, so that better measurements need no change.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from selector.core.types import TEXT_TYPES, Capability
from selector.files.profile import NO_DRAFTER, Profile, load_profile
from selector.files.shipped import profile_names
from selector.profiler.config import load_config
from tests.profiles import PROFILE

ROOT = Path(__file__).parents[3]
DEFAULT = "h200__qwen3-8b"
"""The one that commands, examples and the demo name."""


@pytest.fixture(params=profile_names())
def profile(request: pytest.FixtureRequest) -> Profile:
    return load_profile(request.param)


def run_bench(name: str, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / f"{name}.py"), *args],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT)},
    )
    return done.stdout


def test_the_default_profile_has_what_the_examples_ask_of_it() -> None:
    arms = load_profile(DEFAULT).arms
    assert {NO_DRAFTER, "eagle3-k1", "eagle3-k3", "dspark-8", "dflash-16", "ngram-8"} <= set(arms)
    for name in set(arms) - {NO_DRAFTER}:
        assert set(arms[name].acceptance) == set(TEXT_TYPES), name


def test_the_default_profile_is_what_its_raw_cells_make(tmp_path: Path) -> None:
    cells = tmp_path / "cells.jsonl"
    cells.write_bytes((ROOT / "profiles" / "raw" / f"{DEFAULT}.cells.jsonl").read_bytes())
    made, base = tmp_path / "made.json", ROOT / "profiles" / f"{DEFAULT}.json"
    command = [sys.executable, "-m", "selector", "profile", "--assemble", "--json", "--out", tmp_path, "--write", made]
    command += ["--config", ROOT / "bench" / "h200" / "qwen3-8b.toml", "--base", base]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert made.read_text("utf-8") == base.read_text("utf-8")


def test_every_provenance_is_used_and_every_step_was_measured(profile: Profile) -> None:
    used = {profile.target.provenance, profile.gpu.provenance, profile.idle.provenance}
    used |= {point.provenance for point in profile.prefill}
    for arm in profile.arms.values():
        for cell in arm.cells:
            source = profile.provenance[cell.provenance]
            assert source.kind == "measured" and source.engine and source.weights and source.driver
            assert cell.window_s and cell.watts and cell.sm_mhz
            assert profile.gpu.power_limit_w is None or cell.watts <= 1.02 * profile.gpu.power_limit_w
            used.add(cell.provenance)
        used |= {point.provenance for point in arm.prefill or ()}
        if arm.context_slope is not None:
            used.add(arm.context_slope.provenance)
        if arm.prefill_pass is not None:
            used |= {arm.prefill_pass.provenance, arm.prefill_pass.resume_provenance or arm.prefill_pass.provenance}
        for entry in arm.acceptance.values():
            used |= {entry.provenance, entry.request_spread_provenance or entry.provenance}
    assert used == set(profile.provenance)


def test_what_arms_cannot_serve(profile: Profile) -> None:
    assert profile.arms[NO_DRAFTER].cannot_serve == ()
    for name, arm in profile.arms.items():
        if name != NO_DRAFTER:
            assert Capability.PENALTIES in arm.cannot_serve
        if arm.algorithm in ("DSPARK", "DFLASH"):
            assert Capability.HIDDEN_STATES in arm.cannot_serve


def test_launch_flags_name_the_arm(profile: Profile) -> None:
    assert profile.arms[NO_DRAFTER].launch.flags == ()
    for arm in profile.arms.values():
        flags = dict(zip(arm.launch.flags[::2], arm.launch.flags[1::2], strict=True))
        assert flags.get("--speculative-algorithm", "none") == arm.algorithm
        assert ("{draft}" in arm.launch.flags) == (arm.launch.draft_model is not None)
        if arm.draft_steps is not None:
            assert flags["--speculative-num-steps"] == str(arm.draft_steps)
            assert flags["--speculative-num-draft-tokens"] == str(arm.verify_tokens)


def test_servers_are_launched_without_what_only_measuring_needs(profile: Profile) -> None:
    """With real weights, a tokenizer, a prefix cache, and SGLang's own dense list of graphs."""
    assert "--max-running-requests" in profile.common_flags
    measuring = load_config(ROOT / "bench" / "h200" / "qwen3-8b.toml").server.measuring_flags
    named = {flag for flag in measuring if flag.startswith("--")}
    assert "--cuda-graph-bs-decode" in named and "--load-format" in named
    assert not named & set(profile.common_flags)


def test_leave_one_out_prints_the_errors_of_inner_cells() -> None:
    report = json.loads(run_bench("leave_one_out", PROFILE))
    assert report["left_out_cells"] == len(report["cells"]) == 12
    for value in ("step_ms", "step_j"):
        errors = sorted(abs(cell[f"{value}_error_frac"]) for cell in report["cells"])
        assert report[value]["worst_error_frac"] == errors[-1]
        assert report[value]["median_error_frac"] == pytest.approx((errors[5] + errors[6]) / 2, abs=1e-5)
        assert all(math.isfinite(error) for error in errors)
