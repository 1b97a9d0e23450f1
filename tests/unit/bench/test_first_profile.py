"""The shipped first profile: built from the raw files, complete, and every number traceable."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

from selector.core.types import TEXT_TYPES, Capability
from selector.files.profile import Acceptance, Profile, load_profile

ROOT = Path(__file__).parents[3]
RAW = ROOT / "profiles" / "raw"

ARMS = {"none": 1, "eagle3-k1": 2, "eagle3-k3": 4, "dspark-8": 8, "dflash-16": 16, "ngram-8": 8}
DRAFTERS = {"eagle3-k1": "EAGLE3", "eagle3-k3": "EAGLE3", "dspark-8": "DSPARK", "dflash-16": "DFLASH"}


@pytest.fixture(scope="module")
def profile() -> Profile:
    return load_profile("h200__qwen3-8b")


def rows(name: str) -> list[dict[str, str]]:
    with (RAW / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def run_bench(name: str, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / f"{name}.py"), *args],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT)},
    )
    return done.stdout


def test_the_shipped_file_is_what_the_script_builds(tmp_path: Path) -> None:
    built = tmp_path / "built.json"
    run_bench("build_first_profile", "--out", str(built))
    assert built.read_text("utf-8") == (ROOT / "profiles" / "h200__qwen3-8b.json").read_text("utf-8")


def test_the_arms_and_their_widths(profile: Profile) -> None:
    assert {name: arm.verify_tokens for name, arm in profile.arms.items()} == ARMS


def test_every_measured_row_is_a_cell_but_the_impossible_one(profile: Profile) -> None:
    expected = {
        (row["drafter"], int(row["verify_tokens"]), int(row["batch"]), float(row["step_ms"]), float(row["step_j"]))
        for row in rows("h200_qwen3_8b_first.csv")
        if not (row["drafter"] == "dflash" and row["batch"] == "8" and row["accept_length"] == "4.0")
    }
    found = {
        (name.partition("-")[0], arm.verify_tokens, cell.batch, cell.step_ms, cell.step_j)
        for name, arm in profile.arms.items()
        for cell in arm.cells
    }
    assert found == expected
    assert all(cell.watts is not None and cell.watts <= 714 for arm in profile.arms.values() for cell in arm.cells)
    assert "796.2 W" in str(profile.provenance["step-dflash-16"].note)


def test_every_provenance_is_used_and_every_number_has_one_of_its_kind(profile: Profile) -> None:
    used = {profile.target.provenance, profile.gpu.provenance, profile.idle.provenance}
    used |= {point.provenance for point in profile.prefill}
    for arm in profile.arms.values():
        assert arm.context_slope is not None
        assert profile.provenance[arm.context_slope.provenance].kind == "derived"
        used.add(arm.context_slope.provenance)
        for cell in arm.cells:
            assert profile.provenance[cell.provenance].kind == "measured"
            assert cell.window_s and cell.watts and cell.sm_mhz and cell.imposed_accept_length
            used.add(cell.provenance)
        for entry in arm.acceptance.values():
            assert entry.request_spread_provenance is not None
            used |= {entry.provenance, entry.request_spread_provenance}
    assert used == set(profile.provenance)
    measured = [source for source in profile.provenance.values() if source.kind == "measured"]
    assert all(source.gpu and source.driver == "580.159" for source in measured)
    for name in ARMS:
        step = profile.provenance[f"step-{name}"]
        assert (step.engine, step.weights) == ("sglang 0.5.17", "dummy")


def test_every_drafting_arm_has_an_accept_length_for_every_text_type(profile: Profile) -> None:
    for name, arm in profile.arms.items():
        assert set(arm.acceptance) == (set() if name == "none" else set(TEXT_TYPES))


def kind(profile: Profile, entry: Acceptance) -> str:
    return profile.provenance[entry.provenance].kind


def survival_rate(mean: float, width: int) -> float:
    """The p with 1 + p + … + p^(width − 1) = mean, by Newton's method on the sum itself."""
    p = 0.5
    for _ in range(100):
        value = sum(p**k for k in range(width)) - mean
        p -= value / sum(k * p ** (k - 1) for k in range(1, width))
    return p


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("text_type", ["code", "math", "conversation"])
def test_published_accept_lengths_are_taken_over_or_converted(profile: Profile, name: str, text_type: str) -> None:
    published = [
        row
        for row in rows("acceptance_published.csv")
        if row["algorithm"] == DRAFTERS[name] and row["text_type"] == text_type
    ]
    assert len(published) == 3
    mean = fmean(float(row["accept_length"]) for row in published)
    entry, width = profile.arms[name].acceptance[text_type], ARMS[name]
    if width == 8:
        assert kind(profile, entry) == "published"
        assert entry.mean == pytest.approx(mean, abs=1e-4)
    else:
        assert kind(profile, entry) == "derived"
        assert entry.published_mean == pytest.approx(mean, abs=1e-4)
        assert entry.published_verify_tokens == 8
        assert entry.mean == pytest.approx(sum(survival_rate(mean, 8) ** k for k in range(width)), abs=1e-4)
    assert profile.provenance[entry.provenance].source == published[0]["source_url"]


@pytest.mark.parametrize("name", DRAFTERS)
def test_what_nobody_published_is_assumed_as_stated(profile: Profile, name: str) -> None:
    table, width = profile.arms[name].acceptance, ARMS[name]
    for text_type in ("news", "long_document"):
        assert (table[text_type].mean, kind(profile, table[text_type])) == (table["conversation"].mean, "assumed")
    for text_type in ("structured_output", "tool_call", "agentic"):
        assert (table[text_type].mean, kind(profile, table[text_type])) == (table["code"].mean, "assumed")
    rate = survival_rate(table["conversation"].mean, width)
    for text_type, frac in (("multilingual", 0.8), ("romansh", 0.5)):
        assert kind(profile, table[text_type]) == "assumed"
        assert table[text_type].mean == pytest.approx(sum((frac * rate) ** k for k in range(width)), abs=2e-4)


def test_everything_about_ngram_acceptance_is_assumed(profile: Profile) -> None:
    assert {kind(profile, entry) for entry in profile.arms["ngram-8"].acceptance.values()} == {"assumed"}


def test_sizes_and_derived_costs_follow_from_the_model_config(profile: Profile) -> None:
    config = json.loads((RAW / "qwen3_8b_config.json").read_text("utf-8"))
    kv_bytes = 2 * 36 * 8 * 128 * 2
    assert profile.target.kv_bytes_per_token == kv_bytes
    # Published: 8.2 B parameters, 6.95 B of them outside the embeddings.
    assert profile.target.parameters == pytest.approx(8.19e9, rel=1e-3)
    embeddings = profile.target.parameters - profile.target.non_embedding_parameters
    assert embeddings == 2 * config["vocab_size"] * config["hidden_size"]
    assert profile.target.non_embedding_parameters == pytest.approx(6.95e9, rel=1e-3)
    for point in profile.prefill:
        seconds = 2 * profile.target.non_embedding_parameters * point.prompt_tokens / 671e12
        assert point.ms == pytest.approx(1e3 * seconds, rel=1e-4)
        assert point.j == pytest.approx(692 * seconds, rel=1e-4)
        assert profile.provenance[point.provenance].kind == "derived"
    for arm in profile.arms.values():
        assert arm.context_slope is not None
        assert arm.context_slope.ms_per_token == pytest.approx(1e3 * kv_bytes / 4.25e12, rel=1e-4)
        assert arm.context_slope.j_per_token == pytest.approx(kv_bytes * 153e-12, rel=1e-4)


def test_what_arms_cannot_serve(profile: Profile) -> None:
    assert profile.arms["none"].cannot_serve == ()
    for name in ARMS.keys() - {"none"}:
        assert Capability.PENALTIES in profile.arms[name].cannot_serve
    for name in ("dspark-8", "dflash-16"):
        assert Capability.HIDDEN_STATES in profile.arms[name].cannot_serve


def test_launch_flags_name_the_arm(profile: Profile) -> None:
    assert "--max-running-requests" in profile.common_flags
    assert "dummy" not in profile.common_flags
    assert profile.arms["none"].launch.flags == ()
    for name, arm in profile.arms.items():
        flags = dict(zip(arm.launch.flags[::2], arm.launch.flags[1::2], strict=True))
        assert flags.get("--speculative-algorithm", "none") == arm.algorithm
        assert ("{draft}" in arm.launch.flags) == (arm.launch.draft_model is not None)
        if arm.draft_steps is not None:
            assert flags["--speculative-num-steps"] == str(arm.draft_steps), name
            assert flags["--speculative-num-draft-tokens"] == str(arm.verify_tokens), name


def test_leave_one_out_prints_the_errors_of_inner_cells() -> None:
    report = json.loads(run_bench("leave_one_out"))
    assert report["left_out_cells"] == len(report["cells"]) == 12
    for value in ("step_ms", "step_j"):
        errors = sorted(abs(cell[f"{value}_error_frac"]) for cell in report["cells"])
        assert report[value]["worst_error_frac"] == errors[-1]
        assert report[value]["median_error_frac"] == pytest.approx((errors[5] + errors[6]) / 2, abs=1e-5)
        assert all(math.isfinite(error) for error in errors)
