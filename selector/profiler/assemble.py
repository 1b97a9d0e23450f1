"""A profile of what a sweep of step costs measured. Accept lengths are joined to it by `joinacceptance`.

What a sweep cannot know comes from an older profile of the target, the base: arm limits, drafts, accept lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from selector.errors import InputError
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
from selector.profiler.cells import Cell, IdleCell, PrefillCell
from selector.profiler.checks import Ceiling, spread_frac
from selector.profiler.config import SweepArm, SweepConfig
from selector.profiler.merge import MergedCell, merged_cells
from selector.profiler.modelsize import ModelSize
from selector.profiler.provenance import measured_provenance, pruned
from selector.profiler.report import sweep_report

_IMPOSSIBLE = "remove that line from cells.jsonl and measure it again"


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
    ceiling = ceiling_of(config, target, size)
    idle = _idle(cells, base, provenance)
    prefill = _prefill(cells, base, provenance, ceiling)
    arms: dict[str, Arm] = {}
    fractions: dict[str, list[float]] = {}
    for arm in config.arms:
        merged = merged_cells(cells, arm.name, "main", config.decode.method)
        if merged:
            key = f"sweep-{arm.name}"
            provenance[key] = measured_provenance(merged[0].origin, f"{config.decode.method} method, closed batches")
            fractions[arm.name] = [_achieved(arm, cell, ceiling, idle.bare_w) for cell in merged]
            live_setting = _live_setting(arm, cells, config, ceiling, idle.bare_w, key)
            arms[arm.name] = _arm(arm, merged, base.arms.get(arm.name) if base else None, key, live_setting)
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
    return pruned(profile), sweep_report(cells, config, profile, ceiling, fractions)


def ceiling_of(config: SweepConfig, target: Target, size: ModelSize | None) -> Ceiling:
    """The roofline of a sweep's GPU and target."""
    known = size or ModelSize(
        parameters=target.parameters,
        non_embedding_parameters=target.non_embedding_parameters,
        active_parameters=target.non_embedding_parameters,
        kv_bytes_per_token=target.kv_bytes_per_token,
    )
    if config.target.active_parameters is not None:
        known = replace(known, active_parameters=config.target.active_parameters)
    return Ceiling(flop_per_s=config.gpu.peak_tflops * 1e12, bytes_per_s=config.gpu.bandwidth_tb_s * 1e12, size=known)


def _target(
    config: SweepConfig, base: Profile | None, size: ModelSize | None, provenance: dict[str, Provenance]
) -> Target:
    if base is not None:
        return base.target
    if size is None:
        raise InputError(
            "profile --assemble", "knows no sizes of the target", "give --base, or --models with its config"
        )
    provenance["config"] = Provenance(
        kind="derived", source=f"{config.target.model}/config.json: see selector/profiler/modelsize.py"
    )
    return Target(
        name=config.target.name,
        parameters=size.parameters,
        non_embedding_parameters=size.non_embedding_parameters,
        kv_bytes_per_token=size.kv_bytes_per_token,
        provenance="config",
    )


def _gpu(config: SweepConfig, cells: Iterable[Cell], base: Profile | None) -> Gpu:
    limits = [cell.origin.power_limit_w for cell in cells if cell.origin.power_limit_w is not None]
    if not limits and base is None:
        raise InputError("cells.jsonl", "names no power limit: energy was not measured", "measure with gpu.indices")
    return Gpu(
        name=config.gpu.name,
        count=len(config.gpu.indices) or (base.gpu.count if base else 1),
        power_limit_w=limits[0] if limits or base is None else base.gpu.power_limit_w,
        provenance=f"sweep-{NO_DRAFTER}" if limits or base is None else base.gpu.provenance,
    )


def _live_setting(
    arm: SweepArm, cells: Sequence[Cell], config: SweepConfig, ceiling: Ceiling, idle_w: float, key: str
) -> LiveSetting | None:
    """What was measured at other values than the launched one; `None` for nothing. Accept lengths are joined later."""
    if arm.live_setting is None:
        return None
    others = []
    for value in arm.live_setting.others:
        merged = merged_cells(cells, arm.name, "main", config.decode.method, value)
        for cell in merged:
            _achieved(arm, cell, ceiling, idle_w, value)
        if merged:
            others.append(SettingValue(value=value, cells=_step_cells(arm, merged, key)))
    setting = arm.live_setting
    return LiveSetting(name=setting.name, launched=setting.launched, others=tuple(others)) if others else None


def _achieved(arm: SweepArm, cell: MergedCell, ceiling: Ceiling, idle_w: float, setting: float | None = None) -> float:
    point = cell.point
    # How much is verified at other settings is the engine's affair: a token a request at least.
    verified = arm.verify_tokens if setting is None else 1
    fraction = ceiling.step_floor_ms(cell.batch, point.context_tokens, verified) / point.step_ms
    at = "" if setting is None else f"@{setting:g}"
    place = f"cells.jsonl: {arm.name}{at} batch {cell.batch} prompt {cell.prompt_tokens}"
    if fraction > 1:
        raise InputError(f"{place}: step_ms", f"is {point.step_ms:.3f}, {fraction:.2f} × the roofline", _IMPOSSIBLE)
    least_j = idle_w * point.step_ms / 1e3
    if point.step_j < least_j:
        raise InputError(
            f"{place}: step_j", f"is {point.step_j:.3f}, idling takes {least_j:.3f} J in that time", _IMPOSSIBLE
        )
    return fraction


def _arm(
    arm: SweepArm, merged: Sequence[MergedCell], old: Arm | None, key: str, live_setting: LiveSetting | None
) -> Arm:
    return Arm(
        algorithm=arm.algorithm,
        verify_tokens=arm.verify_tokens,
        draft_steps=arm.draft_steps,
        topk=arm.topk,
        max_context_tokens=old.max_context_tokens if old else None,
        cannot_serve=old.cannot_serve if old else (),
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


def _idle(cells: Iterable[Cell], base: Profile | None, provenance: dict[str, Provenance]) -> Idle:
    measured = [cell for cell in cells if isinstance(cell, IdleCell)]
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
    cells: Iterable[Cell], base: Profile | None, provenance: dict[str, Provenance], ceiling: Ceiling
) -> tuple[PrefillPoint, ...]:
    by_length: dict[int, list[PrefillCell]] = {}
    for cell in cells:
        if isinstance(cell, PrefillCell) and cell.j is not None:
            by_length.setdefault(cell.prompt_tokens, []).append(cell)
    if not by_length:
        if base is None:
            raise InputError("cells.jsonl", "has no prefill cell with energy", "run the sweep on, or give --base")
        return base.prefill
    points = []
    for tokens, same in sorted(by_length.items()):
        ms = fmean(cell.ms for cell in same)
        floor_ms = ceiling.prefill_floor_ms(tokens)
        if floor_ms > ms:
            raise InputError(
                f"cells.jsonl: prefill of {tokens} tokens: ms",
                f"is {ms:.3f}, {floor_ms / ms:.2f} × the roofline",
                _IMPOSSIBLE,
            )
        points.append(
            PrefillPoint(
                prompt_tokens=tokens,
                ms=round(ms, 4),
                j=round(fmean(cell.j for cell in same if cell.j is not None), 5),
                provenance="sweep-prefill",
                repeats=len(same),
                spread_frac=_rounded(spread_frac([cell.ms for cell in same]), 5),
            )
        )
    first = next(iter(by_length.values()))[0]
    provenance["sweep-prefill"] = measured_provenance(
        first.origin, "prompts answered with one token, back to back, short ones several at a time, no prefix cache"
    )
    return tuple(points)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
