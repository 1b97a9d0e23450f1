"""A profile of what a sweep of step costs measured. Accept lengths are joined to it by `joinacceptance`.

What a sweep cannot know comes from an older profile of the target, the base: arm limits, drafts, accept lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from selector.errors import InputError
from selector.files.capabilities import known_limits
from selector.files.profile import (
    NO_DRAFTER,
    Arm,
    Gpu,
    Idle,
    Launch,
    LiveSetting,
    PrefillPoint,
    Profile,
    Provenance,
    SettingValue,
    StepCell,
    Target,
)
from selector.profiler.cells import Cell, IdleCell
from selector.profiler.config import SweepArm, SweepConfig
from selector.profiler.merge import MergedCell, merged_cells
from selector.profiler.modelsize import ModelSize
from selector.profiler.prefillpoints import lone_pass, prefill_points, resumption, scaled_points
from selector.profiler.provenance import measured_provenance, pruned
from selector.profiler.report import sweep_report
from selector.profiler.roofline import ceiling_of, refuse_impossible


def assemble(
    config: SweepConfig, cells: Sequence[Cell], base: Profile | None, size: ModelSize | None = None
) -> tuple[Profile, dict[str, Any]]:
    """The profile of a sweep of step costs, and a report of its checks as plain JSON.

    `size` is the target's by its `config.json`; without it the base's sizes are taken. One of the two is needed, and
    without a base idle power and prefill must have been measured.

    Raises `InputError` when `base` is of another target, something needed was not measured, or a cell is impossible.
    """
    if base is not None and base.target.name != config.target.name:
        raise InputError(
            "--base", f"profiles {base.target.name!r}, the sweep is of {config.target.name!r}", "name a profile of it"
        )
    provenance = dict(base.provenance) if base else {}
    target = _target(config, base, size, provenance)
    idle = _idle(cells, base, provenance)
    prefill = _prefill(cells, base, provenance)
    arms: dict[str, Arm] = {}
    for arm in config.profiled_arms:
        merged = merged_cells(cells, arm.name, "main", config.decode.method)
        if merged:
            key = f"sweep-{arm.name}"
            provenance[key] = measured_provenance(merged[0].origin, f"{config.decode.method} method, closed batches")
            old = base.arms.get(arm.name) if base else None
            arms[arm.name] = _arm(arm, merged, old, key, _live_setting(arm, cells, config, key)).model_copy(
                update=_own_prefill(cells, arm.name, prefill, old, provenance)
            )
    if NO_DRAFTER not in arms:
        raise InputError("cells.jsonl", f"has no decode cell of {NO_DRAFTER!r}", "run the sweep on until it has")
    profile = Profile(
        format="drafter-selector/profile",
        version=1,
        target=target,
        gpu=_gpu(config, cells, base),
        idle=idle,
        prefill=prefill,
        common_flags=("--context-length", str(config.server.context_length), *config.server.flags),
        arms=arms,
        provenance=provenance,
    )
    ceiling = ceiling_of(profile)
    assert ceiling is not None, "a sweep file states the GPU's ceilings"
    refuse_impossible(ceiling, profile)
    return pruned(profile), sweep_report(cells, config, profile, ceiling)


def _target(
    config: SweepConfig, base: Profile | None, size: ModelSize | None, provenance: dict[str, Provenance]
) -> Target:
    if base is None and size is None:
        raise InputError(
            "profile --assemble", "knows no sizes of the target", "give --base, or --models with its config"
        )
    stated = config.target.active_parameters
    roofline: dict[str, Any] = {} if stated is None else {"active_parameters": stated}
    if size is not None:
        sliding = size.sliding_window > 0
        roofline = {
            "active_parameters": size.active_parameters if size.is_sparse else None,
            "sliding_kv_bytes_per_token": size.sliding_kv_bytes_per_token if sliding else None,
            "sliding_window": size.sliding_window if sliding else None,
            **roofline,
        }
    if base is not None:
        return base.target.model_copy(update=roofline)
    assert size is not None
    provenance["config"] = Provenance(
        kind="derived", source=f"{config.target.model}/config.json: see selector/profiler/modelsize.py"
    )
    return Target(
        name=config.target.name,
        parameters=size.parameters,
        non_embedding_parameters=size.non_embedding_parameters,
        kv_bytes_per_token=size.kv_bytes_per_token,
        provenance="config",
        **roofline,
    )


def _gpu(config: SweepConfig, cells: Iterable[Cell], base: Profile | None) -> Gpu:
    limits = [cell.origin.power_limit_w for cell in cells if cell.origin.power_limit_w is not None]
    if not limits and base is None:
        raise InputError("cells.jsonl", "names no power limit: energy was not measured", "measure with gpu.indices")
    return Gpu(
        name=config.gpu.name,
        count=len(config.gpu.indices) or (base.gpu.count if base else 1),
        peak_tflops=config.gpu.peak_tflops,
        bandwidth_tb_s=config.gpu.bandwidth_tb_s,
        power_limit_w=limits[0] if limits or base is None else base.gpu.power_limit_w,
        provenance=f"sweep-{NO_DRAFTER}" if limits or base is None else base.gpu.provenance,
    )


def _live_setting(arm: SweepArm, cells: Sequence[Cell], config: SweepConfig, key: str) -> LiveSetting | None:
    """What was measured at other values than the launched one; `None` for nothing. Accept lengths are joined later."""
    if arm.live_setting is None:
        return None
    others = []
    for value in arm.live_setting.others:
        merged = merged_cells(cells, arm.name, "main", config.decode.method, value)
        if merged:
            others.append(SettingValue(value=value, cells=_step_cells(arm, merged, key)))
    setting = arm.live_setting
    return LiveSetting(name=setting.name, launched=setting.launched, others=tuple(others)) if others else None


def _arm(
    arm: SweepArm, merged: Sequence[MergedCell], old: Arm | None, key: str, live_setting: LiveSetting | None
) -> Arm:
    return Arm(
        algorithm=arm.algorithm,
        verify_tokens=arm.verify_tokens,
        draft_steps=arm.draft_steps,
        topk=arm.topk,
        max_context_tokens=arm.max_context_tokens or (old.max_context_tokens if old else None),
        cannot_serve=old.cannot_serve if old else known_limits(arm.algorithm),
        launch=Launch(
            flags=arm.flags,
            env=arm.env,
            draft_model=(old.launch.draft_model if old else None) or arm.draft,
        ),
        context_slope=old.context_slope if old else None,
        cells=_step_cells(arm, merged, key),
        acceptance=dict(old.acceptance) if old else {},
        live_setting=live_setting,
    )


def _step_cells(arm: SweepArm, merged: Sequence[MergedCell], key: str) -> tuple[StepCell, ...]:
    return tuple(
        StepCell(
            batch=cell.batch,
            context_tokens=round(cell.point.context_tokens, 1),
            step_ms=round(cell.point.step_ms, 5),
            step_j=round(cell.point.step_j, 6),
            provenance=key,
            imposed_accept_length=arm.imposed_accept_length,
            window_s=round(sum(repeat.window_s for repeat in cell.repeats), 3),
            repeats=len(cell.repeats),
            spread_ms_frac=_rounded(cell.spread("step_ms"), 5),
            spread_j_frac=_rounded(cell.spread("step_j"), 5),
            watts=_rounded(cell.metered("watts_mean"), 1),
            sm_mhz=_rounded(cell.metered("sm_mhz_mean"), 0),
            temperature_c=_rounded(cell.metered("temperature_c"), 1),
            power_capped_frac=_rounded(cell.metered("power_capped_frac"), 3),
        )
        for cell in merged
    )


def _own_prefill(
    cells: Sequence[Cell],
    name: str,
    plain: Sequence[PrefillPoint],
    old: Arm | None,
    provenance: dict[str, Provenance],
) -> dict[str, Any]:
    """Fields of an arm; the points of `none` are the profile's, so it has none of its own."""
    before = old.prefill_pass if old else None
    points = None if name == NO_DRAFTER else scaled_points(cells, name, plain, f"sweep-prefill-{name}", provenance)
    alone = lone_pass(cells, name, f"sweep-pass-{name}", provenance)
    if alone and before:
        alone = alone.model_copy(update={"resume_ms": before.resume_ms, "resume_provenance": before.resume_provenance})
    least = alone or before
    if least is not None:
        least = least.model_copy(update=resumption(cells, name, least, f"sweep-resume-{name}", provenance))
    return {"prefill": points or (old.prefill if old else None), "prefill_pass": least}


def _idle(cells: Iterable[Cell], base: Profile | None, provenance: dict[str, Provenance]) -> Idle:
    measured = [cell for cell in cells if isinstance(cell, IdleCell) and cell.sweep_pass == "main"]
    bare = [cell for cell in measured if cell.arm is None]
    resident = [cell for cell in measured if cell.arm is not None]
    if not bare or not resident:
        if base is None:
            raise InputError(
                "cells.jsonl", "lacks idle power, bare or with a server", "run the sweep on, or give --base"
            )
        return base.idle
    provenance["sweep-idle"] = measured_provenance(
        resident[-1].origin, "mean power, bare and with that server up, no requests"
    )
    bare_w = fmean(cell.energy.watts_mean for cell in bare)
    resident_w = fmean(cell.energy.watts_mean for cell in resident)
    return Idle(bare_w=round(bare_w, 2), served_w=round(max(resident_w, bare_w), 2), provenance="sweep-idle")


def _prefill(
    cells: Sequence[Cell], base: Profile | None, provenance: dict[str, Provenance]
) -> tuple[PrefillPoint, ...]:
    points = prefill_points(cells, NO_DRAFTER, "sweep-prefill", provenance)
    if points is not None:
        return points
    if base is None:
        problem = f"has no prefill cell of {NO_DRAFTER!r} with energy"
        raise InputError("cells.jsonl", problem, "run the sweep on, or give --base")
    return base.prefill


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
