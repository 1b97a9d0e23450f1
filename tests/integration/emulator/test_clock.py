"""Emulated time: order, catching up, and the timers behind the real clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from selector.emulator.clock import RealClock
from selector.emulator.timer import DeadlineTimer, _LoopTimer, deadline_timer
from tests.emulators import ManualClock, turns


def test_what_is_late_runs_in_the_order_in_which_it_was_due() -> None:
    clock = ManualClock()
    ran: list[float] = []

    def again() -> None:
        ran.append(2.0)
        clock.call_at(2.5, lambda: ran.append(2.5))

    clock.call_at(3.0, lambda: ran.append(3.0))
    clock.call_at(2.0, again)
    clock.call_at(9.0, lambda: ran.append(9.0))
    clock.advance_to(4.0)
    assert ran == [2.0, 2.5, 3.0]
    assert clock.next_due_s == 9.0


def test_wall_time_is_emulated_too() -> None:
    clock = ManualClock()
    start = clock.unix_now_s()
    clock.advance_to(12.5)
    assert clock.unix_now_s() == start + 12.5


async def test_the_real_clock_runs_time_scale_times_as_fast() -> None:
    clock = RealClock(time_scale=1_000.0)
    try:
        outer_s = clock.now_s()
        begun_s = time.monotonic()
        inner_s = clock.now_s()
        due_s = inner_s + 5.0  # 5 ms of real time
        fired = asyncio.get_running_loop().create_future()
        clock.call_at(due_s, lambda: fired.set_result(clock.now_s()))
        assert await fired >= due_s
        # However long this machine took, emulated time went a thousand times as fast as real time.
        inner_s = clock.now_s() - inner_s
        real_s = time.monotonic() - begun_s
        outer_s = clock.now_s() - outer_s
        assert inner_s - 1e-6 <= 1_000.0 * real_s <= outer_s + 1e-6
    finally:
        clock.close()


async def test_a_closed_clock_calls_nothing() -> None:
    clock = RealClock(time_scale=1_000.0)
    called: list[float] = []
    clock.call_at(clock.now_s(), lambda: called.append(clock.now_s()))
    clock.close()
    clock.run_due()
    await turns()
    assert called == []


@pytest.mark.parametrize("make", [deadline_timer, _LoopTimer])
async def test_timers_call_once_at_the_deadline_set_last(
    make: Callable[[asyncio.AbstractEventLoop, Callable[[], None]], DeadlineTimer],
) -> None:
    loop = asyncio.get_running_loop()
    calls: asyncio.Queue[float] = asyncio.Queue()
    timer = make(loop, lambda: calls.put_nowait(time.monotonic()))
    try:
        deadline_s = time.monotonic() + 0.01
        timer.set(deadline_s + 60.0)
        timer.set(deadline_s)
        assert await calls.get() >= deadline_s - 0.001  # the loop's own timer counts whole milliseconds
        timer.set(time.monotonic() - 1.0)
        await calls.get()
        assert calls.empty()
    finally:
        timer.close()


def test_a_time_scale_must_be_above_0() -> None:
    with pytest.raises(ValueError, match="time scale 0"):
        RealClock(time_scale=0)
