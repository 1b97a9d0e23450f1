"""Measures every cell of a sweep, one server after the other, and leaves each on disk as soon as it is known.

    OUT/cells.jsonl     one line a cell (see cells.py); what is there is not measured again
    OUT/trace-*.jsonl   the energy counter, power and clocks over the time of each run

A cell that the meter refuses, and a server that dies, are reported and recorded, and the sweep goes on with what is
left; the next run tries them again.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from selector.errors import MeterError, UpstreamError
from selector.profiler.cells import Cell, FailedStep, Origin, append_cell, mend, read_cells
from selector.profiler.client import random_prompts
from selector.profiler.config import SweepArm, SweepConfig
from selector.profiler.measure import Bench, Served, describe, measure
from selector.profiler.plan import AcceptanceStep, Launch, Pace, Step, left_to_do, plan
from selector.profiler.server import RunningServer

_WARM_UP_TOKENS = 64
_STEP_TIMEOUT_S = 150.0
"""No step cost takes this long to measure; one that does is given up so that the rest gets its turn."""
_ANSWERS_TIMEOUT_S = 3_600.0
"""Nor do the answers of one acceptance step, on a CPU even."""


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


class _DeadlineError(Exception):
    """The next step would end after the deadline."""


class Sweep:
    """One run of a sweep, of the arms `only` where they are named. `stop_after_s` counts from construction."""

    ending = False
    """Set by whoever cancels the run, so that what breaks from then on is not taken for a failed step."""

    def __init__(
        self,
        config: SweepConfig,
        out: Path,
        bench: Bench,
        observer: Observer,
        *,
        stop_after_s: float | None = None,
        only: Collection[str] | None = None,
    ) -> None:
        self._config = config
        self._bench = bench
        self._observer = observer
        self._only = only
        self._file = out / "cells.jsonl"
        self._deadline_s = None if stop_after_s is None else bench.clock.now() + stop_after_s
        self._measured = 0
        self._failed = 0

    async def run(self) -> SweepResult:
        """Measures what is left, up to the deadline."""
        mend(self._file)
        cells = read_cells(self._file)
        everything = plan(self._config, metered=self._bench.meter is not None, only=self._only)
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
        self._forbid_others(launch)
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
                await self._warm_up(server, launch.arm)
                self._allow_present(server)
                origin = self._origin(server, label, await server.client.engine())
                try:
                    for step in launch.steps:
                        await self._try(step, Served(server=server, arm=launch.arm), origin)
                finally:
                    await self._restore(server, launch.arm)
        except UpstreamError as failed:
            self._end_if_asked()
            self._fail(f"server of {launch.arm.name}", str(failed), origin)
            self._forget(launch)

    async def _restore(self, server: RunningServer, arm: SweepArm) -> None:
        """Gives a server that was running before what it had."""
        if arm.live_setting is not None and self._config.running(arm) is not None:
            with suppress(UpstreamError):  # it is gone
                await server.client.set_internal_state(arm.live_setting.name, arm.live_setting.launched)

    async def _try(self, step: Step, on: Served | None, origin: Origin) -> None:
        """One step; a reading that cannot be used is recorded, a server that no longer answers ends the launch."""
        self._require(self._pace.step_s(step))
        began_s = self._bench.clock.now()
        limit_s = _ANSWERS_TIMEOUT_S if isinstance(step, AcceptanceStep) else _STEP_TIMEOUT_S
        try:
            async with asyncio.timeout(limit_s):
                cell = await measure(step, self._config, self._bench, on, origin)
        except TimeoutError:
            self._end_if_asked()
            self._done(step)
            self._fail(describe(step), f"took longer than {limit_s:g} s", origin)
            if on is not None:
                with suppress(UpstreamError):  # the next step finds out what is wrong with the server
                    await on.server.client.abort_all()
            return
        except (MeterError, UpstreamError) as refused:
            self._end_if_asked()
            if isinstance(refused, UpstreamError) and not (on and await on.server.client.healthy()):
                raise
            self._done(step)
            self._fail(describe(step), str(refused), origin)
            return
        self._pace.took(step, self._bench.clock.now() - began_s)
        append_cell(self._file, cell)
        self._measured += 1
        self._done(step)
        self._observer.measured(cell, self._left_s())

    def _end_if_asked(self) -> None:
        """Goes on with a cancellation that turned into a failure on its way: requests that were being made may report
        that they broke. A task's own count of cancellations does not tell, since a failed task group may leave one.
        """
        if self.ending:
            raise asyncio.CancelledError

    def _require(self, seconds: float) -> None:
        if self._deadline_s is not None and self._bench.clock.now() + seconds > self._deadline_s:
            raise _DeadlineError

    def _forbid_others(self, launch: Launch) -> None:
        """Whoever computes on the GPU before our server does is another."""
        running = launch.arm is not None and self._config.running(launch.arm) is not None
        if self._bench.meter is not None and not running:
            self._bench.meter.allow_processes(lambda pid: False)

    async def _warm_up(self, server: RunningServer, arm: SweepArm) -> None:
        """Lets the server do once what it does lazily: compile kernels, open its GPU contexts."""
        prompts = random_prompts("warm-up", 1, _WARM_UP_TOKENS, self._bench.vocab_size)
        await server.client.generate(prompts, _WARM_UP_TOKENS)
        await server.client.step_totals()
        if self._config.running(arm) is None:
            await server.client.freeze_gc()

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
            url=server.client.url if server and not server.argv else None,
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


def _count(launches: Sequence[Launch]) -> int:
    return sum(len(launch.steps) for launch in launches)


def run_sweep(sweep: Sweep) -> SweepResult:
    """Runs a sweep to its end on an event loop of its own.

    SIGTERM and Ctrl-C end it with `KeyboardInterrupt`: the server is stopped, and what was measured is on disk.
    Only the first counts, so that another does not interrupt the stopping of the server.
    """

    async def stoppable() -> SweepResult:
        task = asyncio.current_task()
        assert task is not None

        def end() -> None:
            if not sweep.ending:
                sweep.ending = True
                task.cancel()

        for wanted in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(wanted, end)
        return await sweep.run()

    try:
        return asyncio.run(stoppable())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
