"""Energy windows on a replayed counter: what they say, and every reason to refuse one."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from selector.errors import MeterError
from selector.profiler.energy import REFUSED_REASONS, BoardState, EnergyWindow, ThrottleReason
from selector.profiler.meter import EnergyMeter
from selector.profiler.replay import Reading, ReplaySource, load_recording

STEP_S = 0.1
START_S, END_S = 2.03, 8.07


class HandClock:
    """Time that a test turns by hand; waiting turns it too."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.on_tick: Callable[[], None] = lambda: None

    def now(self) -> float:
        return self.time_s

    async def sleep(self, seconds: float) -> None:
        self.turn(seconds)

    def turn(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.01)):
            self.time_s = round(self.time_s + 0.01, 6)
            self.on_tick()


def board(
    *, throttle: frozenset[ThrottleReason] = frozenset(), processes: frozenset[int] | None = frozenset()
) -> BoardState:
    return BoardState(sm_mhz=1900.0, temperature_c=50.0, throttle=throttle, processes=processes)


def readings(
    watts: float = 500.0,
    *,
    counter: Callable[[float, float], float] = lambda t_s, joules: joules,
    state: Callable[[float], BoardState] = lambda t_s: board(),
    instant_w: float | None = None,
    seconds: float = 10.0,
    step_s: float = STEP_S,
) -> list[Reading]:
    """A counter that moves every `step_s` at a constant power; `counter` maps (time, true joules) to what it shows."""
    times = [round(index * step_s, 6) for index in range(int(seconds / step_s) + 1)]
    return [
        Reading(
            t_s=t_s,
            counter_mj=round(1e3 * counter(t_s, 1e5 + watts * t_s)),
            power_w=watts if instant_w is None else instant_w,
            state=state(t_s),
        )
        for t_s in times
    ]


def metered(*series: list[Reading], limit_w: float = 700.0, record: io.StringIO | None = None) -> EnergyMeter:
    """A meter that has read all of these, polled every 10 ms."""
    clock = HandClock()
    sources = [
        ReplaySource(one, clock=clock.now, gpu=str(index), power_limit_w=limit_w) for index, one in enumerate(series)
    ]
    meter = EnergyMeter(sources, clock=clock, record=record)
    clock.on_tick = meter.poll
    clock.turn(9.5)
    return meter


async def window(meter: EnergyMeter, start_s: float = START_S, end_s: float = END_S) -> EnergyWindow:
    return await meter.window(start_s, end_s)


async def test_millijoules_of_the_counter_become_joules_between_any_two_times() -> None:
    found = await window(metered(readings(500.0)))
    assert found.energy_j == pytest.approx(500.0 * (END_S - START_S), rel=1e-3)
    assert found.watts_mean == pytest.approx(500.0, rel=1e-3)
    assert found.integrated_j == pytest.approx(found.energy_j, rel=1e-3)
    assert found.counter_updates == 60
    assert found.update_interval_s == pytest.approx(STEP_S)
    assert (found.sm_mhz_mean, found.temperature_c, found.power_capped_frac) == (1900.0, 50.0, 0.0)
    assert found.flags == ()


async def test_stretches_taken_together_add_up() -> None:
    meter = metered(readings(500.0))
    found = await meter.over([(1.0, 4.0), (5.0, 8.0)])
    assert found.energy_j == pytest.approx(3000.0, rel=1e-3)
    assert found.duration_s == pytest.approx(6.0)


async def test_several_gpus_are_summed() -> None:
    found = await window(metered(readings(500.0), readings(300.0)))
    assert found.watts_mean == pytest.approx(800.0, rel=1e-3)
    assert found.integrated_j == pytest.approx(800.0 * (END_S - START_S), rel=1e-3)


async def test_the_update_interval_is_measured_so_a_fast_counter_needs_less_time() -> None:
    meter = metered(readings(500.0, step_s=0.02))
    found = await window(meter, 2.0, 3.1)
    assert found.counter_updates >= 50
    assert found.update_interval_s == pytest.approx(0.02)


@pytest.mark.parametrize(("seconds", "usable"), [(5.05, True), (4.85, False)])
async def test_a_window_needs_fifty_updates(seconds: float, usable: bool) -> None:
    meter = metered(readings(500.0))
    if usable:
        assert (await window(meter, 2.03, 2.03 + seconds)).counter_updates >= 50
    else:
        with pytest.raises(MeterError, match="it needs 50, measure longer"):
            await window(meter, 2.03, 2.03 + seconds)


async def test_a_counter_that_goes_back_is_refused() -> None:
    meter = metered(readings(counter=lambda t_s, joules: joules - (9e4 if t_s >= 5 else 0)))
    with pytest.raises(MeterError, match="went back by 899"):
        await window(meter)
    late = metered(readings(counter=lambda t_s, joules: joules - (9e4 if t_s >= 1 else 0)))
    assert (await window(late)).watts_mean == pytest.approx(500.0, rel=1e-3)


async def test_a_counter_that_stands_still_is_refused() -> None:
    meter = metered(readings(counter=lambda t_s, joules: min(joules, 1e5 + 2500.0)))
    with pytest.raises(MeterError, match="stands still"):
        await window(meter)


async def test_a_counter_that_pauses_within_the_window_is_refused() -> None:
    frozen = metered(readings(counter=lambda t_s, joules: 1e5 + 2500.0 if 5 <= t_s < 6.5 else joules))
    with pytest.raises(MeterError, match=r"stood still for 1\.\d+ s"):
        await frozen.over([(START_S, END_S)], min_updates=40)


async def test_a_jump_above_what_the_board_can_draw_is_refused() -> None:
    meter = metered(readings(650.0, counter=lambda t_s, joules: joules + (900.0 if t_s >= 5 else 0)))
    with pytest.raises(MeterError, match="above the enforced limit of 700 W"):
        await window(meter)


async def test_a_jump_that_the_power_sensor_did_not_see_is_flagged() -> None:
    found = await window(metered(readings(counter=lambda t_s, joules: joules + (150.0 if t_s >= 5 else 0))))
    assert found.disagreement_frac == pytest.approx(-0.047, abs=0.002)
    assert any("disagrees by -4.7%" in flag for flag in found.flags)


@pytest.mark.parametrize(("watts", "usable"), [(712.0, True), (716.0, False)])
async def test_two_percent_above_the_limit_is_where_a_reading_stops_being_true(watts: float, usable: bool) -> None:
    meter = metered(readings(watts))
    if usable:
        assert (await window(meter)).watts_mean == pytest.approx(watts, rel=1e-3)
    else:
        with pytest.raises(MeterError, match="716 W is above the enforced limit"):
            await window(meter)


@pytest.mark.parametrize("reason", sorted(REFUSED_REASONS))
async def test_a_slowdown_within_the_window_is_refused(reason: ThrottleReason) -> None:
    meter = metered(readings(state=lambda t_s: board(throttle=frozenset({reason} if 5 <= t_s < 5.5 else ()))))
    with pytest.raises(MeterError, match=f"slowed down by {reason}"):
        await window(meter)
    assert (await meter.window(5.9, 9.1, min_updates=20)).flags == ()


async def test_a_board_at_its_power_limit_is_recorded_not_refused() -> None:
    capped = frozenset({ThrottleReason.POWER_CAP})
    found = await window(metered(readings(state=lambda t_s: board(throttle=capped if t_s >= 5 else frozenset()))))
    assert found.power_capped_frac == pytest.approx(0.5, abs=0.03)


async def test_another_process_is_refused_and_ours_is_not() -> None:
    meter = metered(readings(state=lambda t_s: board(processes=frozenset({10, 99} if 5 <= t_s < 5.3 else {10}))))
    meter.allow_processes(lambda pid: pid in {10, 99})
    await window(meter)
    meter.allow_processes(lambda pid: pid == 10)
    with pytest.raises(MeterError, match=r"another process used it during the window \(pid 99\)"):
        await window(meter)


async def test_what_a_board_does_not_tell_is_flagged() -> None:
    blind = [
        Reading(
            t_s=one.t_s,
            counter_mj=one.counter_mj,
            power_w=None,
            state=BoardState(sm_mhz=None, temperature_c=None, throttle=frozenset(), processes=None),
        )
        for one in readings()
    ]
    meter = metered(blind)
    meter.allow_processes(lambda pid: False)
    found = await window(meter)
    assert (found.integrated_j, found.disagreement_frac, found.sm_mhz_mean) == (None, None, None)
    assert found.flags == ("instant power unknown", "processes unknown")


async def test_a_window_before_the_first_update_is_refused() -> None:
    with pytest.raises(MeterError, match="begins before the first counter update"):
        await window(metered(readings()), 0.02, 6.0)


async def test_a_window_waits_for_the_update_after_its_end() -> None:
    meter = metered(readings(seconds=20.0))
    found = await window(meter, 4.0, 9.48)  # read up to 9.5 s so far; the next update comes at 9.5 s
    assert found.energy_j == pytest.approx(500.0 * 5.48, rel=1e-3)


async def test_a_recording_played_again_gives_the_same_window(tmp_path: Path) -> None:
    record = io.StringIO()
    throttled = frozenset({ThrottleReason.POWER_CAP})
    first = await window(metered(readings(300.0, state=lambda t_s: board(throttle=throttled)), record=record))
    file = tmp_path / "trace.jsonl"
    file.write_text(record.getvalue())
    clock = HandClock()
    again = EnergyMeter(load_recording(file, clock=clock.now), clock=clock)
    clock.on_tick = again.poll
    clock.turn(9.3)
    second = await window(again)
    assert second.energy_j == pytest.approx(first.energy_j, rel=1e-3)
    assert second.power_capped_frac == first.power_capped_frac == 1.0


def test_a_line_that_is_no_reading_is_named(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"gpu": "0"}\n')
    with pytest.raises(MeterError, match=r"trace\.jsonl:1"):
        load_recording(file, clock=lambda: 0.0)


class FailingSource:
    """A GPU that falls off the bus."""

    gpu = "3"
    power_limit_w = 700.0

    def counter_mj(self) -> int:
        raise MeterError("GPU 3: is lost")

    def instant_power_w(self) -> float | None:
        return None

    def state(self) -> BoardState:
        return board()


async def test_a_sensor_that_fails_while_the_thread_reads_fails_the_window() -> None:
    with EnergyMeter([FailingSource()], clock=HandClock()) as meter, pytest.raises(MeterError, match="is lost"):
        await meter.window(0.0, 1e9)


class ReadersClock:
    """Time that passes only by the reading thread's looking at it."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now(self) -> float:
        if threading.current_thread() is not threading.main_thread():
            self.time_s += 0.02
        return self.time_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


async def test_the_thread_reads_by_itself() -> None:
    clock = ReadersClock()
    source = ReplaySource(readings(500.0, seconds=30.0), clock=lambda: clock.time_s)
    with EnergyMeter([source], clock=clock) as meter:
        found = await meter.window(1.0, 9.0)
    assert found.watts_mean == pytest.approx(500.0, rel=0.01)


def test_a_meter_without_a_gpu_is_refused() -> None:
    with pytest.raises(MeterError, match="no GPU"):
        EnergyMeter([], clock=HandClock())


async def test_what_an_h200_really_said() -> None:
    """Twelve seconds of its counter: idle, a prefill, then 64 requests decoding near the power limit (tests/data).

    The window lies in the decoding; the sweep's cell `none`, batch 64, prompt 512 was 5.264 J in 7.730 ms: 681 W.
    """
    clock = HandClock()
    recorded = Path(__file__).parents[2] / "data" / "nvml_h200_counter.jsonl"
    meter = EnergyMeter(load_recording(recorded, clock=clock.now), clock=clock)
    meter.allow_processes(lambda pid: True)
    clock.time_s = 211.3
    clock.on_tick = meter.poll
    clock.turn(11.0)
    found = await window(meter, 213.0, 218.3)
    assert found.update_interval_s == pytest.approx(0.1, rel=0.01)
    assert found.watts_mean == pytest.approx(681.0, rel=0.02)
    assert found.disagreement_frac is not None and found.disagreement_frac < 0.03
    assert 0.0 < found.power_capped_frac < 0.2
    with pytest.raises(MeterError, match="counter updates"):
        await window(meter, 213.0, 216.0)
