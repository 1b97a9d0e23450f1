"""The emulator and the simulator run the same server model: the same slice costs the same and takes the same time.

The emulated fleet answers on real sockets, but its clock is turned by hand: it moves to the next instant only when the
requests due by then have arrived, so that a busy machine changes nothing. The slice is that of the demo: real prompts
at the arrivals and lengths of two recorded traces.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from selector.cli import main as drafter_selector
from selector.cli.demo import bind, trace_slice
from selector.core.quantile import quantile
from selector.emulator.fleet import EmulatedFleet
from selector.files.depthfile import VARIABLE
from selector.files.fleet import LoadedFleet, load_fleet_with_profiles
from selector.loadgen.replay import TimedRequest
from selector.simulator.engine import SimulatedRequest
from selector.simulator.report import PolicyResult
from selector.simulator.trial import simulate_policy
from tests.emulators import ManualClock, turns
from tests.profiles import PROFILE, sparse_document

ARMS = ("none", "eagle3-k3", "dspark-8", "dflash-16")
SEED = 3
REQUESTS = 60


def fleet_of(folder: Path, gpu_of: Callable[[int], str]) -> LoadedFleet:
    """A backend per arm, on the GPU of its number."""
    backends = [
        f'[[backends]]\nname = "{arm}"\narm = "{arm}"\ngpus = ["{gpu_of(number)}"]\nprofile = "{PROFILE}"\n'
        for number, arm in enumerate(ARMS)
    ]
    path = folder / "fleet.toml"
    path.write_text("\n".join(['version = 1\ntarget = "Qwen3-8B"\n', *backends]))
    return load_fleet_with_profiles(path)


def slice_of(loaded: LoadedFleet, rate_scale: float = 1.0) -> tuple[list[TimedRequest], list[SimulatedRequest]]:
    merged = trace_slice(seconds=30.0, rate_scale=rate_scale)[:REQUESTS]
    assert len(merged) == REQUESTS
    return bind(merged, loaded, SEED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulated:
    """What the emulated fleet says of itself, in its own time."""

    tokens: int
    energy_j: float
    decode_j: float
    prefill_j: float
    idle_j: float
    tbt_ms: list[float]
    ttft_ms: list[float]
    duration_s: float


async def emulated(loaded: LoadedFleet, requests: Sequence[TimedRequest], backend_of: Callable[[int], int]) -> Emulated:
    """Sends every request when it is due to the backend of that number, straight to its url."""
    clock = ManualClock()
    async with (
        EmulatedFleet(loaded, any_port=True, clock=clock, seed=SEED) as fleet,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):

        async def ask(url: str, request: TimedRequest) -> dict[str, Any]:
            fields = {key: value for key, value in request.body.items() if not key.startswith("stream")}
            body = {**fields, "return_meta_info": True}
            async with session.post(f"{url}/v1/chat/completions", json=body, headers=request.headers) as response:
                meta: dict[str, Any] = (await response.json())["choices"][0]["meta_info"]
                return meta

        tasks = []
        for request in requests:
            while clock.next_due_s is not None and clock.next_due_s <= request.due_s:
                clock.step()
            clock.advance_to(request.due_s)
            server = fleet.servers[backend_of(request.number)]
            there = server.engine.running + server.engine.waiting
            tasks.append(asyncio.create_task(ask(server.url, request)))
            while server.engine.running + server.engine.waiting == there:
                await turns(1)
        while clock.step():
            pass
        energies = [gpu.energy(clock.now_s()) for gpu in fleet.gpus.values()]
        metas = await asyncio.gather(*tasks)
    decode_s = [(meta["e2e_latency"] - meta["first_token_latency"], meta["completion_tokens"]) for meta in metas]
    return Emulated(
        tokens=sum(meta["completion_tokens"] for meta in metas),
        energy_j=sum(energy.total_j for energy in energies),
        decode_j=sum(energy.decode_j for energy in energies),
        prefill_j=sum(energy.prefill_j for energy in energies),
        idle_j=sum(energy.idle_j for energy in energies),
        tbt_ms=[1e3 * seconds / (tokens - 1) for seconds, tokens in decode_s if tokens > 1],
        ttft_ms=[1e3 * meta["first_token_latency"] for meta in metas],
        duration_s=clock.now_s(),
    )


def check_equal(measured: Emulated, result: PolicyResult) -> None:
    """Both ran the same steps: what differs is rounding."""
    assert measured.tokens == result.accepted_tokens
    assert len(measured.ttft_ms) == result.requests == REQUESTS
    assert measured.decode_j == pytest.approx(result.decode_j, rel=1e-6)
    assert measured.prefill_j == pytest.approx(result.prefill_j, rel=1e-6)
    assert measured.idle_j == pytest.approx(result.idle_j, rel=1e-6)
    assert measured.energy_j / measured.tokens == pytest.approx(result.j_per_accepted_token, rel=1e-6)
    assert measured.duration_s == pytest.approx(result.duration_s, rel=1e-6)
    for times_ms, p50_ms, p99_ms in (
        (measured.tbt_ms, result.tbt_p50_ms, result.tbt_p99_ms),
        (measured.ttft_ms, result.ttft_p50_ms, result.ttft_p99_ms),
    ):
        assert quantile(times_ms, 0.5) == pytest.approx(p50_ms, rel=1e-6)
        assert quantile(times_ms, 0.99) == pytest.approx(p99_ms, rel=1e-6)


@pytest.mark.parametrize("rate_scale", [1.0, 10.0])
@pytest.mark.parametrize("arm", ARMS)
async def test_one_arm_costs_and_takes_the_same(arm: str, rate_scale: float, tmp_path: Path) -> None:
    loaded = fleet_of(tmp_path, lambda number: f"gpu{number}")
    timed, simulated = slice_of(loaded, rate_scale)
    measured = await emulated(loaded, timed, lambda number: ARMS.index(arm))
    check_equal(measured, simulate_policy(loaded, simulated, f"static:{arm}", seed=SEED))


@pytest.mark.parametrize("by", ["plugin", "schedule"])
async def test_an_engine_that_chooses_its_depth_costs_and_takes_the_same(by: str, tmp_path: Path) -> None:
    depths, schedule, profile, fleet = (tmp_path / name for name in ("depths.json", "a.json", "p.json", "fleet.toml"))
    if by == "plugin":
        exporting = ["export", "depths", "--profile", PROFILE, "--text-type", "romansh", "--out", str(depths)]
        assert drafter_selector(exporting) == 0
        launch = {"env": {VARIABLE: str(depths)}}
    else:  # down whatever is accepted, and from 0 up again
        schedule.write_text('{"1": {"candidate_steps": [0, 1, 3], "up_hysteresis": 9, "down_hysteresis": 9}}')
        launch = {"flags": ["--speculative-adaptive-config", str(schedule)]}
    document = sparse_document()
    document["arms"]["own"] = {
        "algorithm": "EAGLE3",
        "verify_tokens": 4,
        "depths": ["none", "eagle3-k1", "eagle3-k3"],
        "launch": launch,
    }
    profile.write_text(json.dumps(document))
    backend = f'[[backends]]\nname = "b"\narm = "own"\ngpus = ["gpu0"]\nprofile = "{profile}"\n'
    fleet.write_text(f'version = 1\ntarget = "Qwen3-8B"\n{backend}')
    loaded = load_fleet_with_profiles(fleet)
    timed, simulated = slice_of(loaded, 10.0)
    result = simulate_policy(loaded, simulated, "static:own", seed=SEED)
    check_equal(await emulated(loaded, timed, lambda number: 0), result)
    for arm in ("none", "eagle3-k3"):
        fixed = simulate_policy(loaded.with_arm_everywhere(arm), simulated, f"static:{arm}", seed=SEED)
        assert fixed.decode_j != pytest.approx(result.decode_j, rel=1e-3), "it stayed at one depth"


async def test_all_arms_at_once_cost_and_take_the_same(tmp_path: Path) -> None:
    loaded = fleet_of(tmp_path, lambda number: f"gpu{number}")
    timed, simulated = slice_of(loaded)
    measured = await emulated(loaded, timed, lambda number: number % len(ARMS))
    result = simulate_policy(loaded, simulated, "round_robin", seed=SEED)
    assert result.decisions_by_arm == dict.fromkeys(ARMS, REQUESTS // len(ARMS))
    check_equal(measured, result)


@pytest.mark.parametrize("rate_scale", [1.0, 10.0])
async def test_servers_on_one_gpu_cost_and_take_about_the_same(rate_scale: float, tmp_path: Path) -> None:
    """The emulator ends a step at the pace at which it began, when a neighbour starts or stops in the midst of it."""
    loaded = fleet_of(tmp_path, lambda number: "gpu0")
    timed, simulated = slice_of(loaded, rate_scale)
    measured = await emulated(loaded, timed, lambda number: number % len(ARMS))
    result = simulate_policy(loaded, simulated, "round_robin", seed=SEED)
    assert measured.tokens == result.accepted_tokens
    assert measured.energy_j / measured.tokens == pytest.approx(result.j_per_accepted_token, rel=0.03)
    assert quantile(measured.tbt_ms, 0.5) == pytest.approx(result.tbt_p50_ms, rel=0.04)


async def test_another_seed_gives_another_run(tmp_path: Path) -> None:
    loaded = fleet_of(tmp_path, lambda number: f"gpu{number}")
    timed, simulated = slice_of(loaded)
    measured = await emulated(loaded, timed, lambda number: ARMS.index("dspark-8"))
    result = simulate_policy(loaded, simulated, "static:dspark-8", seed=SEED + 1)
    assert measured.tokens == result.accepted_tokens
    assert measured.decode_j != pytest.approx(result.decode_j, rel=1e-6)
