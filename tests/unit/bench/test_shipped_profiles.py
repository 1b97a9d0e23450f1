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

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

from _joined_arms import JOINS
from build_profiles import build, sweep_file

from selector.core.types import TEXT_TYPES, Capability
from selector.files.profile import NO_DRAFTER, Profile, load_profile, write_profile
from selector.files.provenance import provenance_keys
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


@pytest.mark.parametrize("name", profile_names())
def test_a_profile_is_what_its_raw_cells_make(name: str, tmp_path: Path) -> None:
    """Arms that a sweep of its own adds included, and the checks beside it."""
    shipped, made = ROOT / "profiles" / f"{name}.json", tmp_path / f"{name}.json"
    made.write_bytes(shipped.read_bytes())
    config = sweep_file(name)
    assert config is not None
    build(name, config, None, tmp_path, tmp_path)
    assert made.read_text("utf-8") == shipped.read_text("utf-8")
    for checks in tmp_path.glob("*_checks.json"):
        assert checks.read_text("utf-8") == (ROOT / "bench" / "results" / checks.name).read_text("utf-8")


@pytest.mark.parametrize("name", JOINS)
def test_arms_that_join_leave_the_others_as_they_are_and_are_not_lost(name: str, tmp_path: Path) -> None:
    join = JOINS[name]
    shipped = load_profile(join.profile)
    without = shipped.model_copy(update={"arms": {n: a for n, a in shipped.arms.items() if n not in join.modes}})
    made = tmp_path / f"{join.profile}.json"
    write_profile(without, made)
    config = sweep_file(name)
    assert config is not None
    build(name, config, None, tmp_path, tmp_path)
    assert load_profile(str(made)) == shipped
    for arm, mode_of in join.modes.items():
        joined, known = shipped.arm(arm), shipped.arm(mode_of)
        assert joined.acceptance == known.acceptance and joined.cannot_serve == known.cannot_serve
        assert joined.cells != known.cells and joined.live_setting is not None
        assert "on that board against those of the profile" in (
            shipped.provenance[joined.cells[0].provenance].note or ""
        )


def test_every_profile_knows_what_a_longer_context_costs(profile: Profile) -> None:
    """Batches measured at one context alone would cost the same at any other; as windows that do not grow nearly do."""
    if profile.target.sliding_window is not None:
        assert not any(arm.context_slope for arm in profile.arms.values())
        return
    per_byte = {
        round(arm.context_slope.ms_per_token / profile.target.kv_bytes_per_token, 13)
        for arm in profile.arms.values()
        if arm.context_slope is not None
    }
    default = load_profile(DEFAULT)
    slope = default.arm(NO_DRAFTER).context_slope
    assert slope is not None
    assert per_byte == {round(slope.ms_per_token / default.target.kv_bytes_per_token, 13)}
    assert all(arm.context_slope for arm in profile.arms.values())


def test_every_provenance_is_used_and_every_step_was_measured(profile: Profile) -> None:
    for arm in profile.arms.values():
        for cell in (*arm.cells, *(cell for other in arm.other_settings for cell in other.cells)):
            source = profile.provenance[cell.provenance]
            assert source.kind == "measured" and source.engine and source.weights and source.driver
            assert cell.window_s and cell.watts and cell.sm_mhz
            assert cell.watts <= 1.02 * profile.gpu.power_limit_w
    assert {key for _, key in provenance_keys(profile)} == set(profile.provenance)


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
        words = arm.launch.flags
        flags = {word: words[at + 1] for at, word in enumerate(words) if word.startswith("--")}
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
