"""A monitor follows counters for ever: what it adds up, what it leaves out, and how it is served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from selector.errors import MeterError
from selector.profiler.energy import BoardState, ThrottleReason
from selector.profiler.meterserver import MeterServer
from selector.profiler.monitor import EnergyMonitor
from selector.profiler.replay import load_recording

RECORDED = Path(__file__).parents[2] / "data" / "nvml_h200_counter.jsonl"


class Board:
    """A GPU whose counter is what the test says."""

    power_limit_w = 700.0

    def __init__(self, gpu: str = "0") -> None:
        self.gpu = gpu
        self.mj = 5_000_000
        self.broken: str | None = None

    def counter_mj(self) -> int:
        if self.broken:
            raise MeterError(self.broken)
        return self.mj

    def instant_power_w(self) -> float | None:
        return 321.0

    def state(self) -> BoardState:
        throttle = frozenset({ThrottleReason.POWER_CAP})
        return BoardState(sm_mhz=1980.0, temperature_c=41.0, throttle=throttle, processes=None)


class Time:
    """Monotonic seconds and Unix nanoseconds, moved by hand."""

    def __init__(self) -> None:
        self.s = 100.0

    def now_s(self) -> float:
        return self.s

    def unix_ns(self) -> int:
        return round(self.s * 1e9)


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def monitor(board: Board, time: Time) -> EnergyMonitor:
    return EnergyMonitor([board], now_s=time.now_s, unix_ns=time.unix_ns)


def step(monitor: EnergyMonitor, board: Board, time: Time, seconds: float, mj: int) -> None:
    time.s += seconds
    board.mj += mj
    monitor.poll()


def test_the_total_follows_the_counter_and_knows_when_it_moved(monitor, board, time) -> None:
    step(monitor, board, time, 0.1, 50_000)
    first = monitor.read()[0]
    step(monitor, board, time, 0.05, 0)
    assert monitor.read()[0].edge_ns == first.edge_ns
    step(monitor, board, time, 0.05, 40_000)
    last = monitor.read()[0]
    assert (last.energy_mj - first.energy_mj, last.edge_ns - first.edge_ns) == (40_000, 100_000_000)
    assert (last.power_w, last.dropped_jumps, last.stalled) == (321.0, 0, False)


@pytest.mark.parametrize("jump_mj", [-5_000_000, 900_000_000])
def test_a_counter_that_falls_or_leaps_is_left_out_and_counted(monitor, board, time, jump_mj) -> None:
    step(monitor, board, time, 0.1, 50_000)
    step(monitor, board, time, 0.1, jump_mj)
    step(monitor, board, time, 0.1, 60_000)
    reading = monitor.read()[0]
    assert reading.energy_mj == 5_000_000 + 110_000
    assert reading.dropped_jumps == 1


def test_a_counter_that_stands_still_is_stalled_until_it_moves(monitor, board, time) -> None:
    step(monitor, board, time, 6.0, 0)
    assert monitor.read()[0].stalled
    step(monitor, board, time, 0.1, 400_000)
    assert not monitor.read()[0].stalled


def test_after_a_failure_there_is_no_old_number(board, time) -> None:
    with EnergyMonitor([board], now_s=time.now_s, unix_ns=time.unix_ns) as monitor:
        board.broken = "GPU 0: NVML cannot read its total energy counter"
        while monitor.failure is None:
            pass
        with pytest.raises(MeterError, match="cannot read its total energy"):
            monitor.read()
    with pytest.raises(MeterError):
        EnergyMonitor([board], now_s=time.now_s, unix_ns=time.unix_ns)
    with pytest.raises(MeterError, match="no GPU"):
        EnergyMonitor([], now_s=time.now_s, unix_ns=time.unix_ns)


def test_a_recorded_counter_adds_up_to_itself() -> None:
    rows = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    time = Time()
    time.s = rows[0]["t_s"]
    [source] = load_recording(RECORDED, clock=time.now_s)
    monitor = EnergyMonitor([source], now_s=time.now_s, unix_ns=time.unix_ns)
    while time.s < rows[-1]["t_s"]:
        time.s += 0.005
        monitor.poll()
    reading = monitor.read()[0]
    assert reading.dropped_jumps == 0
    assert reading.energy_mj == rows[-1]["counter_mj"]


@pytest.fixture
async def url(monitor: EnergyMonitor) -> AsyncIterator[str]:
    runner = web.AppRunner(MeterServer(monitor, None, "host0").app(), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_energy_is_served_as_json_events_and_metrics(url, monitor, board, time) -> None:
    step(monitor, board, time, 0.1, 50_000)
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{url}/energy") as response:
            document = await response.json()
        gpu = document["gpus"][0]
        assert (gpu["id"], gpu["energy_mj"], gpu["timestamp_ns"]) == ("host0:0", 5_050_000, 100_100_000_000)
        assert (gpu["power_w"], gpu["sm_mhz"], gpu["throttle"]) == (321.0, 1980.0, ["power_cap"])
        assert document["host_energy_j"] is None
        async with session.get(f"{url}/energy/stream?interval_s=0.1") as response:
            lines = [await response.content.readline() for _ in range(4)]
        assert json.loads(lines[0].removeprefix(b"data: "))["gpus"] == document["gpus"]
        assert lines[2].startswith(b"data: ")
        async with session.get(f"{url}/metrics") as response:
            text = await response.text()
        assert 'drafter_selector_gpu_energy_joules_total{gpu="host0:0"} 5050.0' in text
        assert 'drafter_selector_gpu_sm_hertz{gpu="host0:0"} 1.98e+09' in text
        for bad in ("0", "x", "nan", "inf"):
            async with session.get(f"{url}/energy/stream?interval_s={bad}") as response:
                assert response.status == 400


async def test_a_broken_meter_says_so(url, monitor) -> None:
    monitor.failure = "GPU 0: it fell off the bus"
    async with aiohttp.ClientSession() as session:
        for path in ("energy", "metrics", "health"):
            async with session.get(f"{url}/{path}") as response:
                assert response.status == 503
                assert (await response.json())["detail"] == "GPU 0: it fell off the bus"
        async with session.get(f"{url}/energy/stream") as response:
            assert b"event: error" in await asyncio.wait_for(response.read(), 5)
