"""The numbers that say how far a sweep can be trusted, as plain JSON."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from selector.files.profile import Profile
from selector.profiler.cells import Cell, FailedStep, IdleCell
from selector.profiler.checks import leave_one_out, out_of_order, summary
from selector.profiler.config import Method, SweepArm, SweepConfig
from selector.profiler.merge import MergedCell, merged_cells
from selector.profiler.roofline import Ceiling, least_verified


def sweep_report(cells: Sequence[Cell], config: SweepConfig, profile: Profile, ceiling: Ceiling) -> dict[str, Any]:
    """Per arm and over all: repeat spread, leave-one-out error, order, roofline, drift, one method against another,
    live settings against the launched one."""
    arms = {
        arm.name: _arm_report(cells, arm, config, profile, ceiling) for arm in config.arms if arm.name in profile.arms
    }
    spreads = [spread for report in arms.values() for spread in report["spread"]]
    errors = [error for report in arms.values() for error in report["leave_one_out"]]
    return {
        "arms": arms,
        "arms_not_measured": [arm.name for arm in config.profiled_arms if arm.name not in profile.arms],
        "arms_left_out": {arm.name: arm.left_out for arm in config.arms if arm.left_out is not None},
        "repeat_spread": {name: summary([spread[name] for spread in spreads]) for name in ("step_ms", "step_j")},
        "leave_one_out": {
            f"{name}{where}": summary([error[f"{name.removeprefix('step_')}_error_frac"] for error in some])
            for where, some in (("", [error for error in errors if error["inside"]]), ("_batch_range", errors))
            for name in ("step_ms", "step_j")
        },
        "idle_drift_frac": idle_drift_frac(cells),
        "prefill_achieved_frac": {
            str(point.prompt_tokens): round(ceiling.prefill_floor_ms(point.prompt_tokens) / point.ms, 4)
            for point in profile.prefill
        },
        "failed_steps": [f"{cell.step}: {cell.reason}" for cell in cells if isinstance(cell, FailedStep)],
    }


def _arm_report(
    cells: Sequence[Cell], arm: SweepArm, config: SweepConfig, profile: Profile, ceiling: Ceiling
) -> dict[str, Any]:
    method = config.decode.method
    merged = merged_cells(cells, arm.name, "main", method)
    width = least_verified(profile.arms[arm.name])
    floors_ms = [ceiling.step_floor_ms(cell.batch, cell.point.context_tokens, width) for cell in merged]
    other: Method = "steady" if method == "difference" else "difference"
    return {
        "achieved_frac": {
            f"{cell.batch}x{cell.prompt_tokens}": round(floor_ms / cell.point.step_ms, 4)
            for cell, floor_ms in zip(merged, floors_ms, strict=True)
        },
        "energy_floor_frac": {
            f"{cell.batch}x{cell.prompt_tokens}": round(profile.idle.bare_w * floor_ms / 1e3 / cell.point.step_j, 4)
            for cell, floor_ms in zip(merged, floors_ms, strict=True)
        },
        "accept_length": round(fmean(cell.mean("accept_length") for cell in merged), 4),
        "out_of_order": out_of_order((cell.batch, cell.prompt_tokens, cell.point) for cell in merged),
        "spread": [
            {
                "batch": cell.batch,
                "prompt_tokens": cell.prompt_tokens,
                "step_ms": cell.spread("step_ms"),
                "step_j": cell.spread("step_j"),
            }
            for cell in merged
            if len(cell.repeats) > 1
        ],
        "leave_one_out": [
            {
                "batch": error.batch,
                "context_tokens": round(error.context_tokens),
                "ms_error_frac": round(error.ms_error_frac, 5),
                "j_error_frac": round(error.j_error_frac, 5),
                "inside": error.inside,
            }
            for error in leave_one_out([cell.point for cell in merged], profile.arms[arm.name].points()[1])
        ],
        "settings": {
            f"{setting:g}": against(merged, merged_cells(cells, arm.name, "main", method, setting))
            for setting in (arm.live_setting.others if arm.live_setting else ())
        },
        "drift": against(merged, merged_cells(cells, arm.name, "drift", method)),
        f"{other}_method": against(merged, merged_cells(cells, arm.name, "main", other)),
        "flags": sorted({flag for cell in merged for flag in cell.flags}),
    }


def idle_drift_frac(cells: Sequence[Cell]) -> float | None:
    """Power of the bare board after the sweep over that before it, less 1; `None` where one of them is missing."""
    bare = [cell for cell in cells if isinstance(cell, IdleCell) and cell.arm is None]
    before, after = (
        [cell.energy.watts_mean for cell in bare if cell.sweep_pass == sweep_pass] for sweep_pass in ("main", "drift")
    )
    return round(fmean(after) / fmean(before) - 1, 5) if before and after else None


def against(merged: Sequence[MergedCell], others: Sequence[MergedCell]) -> list[dict[str, Any]]:
    """The same cells measured otherwise, relative to these."""
    by_shape = {(cell.batch, cell.prompt_tokens): cell.point for cell in merged}
    return [
        {
            "batch": cell.batch,
            "prompt_tokens": cell.prompt_tokens,
            "ms_frac": round(cell.point.step_ms / same.step_ms - 1, 5),
            "j_frac": round(cell.point.step_j / same.step_j - 1, 5),
        }
        for cell in others
        if (same := by_shape.get((cell.batch, cell.prompt_tokens))) is not None
    ]
