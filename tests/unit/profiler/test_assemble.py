"""Cells of a sweep become a profile that loads, with its checks; the impossible is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from selector.core.cost import StepPoint
from selector.errors import InputError
from selector.files.profile import Profile, parse_profile, write_profile
from selector.profiler.assemble import assemble
from selector.profiler.cells import (
    Cell,
    DecodeCell,
    DecodeRepeat,
    FailedStep,
    IdleCell,
    InterruptionCell,
    Metered,
    Origin,
    PrefillCell,
)
from selector.profiler.checks import leave_one_out, out_of_order
from selector.profiler.config import SweepConfig
from selector.profiler.modelsize import ModelSize
from selector.profiler.roofline import Ceiling, ceiling_of

ORIGIN = Origin(
    argv=("python3", "-m", "sglang.launch_server", "--model-path", "m x"),
    env={"SGLANG_SIMULATE_ACC_LEN": "3.0"},
    engine="sglang 0.5.17",
    gpu="NVIDIA H200",
    driver="580.1",
    power_limit_w=700.0,
    host="gpu-host",
    weights="dummy",
    date="2026-01-02T03:04:05+00:00",
)

CONFIG = SweepConfig.model_validate(
    {
        "version": 1,
        "output_name": "h200__m",
        "target": {"name": "M", "model": "m"},
        "gpu": {"name": "H200", "indices": [0], "peak_tflops": 989, "bandwidth_tb_s": 4.8},
        "server": {"context_length": 8192, "flags": ["--max-running-requests", "64"], "measuring_flags": ["--x"]},
        "decode": {"method": "steady"},
        "grid": [{"batches": [1, 8, 32, 64], "prompt_tokens": [512, 2048]}],
        "arms": [
            {"name": "none", "algorithm": "none", "verify_tokens": 1},
            {"name": "eagle3-k2", "algorithm": "EAGLE3", "verify_tokens": 3, "imposed_accept_length": 3, "draft": "d",
             "flags": ["--draft", "{draft}"]},
            {"name": "ngram-8", "algorithm": "NGRAM", "verify_tokens": 8},
        ],
    }
)  # fmt: skip


def base(**changes: Any) -> Profile:
    old = {"kind": "assumed", "source": "for a test"}
    cell = {"batch": 1, "context_tokens": 100, "step_ms": 9.0, "step_j": 9.0, "provenance": "old-cells"}
    acceptance = {"code": {"mean": 2.5, "provenance": "paper"}}
    data: dict[str, Any] = {
        "format": "drafter-selector/profile",
        "version": 1,
        "target": {
            "name": "M",
            "parameters": 8e9,
            "non_embedding_parameters": 7e9,
            "kv_bytes_per_token": 147_456,
            "provenance": "config",
        },
        "gpu": {"name": "H200", "power_limit_w": 650.0, "provenance": "old"},
        "idle": {"bare_w": 70, "served_w": 90, "provenance": "old"},
        "prefill": [{"prompt_tokens": 1000, "ms": 30, "j": 20, "provenance": "old"}],
        "arms": {
            "none": {"algorithm": "none", "verify_tokens": 1, "cells": [cell]},
            "eagle3-k2": {
                "algorithm": "EAGLE3", "verify_tokens": 3, "cells": [cell], "acceptance": acceptance,
                "cannot_serve": ["hidden_states"], "max_context_tokens": 2048,
                "context_slope": {"ms_per_token": 3e-5, "j_per_token": 2e-5, "provenance": "old"},
                "launch": {"draft_model": "publisher/draft"},
            },
        },
        "provenance": {key: old for key in ("config", "old", "old-cells", "paper")},
    }  # fmt: skip
    return Profile.model_validate(data | changes)


def metered(watts: float, seconds: float = 5.5) -> Metered:
    return Metered(
        duration_s=seconds,
        energy_j=watts * seconds,
        watts_mean=watts,
        counter_updates=55,
        update_interval_s=0.1,
        sm_mhz_mean=1980.4,
        temperature_c=45.04,
        power_capped_frac=0.25,
        flags=("processes unknown",),
    )


def decode(arm: str, batch: int, prompt: int, *, scale: float = 1.0, **changes: Any) -> DecodeCell:
    context = prompt + 500
    ms = scale * (5.0 + 0.04 * batch + 3e-5 * batch * context)
    repeats = tuple(
        DecodeRepeat(
            seed=seed,
            step_ms=ms * wobble,
            step_j=0.5 * ms * wobble,
            accept_length=1.0 if arm == "none" else 3.0,
            context_tokens=context,
            steps=1000,
            window_s=5.5,
            energy=metered(500.0),
        )
        for seed, wobble in ((1, 0.995), (2, 1.005))
    )
    data = {"sweep_pass": "main", "method": "steady", "repeats": repeats} | changes
    return DecodeCell(arm=arm, batch=batch, prompt_tokens=prompt, origin=ORIGIN, **data)


def sweep() -> list[Cell]:
    cells: list[Cell] = [
        IdleCell(arm=None, energy=metered(80.0), origin=ORIGIN),
        IdleCell(arm="none", energy=metered(96.0), origin=ORIGIN),
    ]
    for arm, scale in (("none", 1.0), ("eagle3-k2", 1.2)):
        shapes = [(batch, prompt) for prompt in (512, 2048) for batch in (1, 8, 32, 64)]
        cells += [decode(arm, batch, prompt, scale=scale) for batch, prompt in [*shapes, (8, 8192)]]
    cells += [
        PrefillCell(
            arm="none", prompt_tokens=tokens, prompts_at_once=1, prompts=100, ms=tokens * 0.025, j=tokens * 0.016,
            energy=metered(640.0), origin=ORIGIN,
        )
        for tokens in (512, 2048)
    ]  # fmt: skip
    cells.append(decode("none", 1, 512, scale=1.03, sweep_pass="drift"))
    cells.append(decode("none", 8, 512, scale=0.98, method="difference"))
    cells.append(FailedStep(step="server of ngram-8", reason="it did not start", origin=ORIGIN))
    return cells


def test_the_profile_loads_and_holds_what_was_measured(tmp_path: Path) -> None:
    profile, _ = assemble(CONFIG, sweep(), base())
    path = tmp_path / "h200__m.json"
    write_profile(profile, path)
    loaded = parse_profile(path.read_text(), str(path))
    assert loaded == profile
    assert set(loaded.arms) == {"none", "eagle3-k2"}
    arm = loaded.arms["eagle3-k2"]
    assert len(arm.cells) == 9
    cell = next(cell for cell in arm.cells if (cell.batch, cell.context_tokens) == (8, 1012.0))
    ms = 1.2 * (5.0 + 0.04 * 8 + 3e-5 * 8 * 1012)
    assert cell.step_ms == pytest.approx(ms, rel=1e-5)
    assert cell.step_j == pytest.approx(0.5 * ms, rel=1e-5)
    assert (cell.repeats, cell.spread_ms_frac) == (2, pytest.approx(0.01, rel=1e-3))
    assert (cell.watts, cell.sm_mhz, cell.temperature_c, cell.power_capped_frac) == (500.0, 1980.0, 45.0, 0.25)
    assert cell.window_s == pytest.approx(11.0)
    assert cell.imposed_accept_length == 3.0
    assert (loaded.idle.bare_w, loaded.idle.served_w) == (80.0, 96.0)
    assert [(point.prompt_tokens, point.ms) for point in loaded.prefill] == [(512, 12.8), (2048, 51.2)]
    assert loaded.gpu.power_limit_w == 700.0
    assert loaded.common_flags == ("--context-length", "8192", "--max-running-requests", "64")


def test_what_a_sweep_cannot_know_comes_from_the_older_profile() -> None:
    profile, _ = assemble(CONFIG, sweep(), base())
    arm = profile.arms["eagle3-k2"]
    assert arm.acceptance["code"].mean == 2.5
    assert arm.cannot_serve == ("hidden_states",)
    assert arm.max_context_tokens == 2048
    assert arm.launch.draft_model == "publisher/draft"
    assert arm.launch.flags == ("--draft", "{draft}")
    assert profile.target == base().target


def test_a_draft_made_for_fewer_positions_limits_its_arm() -> None:
    limited = CONFIG.arms[1].model_copy(update={"max_context_tokens": 4096})
    profile, _ = assemble(CONFIG.model_copy(update={"arms": (CONFIG.arms[0], limited)}), sweep(), base())
    assert profile.arms["eagle3-k2"].max_context_tokens == 4096


def test_a_profile_states_the_roofline_it_was_held_against() -> None:
    size = ModelSize(
        parameters=9e9, non_embedding_parameters=7e9, active_parameters=1e9, kv_bytes_per_token=147_456,
        sliding_kv_bytes_per_token=100_000, sliding_window=1024,
    )  # fmt: skip
    profile, _ = assemble(CONFIG, sweep(), base(), size)
    ceiling = ceiling_of(profile)
    assert ceiling == Ceiling(
        flop_per_s=989e12, bytes_per_s=4.8e12, size=replace(size, parameters=profile.target.parameters)
    )
    assert ceiling_of(base()) is None


def test_every_number_says_where_it_comes_from_and_nothing_else_is_kept() -> None:
    profile, _ = assemble(CONFIG, sweep(), base())
    assert set(profile.provenance) == {
        "config", "old", "paper", "sweep-none", "sweep-eagle3-k2", "sweep-idle", "sweep-prefill"
    }  # fmt: skip
    origin = profile.provenance["sweep-eagle3-k2"]
    assert origin.kind == "measured"
    assert origin.source == "SGLANG_SIMULATE_ACC_LEN=3.0 python3 -m sglang.launch_server --model-path 'm x'"
    assert (origin.engine, origin.weights, origin.driver) == ("sglang 0.5.17", "dummy", "580.1")
    assert (origin.host, origin.date) == ("gpu-host", "2026-01-02T03:04:05+00:00")


def lone(arm: str, tokens: int, ms: float, *, alone: bool = True) -> PrefillCell:
    return PrefillCell(
        arm=arm, prompt_tokens=tokens, alone=alone, prompts_at_once=1, prompts=100, ms=ms, j=0.4 * ms,
        energy=metered(400.0), origin=ORIGIN,
    )  # fmt: skip


def test_an_arms_own_prefill_and_its_least_pass_are_its_own(tmp_path: Path) -> None:
    more = [
        lone("none", 128, 5.0), lone("eagle3-k2", 128, 7.0), lone("eagle3-k2", 128, 7.2), lone("eagle3-k2", 1024, 40.0),
        lone("eagle3-k2", 512, 14.0, alone=False),
    ]  # fmt: skip
    profile, _ = assemble(CONFIG, [*sweep(), *more], base())
    assert [point.prompt_tokens for point in profile.prefill] == [512, 2048]
    none, eagle = profile.arms["none"], profile.arms["eagle3-k2"]
    assert none.prefill is None and none.prefill_pass is not None and none.prefill_pass.ms == 5.0
    assert eagle.prefill is not None and [point.prompt_tokens for point in eagle.prefill] == [512, 2048]
    assert eagle.prefill_pass is not None
    assert (eagle.prefill_pass.prompt_tokens, eagle.prefill_pass.ms, eagle.prefill_pass.repeats) == (128, 7.1, 2)
    assert eagle.prefill_pass.j == pytest.approx(0.4 * 7.1)
    write_profile(profile, tmp_path / "p.json")
    again = parse_profile((tmp_path / "p.json").read_text(), "p.json")
    assert again == profile and "sweep-pass-eagle3-k2" in again.provenance
    later, _ = assemble(CONFIG, sweep(), profile)
    assert later.arms["eagle3-k2"].prefill_pass == eagle.prefill_pass


def test_the_bare_board_after_a_sweep_is_drift_and_no_idle_power() -> None:
    hot = IdleCell(arm=None, sweep_pass="drift", energy=metered(88.0), origin=ORIGIN)
    profile, report = assemble(CONFIG, [*sweep(), hot], base())
    assert profile.idle.bare_w == 80.0
    assert report["idle_drift_frac"] == pytest.approx(0.1)


def test_without_idle_and_prefill_cells_the_older_ones_stay() -> None:
    only_decode = [cell for cell in sweep() if isinstance(cell, DecodeCell)]
    profile, _ = assemble(CONFIG, only_decode, base())
    assert profile.idle == base().idle
    assert profile.prefill == base().prefill


def test_an_arm_that_is_left_out_is_in_the_report_alone() -> None:
    arms = [arm.model_copy(update={"left_out": "the host sets its pace"} if arm.draft else {}) for arm in CONFIG.arms]
    profile, report = assemble(CONFIG.model_copy(update={"arms": tuple(arms)}), sweep(), base())
    assert list(profile.arms) == ["none"]
    assert list(report["arms"]) == ["none"]
    assert report["arms_left_out"] == {"eagle3-k2": "the host sets its pace"}
    assert report["arms_not_measured"] == ["ngram-8"]


def test_the_report_is_numbers_in_json() -> None:
    _, report = assemble(CONFIG, sweep(), base())
    assert json.loads(json.dumps(report)) == report
    assert report["arms_not_measured"] == ["ngram-8"]
    assert report["failed_steps"] == ["server of ngram-8: it did not start"]
    assert report["repeat_spread"]["step_j"]["median"] == pytest.approx(0.01, abs=1e-4)
    none = report["arms"]["none"]
    assert none["drift"] == [{"batch": 1, "prompt_tokens": 512, "ms_frac": 0.03, "j_frac": 0.03}]
    assert none["difference_method"] == [{"batch": 8, "prompt_tokens": 512, "ms_frac": -0.02, "j_frac": -0.02}]
    assert none["flags"] == ["processes unknown"]
    assert none["out_of_order"] == []
    weights_ms = 2 * 7e9 / 4.8e12 * 1e3
    kv_ms = 147_456 * 1012 / 4.8e12 * 1e3
    assert none["achieved_frac"]["1x512"] == pytest.approx((weights_ms + kv_ms) / (5.04 + 3e-5 * 1012), rel=1e-3)
    least_j = 80.0 * (weights_ms + kv_ms) / 1e3
    assert none["energy_floor_frac"]["1x512"] == pytest.approx(2 * least_j / (5.04 + 3e-5 * 1012), rel=1e-2)
    assert report["leave_one_out"]["step_ms"] == {"cells": 2, "median": pytest.approx(0, abs=1e-4), "worst": ANY}
    assert report["leave_one_out"]["step_j_batch_range"]["cells"] == 18


def edited(change: Callable[[DecodeCell], DecodeCell]) -> list[Cell]:
    """The sweep with one cell, `none` at batch 64 and prompt 2048, changed."""
    return [
        change(cell)
        if isinstance(cell, DecodeCell) and (cell.arm, cell.batch, cell.prompt_tokens) == ("none", 64, 2048)
        else cell
        for cell in sweep()
    ]


def with_cost(ms: float, j: float) -> Callable[[DecodeCell], DecodeCell]:
    def change(cell: DecodeCell) -> DecodeCell:
        repeats = tuple(repeat.model_copy(update={"step_ms": ms, "step_j": j}) for repeat in cell.repeats)
        return cell.model_copy(update={"repeats": repeats})

    return change


def test_a_step_faster_than_memory_allows_is_refused() -> None:
    floor_ms = (2 * 7e9 + 147_456 * 64 * 2548) / 4.8e12 * 1e3
    assemble(CONFIG, edited(with_cost(floor_ms * 1.01, 5.0)), base())
    with pytest.raises(
        InputError, match=r"none batch 64 context 2548: step_ms: is .*, below the .* ms that the roofline allows"
    ):
        assemble(CONFIG, edited(with_cost(floor_ms * 0.99, 5.0)), base())


def test_a_step_faster_than_its_arithmetic_is_refused() -> None:
    wide = CONFIG.model_copy(update={"arms": (CONFIG.arms[0], CONFIG.arms[1].model_copy(update={"verify_tokens": 32}))})
    with pytest.raises(InputError, match=r"eagle3-k2 batch 32 context 1012: step_ms: .* the roofline"):
        assemble(wide, sweep(), base())


def prefill(arm: str, tokens: int, ms: float, j: float, *, alone: bool = False) -> PrefillCell:
    return PrefillCell(
        arm=arm, prompt_tokens=tokens, alone=alone, prompts_at_once=1, prompts=100, ms=ms, j=j, energy=metered(640.0),
        origin=ORIGIN,
    )  # fmt: skip


def test_a_draft_makes_prefill_dearer_by_one_ratio_and_a_pass_has_its_own_floor() -> None:
    added = [
        prefill("eagle3-k2", 512, 1.1 * 12.8, 1.2 * 8.192),
        prefill("eagle3-k2", 128, 18.0, 8.0, alone=True),
        prefill("none", 128, 14.0, 6.0, alone=True),
        prefill("none", 128, 15.0, 7.0, alone=True),
    ]
    profile, _ = assemble(CONFIG, [*sweep(), *added], base())
    drafting, plain = profile.arms["eagle3-k2"], profile.arms["none"]
    assert plain.prefill is None
    assert [(point.prompt_tokens, point.ms) for point in profile.prefill] == [(512, 12.8), (2048, 51.2)]
    assert drafting.prefill is not None and drafting.prefill_pass is not None and plain.prefill_pass is not None
    assert [point.ms for point in drafting.prefill] == pytest.approx([1.1 * 12.8, 1.1 * 51.2])
    assert [point.j for point in drafting.prefill] == pytest.approx([1.2 * 8.192, 1.2 * 32.768])
    assert profile.provenance[drafting.prefill[0].provenance].kind == "derived"
    assert (plain.prefill_pass.ms, plain.prefill_pass.j, plain.prefill_pass.repeats) == (14.5, 6.5, 2)
    assert profile.provenance[plain.prefill_pass.provenance].kind == "measured"
    assert profile.cost("eagle3-k2").prefill.cost(128) == (18.0, 8.0)
    assert profile.cost("eagle3-k2").prefill.cost(2048)[0] == pytest.approx(1.1 * 51.2)
    assert profile.cost("none").prefill.cost(128) == (14.5, 6.5)


def test_prefill_of_an_arm_that_was_not_measured_again_stays() -> None:
    arms = {name: arm.model_dump() for name, arm in base().arms.items()}
    arms["eagle3-k2"]["prefill"] = [{"prompt_tokens": 1000, "ms": 33, "j": 22, "provenance": "old"}]
    arms["eagle3-k2"]["prefill_pass"] = {
        "prompt_tokens": 128, "ms": 17, "j": 8, "provenance": "old", "resume_ms": 5, "resume_provenance": "paper",
    }  # fmt: skip
    profile, _ = assemble(CONFIG, sweep(), base(arms=arms))
    arm = profile.arms["eagle3-k2"]
    assert arm.prefill is not None and arm.prefill[0].ms == 33
    assert arm.prefill_pass is not None and arm.prefill_pass.resume_ms == 5
    again, _ = assemble(CONFIG, [*sweep(), prefill("eagle3-k2", 128, 18.0, 8.0, alone=True)], base(arms=arms))
    renewed = again.arms["eagle3-k2"].prefill_pass
    assert renewed is not None and (renewed.ms, renewed.resume_ms, renewed.resume_provenance) == (18.0, 5, "paper")


def test_the_time_to_resume_is_the_stall_less_the_pass_alone() -> None:
    def interrupted(arm: str, stall_ms: float, tokens: int = 128) -> InterruptionCell:
        return InterruptionCell(
            arm=arm, running=7, prompt_tokens=tokens, prompts=50, stall_ms=stall_ms, step_ms=5.8, window_s=5.2,
            origin=ORIGIN,
        )  # fmt: skip

    added = [
        prefill("eagle3-k2", 128, 18.0, 8.0, alone=True),
        prefill("none", 128, 14.0, 6.0, alone=True),
        interrupted("eagle3-k2", 22.0),
        interrupted("eagle3-k2", 23.0),
        interrupted("none", 13.0),
    ]
    profile, _ = assemble(CONFIG, [*sweep(), *added], base())
    drafting, plain = (profile.arms[name].prefill_pass for name in ("eagle3-k2", "none"))
    assert drafting is not None and drafting.resume_ms == 4.5
    source = profile.provenance[str(drafting.resume_provenance)]
    assert source.kind == "measured" and "22.50 ms (100 prompts)" in str(source.note)
    assert plain is not None and plain.resume_ms == 0.0 and plain.resume_provenance is not None
    other = [prefill("none", 128, 14.0, 6.0, alone=True), interrupted("none", 30.0, tokens=512)]
    untold = assemble(CONFIG, [*sweep(), *other], base())[0].arms["none"].prefill_pass
    assert untold is not None and untold.resume_provenance is None


def test_passes_of_several_lengths_are_told_and_the_time_to_resume_is_their_mean() -> None:
    def interrupted(stall_ms: float, tokens: int) -> InterruptionCell:
        return InterruptionCell(
            arm="eagle3-k2", running=15, prompt_tokens=tokens, prompts=50, stall_ms=stall_ms, step_ms=5.8,
            window_s=5.2, origin=ORIGIN,
        )  # fmt: skip

    added = [
        prefill("eagle3-k2", 900, 30.0, 18.0, alone=True),
        prefill("eagle3-k2", 128, 18.0, 8.0, alone=True),
        prefill("eagle3-k2", 900, 32.0, 20.0, alone=True),
        interrupted(33.0, 900),
        interrupted(22.0, 128),
        interrupted(90.0, 2_000),
    ]
    profile, _ = assemble(CONFIG, [*sweep(), *added], base())
    least = profile.arms["eagle3-k2"].prefill_pass
    assert least is not None and (least.prompt_tokens, least.ms) == (128, 18.0)
    assert [one.model_dump() for one in least.longer or ()] == [
        {"prompt_tokens": 900, "ms": 31.0, "j": 19.0, "repeats": 2}
    ]
    assert least.resume_ms == 3.0, "of 2 and 4 ms; without a pass alone, the longest says nothing"
    note = str(profile.provenance[str(least.resume_provenance)].note)
    assert "128 or 900 tokens" in note and "22.00 or 33.00 ms (100 prompts)" in note


@pytest.mark.parametrize(
    "choosing",
    [{"flags": ("--draft", "{draft}", "--speculative-adaptive")}, {"env": {"SGLANG_RAGGED_VERIFY_MODE": "compact"}}],
)
def test_an_arm_whose_engine_chooses_how_much_it_verifies_is_held_against_one_token(choosing: dict[str, Any]) -> None:
    arm = CONFIG.arms[1].model_copy(update={"verify_tokens": 32, **choosing})
    config = CONFIG.model_copy(update={"arms": (CONFIG.arms[0], arm)})
    _, report = assemble(config, sweep(), base())
    plain = report["arms"]["none"]["achieved_frac"]["64x512"]
    assert report["arms"]["eagle3-k2"]["achieved_frac"]["64x512"] == pytest.approx(plain / 1.2, rel=1e-3)


def test_a_step_cheaper_than_idling_is_refused() -> None:
    with pytest.raises(InputError, match=r"step_j: is 0\.700, below the 0\.800 J that an idle board takes"):
        assemble(CONFIG, edited(with_cost(10.0, 0.7)), base())


def test_a_prefill_faster_than_its_arithmetic_is_refused() -> None:
    cells = [cell.model_copy(update={"ms": 1.0}) if isinstance(cell, PrefillCell) else cell for cell in sweep()]
    with pytest.raises(InputError, match="prefill of 512 tokens: ms"):
        assemble(CONFIG, cells, base())


def test_a_profile_of_another_target_is_no_base() -> None:
    target = base().target.model_dump() | {"name": "Other"}
    with pytest.raises(InputError, match="profiles 'Other', the sweep is of 'M'"):
        assemble(CONFIG, sweep(), base(target=target))


def test_a_first_profile_needs_no_older_one_but_the_sizes_of_its_target() -> None:
    size = ModelSize(parameters=8e9, non_embedding_parameters=7e9, active_parameters=7e9, kv_bytes_per_token=100_000.0)
    profile, _ = assemble(CONFIG, sweep(), None, size)
    assert profile.target.kv_bytes_per_token == 100_000.0
    assert profile.provenance[profile.target.provenance].kind == "derived"
    assert (profile.gpu.count, profile.gpu.power_limit_w) == (1, 700.0)
    assert profile.arms["eagle3-k2"].acceptance == {}
    assert (profile.arms["none"].cannot_serve, profile.arms["eagle3-k2"].cannot_serve) == ((), ("penalties",))
    with pytest.raises(InputError, match="knows no sizes of the target"):
        assemble(CONFIG, sweep(), None)
    for kind, message in ((IdleCell, "lacks idle power"), (PrefillCell, "no prefill cell")):
        with pytest.raises(InputError, match=message):
            assemble(CONFIG, [cell for cell in sweep() if not isinstance(cell, kind)], None, size)


def test_without_the_baseline_there_is_no_profile() -> None:
    cells = [cell for cell in sweep() if not isinstance(cell, DecodeCell) or cell.arm != "none"]
    with pytest.raises(InputError, match="no decode cell of 'none'"):
        assemble(CONFIG, cells, base())


def test_time_alone_makes_no_profile() -> None:
    cells = [
        cell.model_copy(
            update={"repeats": tuple(repeat.model_copy(update={"step_j": None}) for repeat in cell.repeats)}
        )
        if isinstance(cell, DecodeCell)
        else cell
        for cell in sweep()
    ]
    with pytest.raises(InputError, match="no decode cell of 'none'"):
        assemble(CONFIG, cells, base())


def point(batch: int, context: float, ms: float, j: float = 1.0) -> StepPoint:
    return StepPoint(batch=batch, context_tokens=context, step_ms=ms, step_j=j)


def test_a_cell_cheaper_than_a_smaller_one_is_out_of_order() -> None:
    found = out_of_order([(1, 512, point(1, 700, 5.0)), (8, 512, point(8, 700, 4.8)), (8, 2048, point(8, 2200, 4.75))])
    assert found == ["step_ms falls from 5.000 (batch 1, prompt 512) to 4.800 (batch 8, prompt 512)"]


def test_leave_one_out_finds_the_cell_that_does_not_fit() -> None:
    grid = [point(batch, context, 5.0 + 0.1 * batch, 2.0) for batch in (1, 8, 16, 32) for context in (500, 1000, 2000)]
    assert max(abs(error.ms_error_frac) for error in leave_one_out(grid, None)) < 1e-6
    assert sum(error.inside for error in leave_one_out(grid, None)) == 4
    grid[4] = point(8, 1000, 5.8 * 1.1, 2.0)
    inside = [error for error in leave_one_out(grid, None) if error.inside]
    worst = max(inside, key=lambda error: abs(error.ms_error_frac))
    assert (worst.batch, worst.context_tokens) == (8, 1000)
    assert worst.ms_error_frac == pytest.approx(1 / 1.1 - 1, rel=1e-3)


def test_the_roofline_turns_from_memory_to_arithmetic() -> None:
    size = ModelSize(parameters=2e6, non_embedding_parameters=1e6, active_parameters=1e6, kv_bytes_per_token=0.0)
    ceiling = Ceiling(flop_per_s=1e12, bytes_per_s=1e10, size=size)
    assert ceiling.step_floor_ms(1, 0, 1) == pytest.approx(2e6 / 1e10 * 1e3)
    assert ceiling.step_floor_ms(1000, 0, 1) == pytest.approx(2e6 * 1000 / 1e12 * 1e3)
    assert ceiling.prefill_floor_ms(1000) == pytest.approx(2e6 * 1000 / 1e12 * 1e3)
