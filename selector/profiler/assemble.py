"""A profile of what a sweep measured: costs from its cells, acceptance and the target's sizes from an older profile."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from selector.core.cost import ContextSlope, StepPoint
from selector.errors import InputError
from selector.files.profile import (
    NO_DRAFTER,
    Arm,
    Gpu,
    Idle,
    Launch,
    PrefillPoint,
    Profile,
    Provenance,
    StepCell,
)
from selector.profiler.cells import Cell, DecodeCell, DecodeRepeat, FailedStep, IdleCell, Origin, Pass, PrefillCell
from selector.profiler.checks import Ceiling, leave_one_out, out_of_order, spread_frac, summary
from selector.profiler.config import Method, SweepArm, SweepConfig

_IMPOSSIBLE = "remove that line from cells.jsonl and measure it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merged:
    """All repeats of one decode cell, from however many lines."""

    batch: int
    prompt_tokens: int
    repeats: tuple[DecodeRepeat, ...]
    origin: Origin

    def mean(self, name: str) -> float:
        return fmean(getattr(repeat, name) for repeat in self.repeats)

    def metered(self, name: str) -> float | None:
        values = [getattr(repeat.energy, name) for repeat in self.repeats if repeat.energy is not None]
        known = [value for value in values if value is not None]
        return fmean(known) if known else None

    @property
    def point(self) -> StepPoint:
        return StepPoint(
            batch=self.batch,
            context_tokens=self.mean("context_tokens"),
            step_ms=self.mean("step_ms"),
            step_j=self.mean("step_j"),
        )


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
    reports: dict[str, Any] = {}
    for arm in config.arms:
        merged = _merged(cells, arm.name, "main", config.decode.method)
        if merged:
            key = f"sweep-{arm.name}"
            provenance[key] = _provenance(merged[0].origin, f"{config.decode.method} method, closed batches")
            fractions = [_achieved(arm, cell, ceiling, idle.bare_w) for cell in merged]
            arms[arm.name] = _arm(arm, merged, base, key)
            reports[arm.name] = _arm_report(cells, arm, merged, fractions, config, arms[arm.name])
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
    spreads = [value for report in reports.values() for value in report["spread"]]
    errors = [value for report in reports.values() for value in report["leave_one_out"]]
    return profile, {
        "arms": reports,
        "arms_not_measured": [arm.name for arm in config.arms if arm.name not in arms],
        "repeat_spread": {
            "step_ms": summary([spread["step_ms"] for spread in spreads]),
            "step_j": summary([spread["step_j"] for spread in spreads]),
        },
        "leave_one_out": {
            "step_ms": summary([error["ms_error_frac"] for error in errors]),
            "step_j": summary([error["j_error_frac"] for error in errors]),
        },
        "prefill_achieved_frac": {
            str(point.prompt_tokens): round(ceiling.prefill_floor_ms(point.prompt_tokens) / point.ms, 4)
            for point in prefill
        },
        "failed_steps": [f"{cell.step}: {cell.reason}" for cell in cells if isinstance(cell, FailedStep)],
    }


def _merged(cells: Iterable[Cell], arm: str, sweep_pass: Pass, method: Method) -> list[_Merged]:
    lines: dict[tuple[int, int], list[DecodeCell]] = {}
    for cell in cells:
        if (
            isinstance(cell, DecodeCell)
            and (cell.arm, cell.sweep_pass, cell.method) == (arm, sweep_pass, method)
            and all(repeat.step_j is not None for repeat in cell.repeats)
        ):
            lines.setdefault((cell.batch, cell.prompt_tokens), []).append(cell)
    return [
        _Merged(
            batch=batch,
            prompt_tokens=tokens,
            repeats=tuple(repeat for cell in same for repeat in cell.repeats),
            origin=same[0].origin,
        )
        for (batch, tokens), same in sorted(lines.items())
    ]


def _achieved(arm: SweepArm, cell: _Merged, ceiling: Ceiling, idle_w: float) -> float:
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


def _arm(arm: SweepArm, merged: Sequence[_Merged], base: Profile, key: str) -> Arm:
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
                spread_ms_frac=_rounded(spread_frac([repeat.step_ms for repeat in cell.repeats]), 5),
                spread_j_frac=_rounded(spread_frac([repeat.step_j or 0.0 for repeat in cell.repeats]), 5),
                watts=_rounded(cell.metered("watts_mean"), 1),
                sm_mhz=_rounded(cell.metered("sm_mhz_mean"), 0),
                temperature_c=_rounded(cell.metered("temperature_c"), 1),
                power_capped_frac=_rounded(cell.metered("power_capped_frac"), 3),
            )
            for cell in merged
        ),
        acceptance=dict(old.acceptance) if old else {},
    )


def _arm_report(
    cells: Sequence[Cell],
    arm: SweepArm,
    merged: Sequence[_Merged],
    fractions: Sequence[float],
    config: SweepConfig,
    done: Arm,
) -> dict[str, Any]:
    points = [cell.point for cell in merged]
    slope = done.context_slope
    kv = ContextSlope(ms_per_token=slope.ms_per_token, j_per_token=slope.j_per_token) if slope else None
    other: Method = "steady" if config.decode.method == "difference" else "difference"
    return {
        "achieved_frac": {
            f"{cell.batch}x{cell.prompt_tokens}": round(fraction, 4)
            for cell, fraction in zip(merged, fractions, strict=True)
        },
        "accept_length": round(fmean(cell.mean("accept_length") for cell in merged), 4),
        "out_of_order": out_of_order((cell.batch, cell.prompt_tokens, cell.point) for cell in merged),
        "spread": [
            {
                "batch": cell.batch,
                "prompt_tokens": cell.prompt_tokens,
                "step_ms": spread_frac([repeat.step_ms for repeat in cell.repeats]),
                "step_j": spread_frac([repeat.step_j or 0.0 for repeat in cell.repeats]),
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
            }
            for error in leave_one_out(points, kv)
        ],
        "drift": _against(merged, _merged(cells, arm.name, "drift", config.decode.method)),
        f"{other}_method": _against(merged, _merged(cells, arm.name, "main", other)),
        "flags": sorted({flag for cell in merged for repeat in cell.repeats for flag in _flags(repeat)}),
    }


def _against(merged: Sequence[_Merged], others: Sequence[_Merged]) -> list[dict[str, Any]]:
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


def _idle(cells: Iterable[Cell], base: Profile, provenance: dict[str, Provenance]) -> Idle:
    measured = [cell for cell in cells if isinstance(cell, IdleCell)]
    bare = [cell for cell in measured if cell.arm is None]
    resident = [cell for cell in measured if cell.arm is not None]
    if not bare or not resident:
        return base.idle
    provenance["sweep-idle"] = _provenance(resident[-1].origin, "mean power, bare and with that server up, no requests")
    bare_w = fmean(cell.energy.watts_mean for cell in bare)
    resident_w = fmean(cell.energy.watts_mean for cell in resident)
    return Idle(
        bare_w=round(bare_w, 2), per_server_w=round(max(resident_w - bare_w, 0.0), 2), provenance="sweep-idle"
    )


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


def _flags(repeat: DecodeRepeat) -> tuple[str, ...]:
    return repeat.energy.flags if repeat.energy else ()


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
