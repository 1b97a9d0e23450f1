"""What the meter takes for granted of a GPU's sensors, asked of a real one. Nothing is run on it and nothing is set."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from selector.errors import MeterError
from selector.profiler.clock import MonotonicClock
from selector.profiler.energy import MIN_UPDATES, OVER_LIMIT_FRAC
from selector.profiler.meter import EnergyMeter
from selector.profiler.nvml import GpuFacts, NvmlGpu, gpu_count
from selector.profiler.replay import load_recording

Board = tuple[NvmlGpu, GpuFacts]

LEAST_W, MOST_W = 10.0, 2000.0
"""A board draws between these, at rest or not; a reading in other units is far outside."""
WINDOW_S = 7.0


def test_a_board_says_what_it_is(board: Board) -> None:
    _, facts = board
    assert gpu_count() >= 1
    assert facts.name and facts.driver
    assert LEAST_W < facts.power_limit_w < MOST_W


def test_the_sensors_are_in_the_units_that_they_are_taken_for(board: Board) -> None:
    gpu, _ = board
    watts = gpu.instant_power_w()
    assert watts is None or LEAST_W < watts <= gpu.power_limit_w * (1 + OVER_LIMIT_FRAC)
    state = gpu.state()
    assert state.sm_mhz is None or 100 < state.sm_mhz < 5000
    assert state.temperature_c is None or 0 < state.temperature_c < 110


async def test_a_window_holds_enough_updates_and_both_ways_of_metering_agree(board: Board, tmp_path: Path) -> None:
    gpu, _ = board
    clock = MonotonicClock()
    record = io.StringIO()
    with EnergyMeter([gpu], clock=clock, record=record) as meter:
        await clock.sleep(0.5)  # the first edges
        start_s = clock.now()
        await clock.sleep(WINDOW_S)
        end_s = clock.now()
        found = await meter.window(start_s, end_s)
        with pytest.raises(MeterError, match="counter updates"):
            await meter.window(end_s - 0.5, end_s)
    assert found.counter_updates >= MIN_UPDATES
    assert 0.005 < found.update_interval_s < WINDOW_S / MIN_UPDATES
    assert found.energy_j == pytest.approx(found.watts_mean * (end_s - start_s))
    assert LEAST_W < found.watts_mean <= gpu.power_limit_w * (1 + OVER_LIMIT_FRAC)
    assert found.disagreement_frac is None or abs(found.disagreement_frac) < 0.1
    recorded = tmp_path / "trace.jsonl"
    recorded.write_text(record.getvalue(), encoding="utf-8")
    (source,) = load_recording(recorded, clock=lambda: end_s)
    assert source.power_limit_w == gpu.power_limit_w
    assert source.counter_mj() <= gpu.counter_mj()
