"""Turns one step of the plan into a cell."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from selector.errors import InputError, MeterError, UpstreamError
from selector.profiler.acceptance import Sampling, measure_acceptance
from selector.profiler.cells import (
    AcceptanceCell,
    Cell,
    DecodeCell,
    IdleCell,
    InterruptionCell,
    Metered,
    Origin,
    PrefillCell,
)
from selector.profiler.clock import Clock
from selector.profiler.config import SweepArm, SweepConfig
from selector.profiler.interruption import RUNNING_PROMPT_TOKENS, measure_interruption
from selector.profiler.load import measure_decode
from selector.profiler.meter import EnergyMeter
from selector.profiler.nvml import GpuFacts
from selector.profiler.plan import AcceptanceStep, DecodeStep, IdleStep, InterruptionStep, PrefillStep, Step
from selector.profiler.prefill import measure_idle, measure_lone_prefill, measure_prefill
from selector.profiler.prompts import Prompt, drawn
from selector.profiler.rapl import HostEnergy
from selector.profiler.rig import Rig, Shape
from selector.profiler.server import Launcher, RunningServer

_DEFAULT_VOCAB = 32_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What a sweep measures with."""

    clock: Clock
    launcher: Launcher
    meter: EnergyMeter | None
    """`None` measures time alone."""
    facts: GpuFacts | None
    host: HostEnergy | None
    vocab_size: int
    prompts: Mapping[str, Sequence[Prompt]] = field(default_factory=dict)
    """Real prompts by text type, for accept lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server and the arm that it runs."""

    server: RunningServer
    arm: SweepArm


async def measure(step: Step, config: SweepConfig, bench: Bench, on: Served | None, origin: Origin) -> Cell:
    """The cell of a step; `on` is `None` where no server runs.

    Raises `MeterError` when a reading must not be used, `UpstreamError` when the server failed or did something else.
    """
    if isinstance(step, IdleStep):
        return await _idle(step, config, bench, origin)
    if on is None:
        raise UpstreamError(f"{describe(step)} needs a server")
    rig = Rig(
        client=on.server.client,
        clock=bench.clock,
        meter=bench.meter,
        host=bench.host,
        vocab_size=bench.vocab_size,
        context_length=config.server.context_length,
    )
    knob = on.arm.live_setting
    if knob is not None:
        setting = step.setting if isinstance(step, DecodeStep) else None
        await rig.client.set_internal_state(knob.name, knob.launched if setting is None else setting)
    if isinstance(step, PrefillStep):
        return await _prefill(step, config, rig, origin)
    if isinstance(step, InterruptionStep):
        return await _interruption(step, config, rig, on.arm, origin)
    if isinstance(step, AcceptanceStep):
        return await _acceptance(step, config, bench, on, origin)
    return await _decode(step, config, rig, on.arm, origin)


async def _idle(step: IdleStep, config: SweepConfig, bench: Bench, origin: Origin) -> IdleCell:
    if config.idle is None or bench.meter is None:
        raise MeterError("idle power needs an energy meter")
    window = await measure_idle(bench.meter, bench.clock, settle_s=config.idle.settle_s, window_s=config.idle.window_s)
    return IdleCell(arm=step.arm, sweep_pass=step.sweep_pass, energy=Metered.of(window), origin=origin)


async def _prefill(step: PrefillStep, config: SweepConfig, rig: Rig, origin: Origin) -> PrefillCell:
    if config.prefill is None:
        raise UpstreamError("no prefill is configured")
    settings, seed = config.prefill, config.decode.seed
    if step.alone:
        cost = await measure_lone_prefill(rig, step.prompt_tokens, window_s=settings.window_s, seed=seed)
    else:
        cost = await measure_prefill(
            rig, step.prompt_tokens, window_s=settings.window_s, batch_tokens=settings.batch_tokens, seed=seed
        )
    return PrefillCell(
        arm=step.arm,
        prompt_tokens=step.prompt_tokens,
        alone=step.alone,
        prompts_at_once=cost.prompts_at_once,
        prompts=cost.prompts,
        ms=cost.ms,
        j=cost.j,
        energy=Metered.of(cost.energy) if cost.energy else None,
        origin=origin,
    )


async def _interruption(
    step: InterruptionStep, config: SweepConfig, rig: Rig, arm: SweepArm, origin: Origin
) -> InterruptionCell:
    if config.prefill is None:
        raise UpstreamError("no prefill is configured")
    shape = Shape(batch=step.running, prompt_tokens=RUNNING_PROMPT_TOKENS, verify_tokens=arm.verify_tokens)
    found = await measure_interruption(
        rig, shape, step.prompt_tokens, window_s=config.prefill.window_s, seed=config.decode.seed
    )
    return InterruptionCell(
        arm=step.arm,
        running=step.running,
        prompt_tokens=step.prompt_tokens,
        prompts=found.prompts,
        stall_ms=found.stall_ms,
        step_ms=found.step_ms,
        window_s=found.window_s,
        origin=origin,
    )


async def _decode(step: DecodeStep, config: SweepConfig, rig: Rig, arm: SweepArm, origin: Origin) -> DecodeCell:
    settings = config.decode
    await rig.clock.sleep(settings.cooldown_s)
    shape = Shape(batch=step.batch, prompt_tokens=step.prompt_tokens, verify_tokens=arm.verify_tokens)
    repeats = [
        await measure_decode(rig, shape, method=step.method, window_s=settings.window_s, seed=settings.seed + number)
        for number in range(step.first_repeat, step.first_repeat + step.repeats)
    ]
    return DecodeCell(
        arm=step.arm,
        sweep_pass=step.sweep_pass,
        batch=step.batch,
        prompt_tokens=step.prompt_tokens,
        method=step.method,
        setting=step.setting,
        repeats=tuple(repeats),
        origin=origin,
    )


async def _acceptance(
    step: AcceptanceStep, config: SweepConfig, bench: Bench, on: Served, origin: Origin
) -> AcceptanceCell:
    settings = config.acceptance
    if settings is None:
        raise UpstreamError("no acceptance is configured")
    draws = drawn(
        bench.prompts[step.text_type], count=settings.prompts_per_type, repeats=settings.repeats, seed=settings.seed
    )
    sampling = Sampling(
        answer_tokens=settings.answer_tokens,
        temperature=settings.temperature,
        concurrency=settings.concurrency,
        seed=settings.seed + step.repeat,
    )
    answers, refused = await measure_acceptance(on.server.client, draws[step.repeat], sampling, on.arm.verify_tokens)
    return AcceptanceCell(
        arm=step.arm,
        text_type=step.text_type,
        repeat=step.repeat,
        answer_tokens=settings.answer_tokens,
        temperature=settings.temperature,
        answers=tuple(answers),
        refused=refused,
        origin=origin,
    )


def describe(step: Step) -> str:
    """A step in words."""
    if isinstance(step, AcceptanceStep):
        return f"acceptance of {step.arm} on {step.text_type}, repeat {step.repeat + 1}"
    if isinstance(step, IdleStep):
        when = ", after the last server" if step.sweep_pass == "drift" else ""
        return f"idle power {'bare' if step.arm is None else f'with {step.arm} up'}{when}"
    if isinstance(step, PrefillStep):
        return f"prefill of {step.prompt_tokens} tokens{' alone' if step.alone else ''} on {step.arm}"
    if isinstance(step, InterruptionStep):
        return f"prompts of {step.prompt_tokens} tokens among {step.running} running on {step.arm}"
    at = "" if step.setting is None else f"@{step.setting:g}"
    return f"{step.arm}{at} batch {step.batch} prompt {step.prompt_tokens} ({step.sweep_pass}, {step.method})"


def vocabulary(model: Path) -> int:
    """Vocabulary size by a model's config.json. Raises `InputError`."""
    path = model / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(str(path), "there is no such file", "check --models and target.model") from None
    except ValueError as bad:
        raise InputError(str(path), f"is not JSON ({bad})", "restore the model's configuration") from None
    nested: Mapping[str, object] = config.get("text_config") or {}
    size = config.get("vocab_size") or nested.get("vocab_size") or _DEFAULT_VOCAB
    return int(str(size))
