"""A profile of what a sweep measured: costs from its cells, acceptance and the target's sizes from an older profile."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from selector.errors import InputError
from selector.files.profile import NO_DRAFTER, Arm, Gpu, Idle, Launch, PrefillPoint, Profile, Provenance, StepCell
from selector.profiler.cells import Cell, IdleCell, Origin, PrefillCell
from selector.profiler.checks import Ceiling, spread_frac
from selector.profiler.config import SweepArm, SweepConfig
from selector.profiler.merge import MergedCell, merged_cells
from selector.profiler.report import sweep_report

_IMPOSSIBLE = "remove that line from cells.jsonl and measure it again"


def assemble(config: SweepConfig, cells: Sequence[Cell], base: Profile) -> tuple[Profile, dict[str, Any]]:
    """The profile, and a report of its checks as plain JSON.

    Raises `InputError` when `base` is of another target, `none` or energy was not measured, or a cell is impossible.
    """
    if base.target.name != config.target.name:
        raise InputError(
            "--base", f"profiles {base.target.name!r}, the sweep is of {config.target.name!r}", "name a profile of it"
        )
    ceiling = Ceiling(
        flop_per_s=config.gpu.peak_tflops * 1e12,
        bytes_per_s=config.gpu.bandwidth_tb_s * 1e12,
        parameters=config.target.active_parameters or base.target.non_embedding_parameters,
        kv_bytes_per_token=base.target.kv_bytes_per_token,
    )
    provenance = dict(base.provenance)
    idle = _idle(cells, base, provenance)
    prefill = _prefill(cells, base, provenance, ceiling)
    arms: dict[str, Arm] = {}
    fractions: dict[str, list[float]] = {}
    for arm in config.arms:
        merged = merged_cells(cells, arm.name, "main", config.decode.method)
        if merged:
            key = f"sweep-{arm.name}"
            provenance[key] = _provenance(merged[0].origin, f"{config.decode.method} method, closed batches")
            fractions[arm.name] = [_achieved(arm, cell, ceiling, idle.bare_w) for cell in merged]
            arms[arm.name] = _arm(arm, merged, base, key)
    if NO_DRAFTER not in arms:
        raise InputError("cells.jsonl", f"has no decode cell of {NO_DRAFTER!r}", "run the sweep on until it has")
    limits = [cell.origin.power_limit_w for cell in cells if cell.origin.power_limit_w is not None]
    profile = Profile(
        format="drafter-selector/profile",
        version=1,
        target=base.target,
        gpu=Gpu(
            name=config.gpu.name,
            count=len(config.gpu.indices) or base.gpu.count,
            power_limit_w=limits[0] if limits else base.gpu.power_limit_w,
            provenance=f"sweep-{NO_DRAFTER}" if limits else base.gpu.provenance,
        ),
        idle=idle,
        prefill=prefill,
        common_flags=("--context-length", str(config.server.context_length), *config.server.flags),
        arms=arms,
        provenance=_used(provenance, base, arms, idle, prefill),
    )
    return profile, sweep_report(cells, config, profile, ceiling, fractions)


def _achieved(arm: SweepArm, cell: MergedCell, ceiling: Ceiling, idle_w: float) -> float:
    point = cell.point
    fraction = ceiling.step_floor_ms(cell.batch, point.context_tokens, arm.verify_tokens) / point.step_ms
    place = f"cells.jsonl: {arm.name} batch {cell.batch} prompt {cell.prompt_tokens}"
    if fraction > 1:
        raise InputError(f"{place}: step_ms", f"is {point.step_ms:.3f}, {fraction:.2f} × the roofline", _IMPOSSIBLE)
    least_j = idle_w * point.step_ms / 1e3
    if point.step_j < least_j:
        raise InputError(
            f"{place}: step_j", f"is {point.step_j:.3f}, idling takes {least_j:.3f} J in that time", _IMPOSSIBLE
        )
    return fraction


def _arm(arm: SweepArm, merged: Sequence[MergedCell], base: Profile, key: str) -> Arm:
    old = base.arms.get(arm.name)
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
        cells=tuple(
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
        ),
        acceptance=dict(old.acceptance) if old else {},
    )


def _idle(cells: Iterable[Cell], base: Profile, provenance: dict[str, Provenance]) -> Idle:
    measured = [cell for cell in cells if isinstance(cell, IdleCell)]
    bare = [cell for cell in measured if cell.arm is None]
    resident = [cell for cell in measured if cell.arm is not None]
    if not bare or not resident:
        return base.idle
    provenance["sweep-idle"] = _provenance(resident[-1].origin, "mean power, bare and with that server up, no requests")
    bare_w = fmean(cell.energy.watts_mean for cell in bare)
    resident_w = fmean(cell.energy.watts_mean for cell in resident)
    return Idle(bare_w=round(bare_w, 2), served_w=round(max(resident_w, bare_w), 2), provenance="sweep-idle")


def _prefill(
    cells: Iterable[Cell], base: Profile, provenance: dict[str, Provenance], ceiling: Ceiling
) -> tuple[PrefillPoint, ...]:
    by_length: dict[int, list[PrefillCell]] = {}
    for cell in cells:
        if isinstance(cell, PrefillCell) and cell.j is not None:
            by_length.setdefault(cell.prompt_tokens, []).append(cell)
    if not by_length:
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
    provenance["sweep-prefill"] = _provenance(
        first.origin, "prompts answered with one token, back to back, short ones several at a time, no prefix cache"
    )
    return tuple(points)


def _provenance(origin: Origin, note: str) -> Provenance:
    command = [*(f"{name}={value}" for name, value in origin.env.items()), *origin.argv]
    return Provenance(
        kind="measured",
        source=shlex.join(command) if origin.argv else (origin.url or "drafter-selector profile"),
        gpu=origin.gpu,
        driver=origin.driver,
        engine=origin.engine,
        weights=origin.weights,
        host=origin.host,
        date=origin.date,
        note=note,
    )


def _used(
    table: dict[str, Provenance],
    base: Profile,
    arms: dict[str, Arm],
    idle: Idle,
    prefill: Sequence[PrefillPoint],
) -> dict[str, Provenance]:
    """Those entries that some number of the profile still names."""
    keys = {base.target.provenance, base.gpu.provenance, idle.provenance, f"sweep-{NO_DRAFTER}"}
    keys |= {point.provenance for point in prefill}
    for arm in arms.values():
        keys |= {cell.provenance for cell in arm.cells}
        keys |= {arm.context_slope.provenance} if arm.context_slope else set()
        for value in arm.acceptance.values():
            keys.add(value.provenance)
            keys |= {value.request_spread_provenance} if value.request_spread_provenance else set()
    return {key: value for key, value in table.items() if key in keys}


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
