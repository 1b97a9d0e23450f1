"""The sweep files that bench/h200/plan.py writes can be read, and hold the arms that there are configurations for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from selector.profiler.config import load_config
from selector.profiler.plan import DecodeStep, plan

SCRIPT = Path(__file__).parents[3] / "bench" / "h200" / "plan.py"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for folder, text in {
        "Qwen3-14B": '{"vocab_size": 151936}',
        "Qwen3-4B": '{"text_config": {"vocab_size": 151936}}',
        "Qwen3-14B-dspark": '{"block_size": 7}',
        "Qwen3-14B-dflash": '{"block_size": 16}',
        "Qwen3-14B-eagle3": '{"max_position_embeddings": 2048}',
        "Qwen3.6-27B": "{}",
        "gemma-4-31B-it": "{}",
        "Qwen3.6-27B-eagle3": "{}",
    }.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(text)
    return tmp_path


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_the_sweep_of_a_target_has_its_drafters(models: Path) -> None:
    (models / "a.toml").write_text(run("Qwen3-14B", "--models", models, "--grid", "full", "--repeats", 3).stdout)
    config = load_config(models / "a.toml")
    widths = {arm.name: arm.verify_tokens for arm in config.arms}
    assert widths == {
        "none": 1, "dspark-8": 8, "eagle3-k1": 2, "eagle3-k3": 4, "eagle3-k5": 6, "dflash-16": 16, "dflash-8": 8,
        "ngram-8": 8, "standalone-k3": 4, "eagle3-adaptive": 8, "dspark-8-cap-accept": 8, "dspark-8-compact": 8,
    }  # fmt: skip
    assert config.arm("standalone-k3").draft == "Qwen3-4B"
    adaptive = config.arm("eagle3-adaptive").flags
    assert "--speculative-adaptive" in adaptive
    assert adaptive[adaptive.index("--speculative-num-steps") + 1] == "7"
    assert config.arm("dspark-8-compact").env == {"SGLANG_RAGGED_VERIFY_MODE": "compact"}
    assert config.decode.repeats == 3
    assert {len(part.batches) for part in config.grid} == {7, 4}
    assert "fa3" in config.server.flags


def test_a_draft_made_for_fewer_positions_limits_its_arm_alone(models: Path) -> None:
    (models / "a.toml").write_text(run("Qwen3-14B", "--models", models).stdout)
    config = load_config(models / "a.toml")
    limits = {arm.name: arm.max_context_tokens for arm in config.arms if arm.max_context_tokens is not None}
    assert limits == {"eagle3-k1": 2048, "eagle3-k3": 2048, "eagle3-k5": 2048, "eagle3-adaptive": 2048}
    assert config.arm("eagle3-k1").env == {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    assert config.arm("dflash-16").env == {}


def test_a_smaller_model_of_another_vocabulary_does_not_draft(models: Path) -> None:
    (models / "Qwen3-4B" / "config.json").write_text('{"vocab_size": 32000}')
    assert "standalone" not in run("Qwen3-14B", "--models", models).stdout


def test_a_target_without_drafts_still_has_what_needs_none(models: Path) -> None:
    (models / "b.toml").write_text(run("Qwen3.6-27B", "--models", models, "--no-graphs").stdout)
    config = load_config(models / "b.toml")
    assert [arm.name for arm in config.arms] == ["none", "ngram-8", "mtp-k1", "mtp-k3"]
    assert config.output_name == "h200__qwen3.6-27b-no-graphs"
    assert config.prefill is not None and not config.prefill.drafting_among_running
    assert "--disable-cuda-graph" in config.server.flags
    assert "fa3" not in config.server.flags


def test_single_steps_are_measured_without_interruptions(models: Path) -> None:
    (models / "s.toml").write_text(run("Qwen3-14B", "--models", models, "--grid", "single").stdout)
    config = load_config(models / "s.toml")
    assert [(part.batches, part.prompt_tokens) for part in config.grid] == [((1, 32), (512,))]
    assert config.prefill is not None and config.prefill.among_running is None and config.drift is None


def test_patterns_choose_arms_in_their_order_and_may_fit_none(models: Path) -> None:
    wanted = "none,ngram-8,dspark-*[0-9],mtp-k1*,eagle3-k[13]*"
    (models / "c.toml").write_text(run("Qwen3-14B", "--models", models, "--arms", wanted).stdout)
    config = load_config(models / "c.toml")
    assert [arm.name for arm in config.arms] == ["none", "ngram-8", "dspark-8", "eagle3-k1", "eagle3-k3"]
    assert config.drift is None and config.prefill is not None and config.prefill.among_running == 7


def test_what_is_not_there_is_refused(models: Path) -> None:
    assert "has no Llama/config.json" in run("Llama", "--models", models).stderr
    assert "no arm dspark-9" in run("Qwen3-14B", "--models", models, "--arms", "none,dspark-9").stderr


def test_an_arm_is_asked_for_no_batch_that_its_memory_has_no_place_for(models: Path) -> None:
    (models / "Qwen3.6-27B-dspark").mkdir()
    (models / "Qwen3.6-27B-dspark" / "config.json").write_text('{"block_size": 16}')
    (models / "a.toml").write_text(run("Qwen3.6-27B", "--models", models, "--arms", "none,dspark-17,mtp-k1").stdout)
    config = load_config(models / "a.toml")
    batches = {arm.name: set() for arm in config.arms}  # type: dict[str, set[int]]
    for launch in plan(config, metered=False):
        assert launch.arm is not None
        batches[launch.arm.name] |= {step.batch for step in launch.steps if isinstance(step, DecodeStep)}
    assert batches == {"none": {1, 8, 32, 64}, "dspark-17": {1, 8}, "mtp-k1": {1, 8, 32, 64}}
    assert config.arm("dspark-17").flags[-2:] == ("--max-running-requests", "16")
    assert config.arm("mtp-k1").env == {} and config.server.flags[2:4] == ("--max-running-requests", "64")


def test_a_target_of_sliding_windows_runs_as_many_as_their_pool_holds(models: Path) -> None:
    (models / "a.toml").write_text(run("gemma-4-31B-it", "--models", models, "--grid", "full").stdout)
    config = load_config(models / "a.toml")
    assert config.server.flags[2:4] == ("--max-running-requests", "32")
    assert max(batch for part in config.grid for batch in part.batches) == 32
    assert config.drift is not None and config.drift.batches == (1, 32)
    assert all(arm.env["SGLANG_SWA_EVICTION_INTERVAL"] == "16" for arm in config.arms)
