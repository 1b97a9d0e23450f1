"""Measures every cell of a sweep, one server after the other, and leaves each on disk as soon as it is known.

    OUT/cells.jsonl     one line a cell (see cells.py); what is there is not measured again
    OUT/trace-*.jsonl   the energy counter, power and clocks over the time of each run

A cell that the meter refuses, and a server that dies, are reported and recorded, and the sweep goes on with what is
left; the next run tries them again.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from selector.errors import InputError, MeterError, UpstreamError
from selector.profiler.cells import (
    Cell,
    DecodeCell,
    FailedStep,
    IdleCell,
    Metered,
    Origin,
    PrefillCell,
    append_cell,
    mend,
    read_cells,
)
from selector.profiler.client import random_prompts
from selector.profiler.clock import Clock
from selector.profiler.config import SweepArm, SweepConfig
from selector.profiler.load import Rig, Shape, measure_decode
from selector.profiler.meter import EnergyMeter
from selector.profiler.nvml import GpuFacts
from selector.profiler.plan import DecodeStep, IdleStep, Launch, Pace, PrefillStep, Step, left_to_do, plan
from selector.profiler.prefill import measure_idle, measure_prefill
from selector.profiler.rapl import HostEnergy
from selector.profiler.server import Launcher, RunningServer

_DEFAULT_VOCAB = 32_000
_WARM_UP_TOKENS = 64


class Observer(Protocol):
    """Hears of a sweep's progress as it happens."""

    def planned(self, steps: int, done: int, left_s: float) -> None:
        """There are so many steps, of which so many were done before; the rest takes about `left_s`."""

    def launching(self, arm: str, left_s: float) -> None:
        """A server is being started."""

    def measured(self, cell: Cell, left_s: float) -> None:
        """A cell is on disk."""

    def failed(self, step: str, reason: str, left_s: float) -> None:
        """A step gave nothing."""

    def stopped(self, left_s: float) -> None:
        """The deadline ends the run before a step that would not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """What a run of a sweep came to."""

    measured: int
    failed: int
    left: int
    """Steps that still have to be measured, the failed ones among them."""
    left_s: float
    stopped_early: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What a sweep measures with."""

    clock: Clock
    launcher: Launcher
    meter: EnergyMeter | None
    facts: GpuFacts | None
    host: HostEnergy | None
    vocab_size: int


class _DeadlineError(Exception):
    """The next step would end after the deadline."""


class Sweep:
    """One run of a sweep. `stop_after_s` counts from `began_s` on the clock, from construction by default."""

    def __init__(
        self,
        config: SweepConfig,
        out: Path,
        bench: Bench,
        observer: Observer,
        *,
        stop_after_s: float | None = None,
    ) -> None:
        self._config = config
        self._bench = bench
        self._observer = observer
        self._file = out / "cells.jsonl"
        self._deadline_s = None if stop_after_s is None else bench.clock.now() + stop_after_s
        self._measured = 0
        self._failed = 0

    async def run(self) -> SweepResult:
        """Measures what is left, up to the deadline."""
        mend(self._file)
        cells = read_cells(self._file)
        everything = plan(self._config, metered=self._bench.meter is not None)
        self._left = left_to_do(everything, cells)
        self._pace = Pace(self._config, cells)
        total, left = _count(everything), _count(self._left)
        self._observer.planned(total, total - left, self._left_s())
        stopped_early = False
        launches = list(self._left)
        try:
            for number, launch in enumerate(launches):
                await self._run_launch(launch, number)
        except _DeadlineError:
            stopped_early = True
            self._observer.stopped(self._left_s())
        left = _count(left_to_do(everything, read_cells(self._file)))
        return SweepResult(
            measured=self._measured,
            failed=self._failed,
            left=left,
            left_s=self._pace.left_s(left_to_do(everything, read_cells(self._file))),
            stopped_early=stopped_early,
        )

    async def _run_launch(self, launch: Launch, number: int) -> None:
        self._forbid_others()
        if launch.arm is None:
            for step in launch.steps:
                await self._try(step, None, self._origin(None, ""))
            return
        self._require(self._pace.launch_s() + self._pace.step_s(launch.steps[0]))
        self._observer.launching(launch.arm.name, self._left_s())
        label = f"{launch.arm.name}-{number}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
        origin = self._origin(None, label)
        try:
            async with self._bench.launcher.launch(launch.arm) as server:
                self._pace.launched(server.launch_s)
                await self._warm_up(server)
                self._allow_present(server)
                origin = self._origin(server, label, await server.client.engine())
                for step in launch.steps:
                    await self._try(step, (server, launch.arm), origin)
        except UpstreamError as failed:
            self._fail(f"server of {launch.arm.name}", str(failed), origin)
            self._forget(launch)

    async def _try(self, step: Step, on: tuple[RunningServer, SweepArm] | None, origin: Origin) -> None:
        """One step; a reading that cannot be used is recorded, a server that no longer answers ends the launch."""
        self._require(self._pace.step_s(step))
        began_s = self._bench.clock.now()
        try:
            cell = await self._measure(step, on, origin)
        except (MeterError, UpstreamError) as refused:
            if isinstance(refused, UpstreamError) and not (on and await on[0].client.healthy()):
                raise
            self._done(step)
            self._fail(_name(step), str(refused), origin)
            return
        self._pace.took(step, self._bench.clock.now() - began_s)
        append_cell(self._file, cell)
        self._measured += 1
        self._done(step)
        self._observer.measured(cell, self._left_s())

    async def _measure(self, step: Step, on: tuple[RunningServer, SweepArm] | None, origin: Origin) -> Cell:
        config, bench = self._config, self._bench
        if isinstance(step, IdleStep):
            if config.idle is None or bench.meter is None:
                raise MeterError("idle power needs an energy meter")
            window = await measure_idle(
                bench.meter, bench.clock, settle_s=config.idle.settle_s, window_s=config.idle.window_s
            )
            return IdleCell(arm=step.arm, energy=_metered(window), origin=origin)
        if on is None:
            raise UpstreamError(f"{_name(step)} needs a server")
        server, arm = on
        rig = Rig(
            client=server.client,
            clock=bench.clock,
            meter=bench.meter,
            host=bench.host,
            vocab_size=bench.vocab_size,
            context_length=config.server.context_length,
        )
        if isinstance(step, PrefillStep):
            if config.prefill is None:
                raise UpstreamError("no prefill is configured")
            cost = await measure_prefill(
                rig,
                step.prompt_tokens,
                window_s=config.prefill.window_s,
                batch_tokens=config.prefill.batch_tokens,
                seed=config.decode.seed,
            )
            return PrefillCell(
                arm=step.arm,
                prompt_tokens=step.prompt_tokens,
                prompts_at_once=cost.prompts_at_once,
                prompts=cost.prompts,
                ms=cost.ms,
                j=cost.j,
                energy=Metered.of(cost.energy),
                origin=origin,
            )
        return await self._measure_decode(step, rig, arm, origin)

    async def _measure_decode(self, step: DecodeStep, rig: Rig, arm: SweepArm, origin: Origin) -> DecodeCell:
        settings = self._config.decode
        await rig.clock.sleep(settings.cooldown_s)
        shape = Shape(batch=step.batch, prompt_tokens=step.prompt_tokens, verify_tokens=arm.verify_tokens)
        repeats = [
            await measure_decode(
                rig, shape, method=step.method, window_s=settings.window_s, seed=settings.seed + number
            )
            for number in range(step.repeats)
        ]
        return DecodeCell(
            arm=step.arm,
            sweep_pass=step.sweep_pass,
            batch=step.batch,
            prompt_tokens=step.prompt_tokens,
            method=step.method,
            repeats=tuple(repeats),
            origin=origin,
        )

    def _require(self, seconds: float) -> None:
        if self._deadline_s is not None and self._bench.clock.now() + seconds > self._deadline_s:
            raise _DeadlineError

    def _forbid_others(self) -> None:
        """Whoever computes on the GPU before our server does is another."""
        if self._bench.meter is not None and self._config.server.url is None:
            self._bench.meter.allow_processes(lambda pid: False)

    async def _warm_up(self, server: RunningServer) -> None:
        """Lets the server do once what it does lazily: compile kernels, open its GPU contexts."""
        prompts = random_prompts("warm-up", 1, _WARM_UP_TOKENS, self._bench.vocab_size)
        await server.client.generate(prompts, _WARM_UP_TOKENS)
        await server.client.step_totals()

    def _allow_present(self, server: RunningServer) -> None:
        """The warm server's processes may use the GPU: those there now, and whatever its process group adds.

        Both, since a driver outside a container lists ids that mean nothing inside it.
        """
        if self._bench.meter is not None:
            present = self._bench.meter.processes() or frozenset()
            self._bench.meter.allow_processes(lambda pid: pid in present or server.owns(pid))

    def _origin(self, server: RunningServer | None, launch: str, engine: str | None = None) -> Origin:
        facts = self._bench.facts
        return Origin(
            argv=server.argv if server else (),
            env=dict(server.env) if server else {},
            url=self._config.server.url,
            engine=engine,
            gpu=facts.name if facts else None,
            driver=facts.driver if facts else None,
            power_limit_w=facts.power_limit_w if facts else None,
            host=socket.gethostname(),
            weights=self._config.target.weights,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            launch_s=server.launch_s if server else None,
            launch=launch,
        )

    def _fail(self, step: str, reason: str, origin: Origin) -> None:
        append_cell(self._file, FailedStep(step=step, reason=reason, origin=origin))
        self._failed += 1
        self._observer.failed(step, reason, self._left_s())

    def _done(self, step: Step) -> None:
        """Takes a step off the list that the time left is worked out from."""
        self._left = [
            Launch(launch.arm, steps)
            for launch in self._left
            if (steps := tuple(other for other in launch.steps if other is not step))
        ]

    def _forget(self, launch: Launch) -> None:
        for step in launch.steps:
            self._done(step)

    def _left_s(self) -> float:
        return self._pace.left_s(self._left)


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


def _metered(window: object) -> Metered:
    return Metered.model_validate(window, from_attributes=True)


def _count(launches: Sequence[Launch]) -> int:
    return sum(len(launch.steps) for launch in launches)


def _name(step: Step) -> str:
    if isinstance(step, IdleStep):
        return f"idle power {'bare' if step.arm is None else f'with {step.arm} up'}"
    if isinstance(step, PrefillStep):
        return f"prefill of {step.prompt_tokens} tokens on {step.arm}"
    return f"{step.arm} batch {step.batch} prompt {step.prompt_tokens} ({step.sweep_pass})"


def run_sweep(sweep: Sweep) -> SweepResult:
    """Runs a sweep to its end on an event loop of its own."""
    return asyncio.run(sweep.run())
