"""A sweep measures every cell once, keeps each, survives refusals and dead servers, and goes on where it stopped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from selector.errors import InputError, MeterError, UpstreamError
from selector.profiler import sweep
from selector.profiler.cells import (
    DecodeCell,
    FailedStep,
    IdleCell,
    InterruptionCell,
    Origin,
    PrefillCell,
    read_cells,
)
from selector.profiler.config import SweepConfig
from selector.profiler.energy import ThrottleReason
from selector.profiler.measure import Bench
from selector.profiler.nvml import GpuFacts
from selector.profiler.plan import DecodeStep, InterruptionStep, Pace, PrefillStep, left_to_do, plan
from selector.profiler.sweep import Sweep, SweepResult

FACTS = GpuFacts(name="NVIDIA H200", driver="580.1", power_limit_w=700.0)


def config(**changes: Any) -> SweepConfig:
    data: dict[str, Any] = {
        "version": 1,
        "output_name": "h200__m",
        "target": {"name": "M", "model": "m"},
        "gpu": {"name": "H200", "indices": [0], "peak_tflops": 989, "bandwidth_tb_s": 4.8},
        "server": {"context_length": 8192, "flags": ["--max-running-requests", "64"]},
        "decode": {"method": "steady", "window_s": 5.3, "repeats": 2, "cooldown_s": 0.5},
        "prefill": {"prompt_tokens": [1024]},
        "idle": {"window_s": 6, "settle_s": 1},
        "grid": [{"batches": [1, 8], "prompt_tokens": [512]}],
        "drift": {"batches": [1], "prompt_tokens": [512]},
        "arms": [
            {"name": "none", "algorithm": "none", "verify_tokens": 1},
            {"name": "eagle3-k2", "algorithm": "EAGLE3", "verify_tokens": 3, "imposed_accept_length": 3},
            {"name": "ngram-8", "algorithm": "NGRAM", "verify_tokens": 8, "imposed_accept_length": 2},
        ],
    }
    return SweepConfig.model_validate(data | changes)


class Watcher:
    """Notes what an observer hears."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.left_s: list[float] = []
        self.interrupt_after: int | None = None

    def planned(self, steps: int, done: int, left_s: float) -> None:
        self.events.append(f"planned {steps} {done}")
        self.left_s.append(left_s)

    def launching(self, arm: str, left_s: float) -> None:
        self.events.append(f"launching {arm}")
        self.left_s.append(left_s)

    def measured(self, cell: object, left_s: float) -> None:
        self.events.append("measured")
        self.left_s.append(left_s)
        if self.interrupt_after is not None and self.events.count("measured") == self.interrupt_after:
            raise KeyboardInterrupt

    def failed(self, step: str, reason: str, left_s: float) -> None:
        self.events.append(f"failed {step}")

    def stopped(self, left_s: float) -> None:
        self.events.append("stopped")


@pytest.fixture
def run(tmp_path, clock, meter, launcher):
    launcher.accept = {"eagle3-k2": 3, "ngram-8": 2}

    async def run(config: SweepConfig, watcher: Watcher | None = None, **options: Any) -> SweepResult:
        await clock.sleep(1.0)
        bench = Bench(clock=clock, launcher=launcher, meter=meter, facts=FACTS, host=None, vocab_size=32_000)
        return await Sweep(config, tmp_path, bench, watcher or Watcher(), **options).run()

    return run


def shape(cell: object) -> tuple[object, ...]:
    if isinstance(cell, DecodeCell):
        return cell.arm, cell.sweep_pass, cell.batch, cell.prompt_tokens
    if isinstance(cell, PrefillCell):
        return cell.arm, "prefill alone" if cell.alone else "prefill", cell.prompt_tokens
    assert isinstance(cell, IdleCell)
    return "idle", cell.arm, cell.sweep_pass


EVERYTHING = [
    ("idle", None, "main"),
    ("idle", "none", "main"),
    ("none", "main", 1, 512),
    ("none", "main", 8, 512),
    ("none", "prefill alone", 128),
    ("none", "prefill", 1024),
    ("eagle3-k2", "main", 1, 512),
    ("eagle3-k2", "main", 8, 512),
    ("eagle3-k2", "prefill alone", 128),
    ("eagle3-k2", "prefill", 512),
    ("ngram-8", "main", 1, 512),
    ("ngram-8", "main", 8, 512),
    ("ngram-8", "prefill alone", 128),
    ("ngram-8", "prefill", 512),
    ("none", "drift", 1, 512),
    ("idle", None, "drift"),
]


async def test_servers_do_not_stand_still_for_garbage_collection_in_a_cell(run, launcher) -> None:
    await run(config())
    assert [server.frozen_after for server in launcher.servers] == [[1], [1], [1], [1]]


async def test_a_server_that_was_running_before_is_not_told_to_freeze(run, launcher) -> None:
    arm = config().arm("eagle3-k2").model_dump() | {"url": "http://127.0.0.1:1"}  # the fake launcher asks nobody
    settings = config().model_dump() | {"arms": [arm], "idle": None, "drift": None}
    await run(SweepConfig.model_validate(settings))
    assert [server.frozen_after for server in launcher.servers] == [[]]


async def test_a_server_without_that_call_is_measured_all_the_same(run, launcher) -> None:
    launcher.prepare = lambda arm, server: setattr(server, "can_freeze", False)
    result = await run(config())
    assert (result.measured, result.failed) == (len(EVERYTHING), 0)
    assert [server.frozen_after for server in launcher.servers] == [[], [], [], []]


async def test_a_sweep_measures_everything_in_order(run, tmp_path, launcher) -> None:
    watcher = Watcher()
    result = await run(config(), watcher)
    cells = read_cells(tmp_path / "cells.jsonl")
    assert [shape(cell) for cell in cells] == EVERYTHING
    assert launcher.launched == ["none", "eagle3-k2", "ngram-8", "none"]
    assert (result.measured, result.failed, result.left, result.stopped_early) == (len(EVERYTHING), 0, 0, False)
    assert watcher.left_s[0] > watcher.left_s[-1] == 0.0
    eagle = next(cell for cell in cells if isinstance(cell, DecodeCell) and cell.arm == "eagle3-k2")
    assert [repeat.seed for repeat in eagle.repeats] == [1, 2]
    assert eagle.repeats[0].accept_length == pytest.approx(3)
    assert eagle.origin.argv == ("sglang", "eagle3-k2")
    assert eagle.origin.engine == "sglang 0.5.17"
    assert (eagle.origin.gpu, eagle.origin.driver, eagle.origin.weights) == ("NVIDIA H200", "580.1", "dummy")


def test_prompts_among_running_requests_are_planned_once_an_arm_and_not_again() -> None:
    settings = {"prompt_tokens": [1024], "alone_tokens": 128, "among_running": 7}
    everything = plan(config(prefill=settings, drift=None), metered=False)
    asked = [step for launch in everything for step in launch.steps if isinstance(step, InterruptionStep)]
    assert asked == [InterruptionStep(arm, 7, 128) for arm in ("none", "eagle3-k2", "ngram-8")]
    origin = Origin(host="h", weights="dummy", date="2026-01-01T00:00:00+00:00")
    cell = InterruptionCell(
        arm="eagle3-k2",
        running=7,
        prompt_tokens=128,
        prompts=9,
        stall_ms=20.0,
        step_ms=6.0,
        window_s=5.2,
        origin=origin,
    )
    left = [step for launch in left_to_do(everything, [cell]) for step in launch.steps if step in asked]
    assert left == [asked[0], asked[2]]
    several = plan(config(prefill=settings | {"alone_tokens": [128, 900]}, drift=None), metered=False)
    assert [step for step in several[0].steps if not isinstance(step, DecodeStep)][:4] == [
        PrefillStep("none", 128, alone=True),
        InterruptionStep("none", 7, 128),
        PrefillStep("none", 900, alone=True),
        InterruptionStep("none", 7, 900),
    ]
    alone = config(prefill={**settings, "drafting_among_running": False})
    interrupted = [
        step.arm for each in plan(alone, metered=True) for step in each.steps if isinstance(step, InterruptionStep)
    ]
    assert interrupted == ["none"]
    with pytest.raises(ValidationError, match="among_running needs alone_tokens"):
        config(prefill=settings | {"alone_tokens": None})


def test_servers_that_run_take_no_time_to_launch_whatever_others_took() -> None:
    origin = Origin(host="h", weights="dummy", date="2026-01-01T00:00:00+00:00", launch_s=90.0)
    cell = PrefillCell(
        arm="none", prompt_tokens=9, prompts_at_once=1, prompts=1, ms=1.0, j=1.0, energy=None, origin=origin
    )
    started = config()
    arms = [arm.model_dump() | {"url": "http://127.0.0.1:1"} for arm in started.arms]
    assert Pace(started, [cell]).launch_s() > 90.0
    assert Pace(config(arms=arms), [cell]).launch_s() < 10.0


async def test_an_end_that_breaks_requests_on_their_way_is_no_failed_step(run, tmp_path, monkeypatch) -> None:
    waits = asyncio.Event()

    async def broken(*_: object) -> None:
        if waits.is_set():
            raise MeterError("the sweep went on")
        waits.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise UpstreamError("/generate failed (connection reset)") from None

    monkeypatch.setattr(sweep, "measure", broken)
    running = asyncio.create_task(run(config()))
    await waits.wait()
    monkeypatch.setattr(sweep.Sweep, "ending", True)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert read_cells(tmp_path / "cells.jsonl") == []


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_leaves_the_stopping_of_the_server_alone(first: signal.Signals) -> None:
    stopped = []

    class Stopping:
        ending = False

        async def run(self) -> None:
            os.kill(os.getpid(), first)
            try:
                await asyncio.Event().wait()
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                for _ in range(10):  # turns of the loop in which the signal arrives
                    await asyncio.sleep(0)
                stopped.append(True)

    with pytest.raises(KeyboardInterrupt):
        sweep.run_sweep(Stopping())
    assert stopped


@pytest.mark.parametrize("after", [1, 3, 7])
async def test_a_killed_sweep_goes_on_without_losing_or_repeating_a_cell(run, tmp_path, after) -> None:
    watcher = Watcher()
    watcher.interrupt_after = after
    with pytest.raises(KeyboardInterrupt):
        await run(config(), watcher)
    file = tmp_path / "cells.jsonl"
    assert len(read_cells(file)) == after
    with file.open("a", encoding="utf-8") as torn:
        torn.write('{"kind": "decode", "arm": "no')  # killed in the middle of a line
    again = Watcher()
    result = await run(config(), again)
    assert again.events[0] == f"planned {len(EVERYTHING)} {after}"
    assert Counter(shape(cell) for cell in read_cells(file)) == Counter(EVERYTHING)
    assert result.left == 0


async def test_a_finished_sweep_starts_nothing(run, launcher) -> None:
    await run(config())
    launcher.launched.clear()
    result = await run(config())
    assert launcher.launched == []
    assert (result.measured, result.left) == (0, 0)


async def test_more_repeats_measure_only_what_lacks(run, tmp_path) -> None:
    await run(config(drift=None, prefill=None))
    await run(config(drift=None, prefill=None, decode=config().decode.model_dump() | {"repeats": 3}))
    seeds: dict[tuple[object, ...], list[int]] = {}
    for cell in read_cells(tmp_path / "cells.jsonl"):
        if isinstance(cell, DecodeCell):
            seeds.setdefault(shape(cell), []).extend(repeat.seed for repeat in cell.repeats)
    assert len(seeds) == 6
    assert all(used == [1, 2, 3] for used in seeds.values())


async def test_a_sweep_stops_in_time_and_before_a_step_that_would_not_fit(run, clock, tmp_path) -> None:
    began_s = clock.now() + 1.0
    watcher = Watcher()
    result = await run(config(), watcher, stop_after_s=200.0)
    assert result.stopped_early
    assert 0 < result.measured < len(EVERYTHING)
    assert result.left == len(EVERYTHING) - result.measured
    assert clock.now() - began_s <= 200.0
    assert watcher.events[-1] == "stopped"
    await run(config())
    assert [shape(cell) for cell in read_cells(tmp_path / "cells.jsonl")] == EVERYTHING


async def test_a_server_that_dies_is_reported_and_the_sweep_goes_on(run, tmp_path, launcher) -> None:
    def dies(arm: str, server: Any) -> None:
        server.die_after = 3 if arm == "eagle3-k2" else None

    launcher.prepare = dies
    watcher = Watcher()
    result = await run(config(), watcher)
    cells = read_cells(tmp_path / "cells.jsonl")
    failures = [cell for cell in cells if isinstance(cell, FailedStep)]
    assert [failure.step for failure in failures] == ["server of eagle3-k2"]
    measured = [shape(cell) for cell in cells if not isinstance(cell, FailedStep)]
    lost = [cell for cell in EVERYTHING if cell[0] == "eagle3-k2" and cell != ("eagle3-k2", "main", 1, 512)]
    assert measured == [cell for cell in EVERYTHING if cell not in lost]
    assert (result.failed, result.left) == (1, len(lost))
    launcher.prepare = lambda arm, server: None
    result = await run(config())
    assert (result.measured, result.left) == (len(lost), 0)


async def test_a_refused_cell_is_recorded_and_measured_again_next_time(run, tmp_path, gpu, launcher) -> None:
    def hot(arm: str, server: Any) -> None:
        gpu.throttle = frozenset({ThrottleReason.HW_THERMAL}) if arm == "ngram-8" else frozenset()

    launcher.prepare = hot
    result = await run(config())
    failures = [cell for cell in read_cells(tmp_path / "cells.jsonl") if isinstance(cell, FailedStep)]
    assert [failure.step.split(" (")[0] for failure in failures] == [
        "ngram-8 batch 1 prompt 512",
        "ngram-8 batch 8 prompt 512",
        "prefill of 128 tokens alone on ngram-8",
        "prefill of 512 tokens on ngram-8",
    ]
    assert all("hw_thermal_slowdown" in failure.reason for failure in failures)
    assert result.left == 4
    launcher.prepare = lambda arm, server: setattr(gpu, "throttle", frozenset())
    assert (await run(config())).left == 0


async def test_another_process_on_the_gpu_is_noticed(run, tmp_path, gpu, clock) -> None:
    gpu.processes = frozenset({77})
    await run(config(), stop_after_s=15.0)
    (failure,) = read_cells(tmp_path / "cells.jsonl")
    assert isinstance(failure, FailedStep)
    assert "another process" in failure.reason
    assert "77" in failure.reason


async def test_a_line_that_is_no_cell_is_named(run, tmp_path) -> None:
    (tmp_path / "cells.jsonl").write_text(json.dumps({"kind": "decode", "arm": "none"}) + "\n")
    with pytest.raises(InputError, match=r"cells\.jsonl: line 1"):
        await run(config())
