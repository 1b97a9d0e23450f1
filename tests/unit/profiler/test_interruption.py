"""What a lone prompt costs running requests: found of an emulated server that has a known stall, in emulated time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest

from selector.emulator.app import EmulatorApp
from selector.emulator.asks import Limits
from selector.emulator.engine import EmulatedEngine
from selector.emulator.gpu import EmulatedGpu, energy_report
from selector.emulator.info import Site
from selector.errors import UpstreamError
from selector.files.acceptancepriors import acceptance_model
from selector.files.fleet import Backend, Fleet, LoadedFleet
from selector.files.profile import Profile
from selector.profiler.client import SglangClient
from selector.profiler.interruption import measure_interruption
from selector.profiler.rig import Rig, Shape
from tests.emulators import TARGET, Client, ManualClock, profile_document, turns

PASS_MS, RESUME_MS = 14.0, 6.0
LONE_TOKENS = 128
ARMS = {"none": ("none", 1), "dspark-8": ("DSPARK", 8)}


class Memory:
    """The part of aiohttp's session that a client needs, over an application in memory."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @asynccontextmanager
    async def request(self, method: str, url: str, **options: Any) -> Any:
        path = url.removeprefix("http://memory")
        exchange = self._client.open(path, options["data"], options["headers"], method)
        await exchange.task
        yield Answered(exchange.answer.status, exchange.answer.body)


class Answered:
    def __init__(self, status: int, body: bytes) -> None:
        self.status, self._body = status, body

    async def read(self) -> bytes:
        return self._body


class EmulatedTime:
    """The profiler's clock on the emulator's."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def now(self) -> float:
        return self._clock.now_s()

    async def sleep(self, seconds: float) -> None:
        over = asyncio.Event()
        self._clock.call_at(self._clock.now_s() + seconds, over.set)
        await over.wait()


def emulated(arm: str, *, resume_ms: float, context_tokens: int = 8_192) -> tuple[Rig, ManualClock]:
    document = profile_document(ARMS)
    document["arms"][arm]["prefill_pass"] = {
        "prompt_tokens": LONE_TOKENS, "ms": PASS_MS, "j": 5.0, "resume_ms": resume_ms, "provenance": "made-up",
    }  # fmt: skip
    profile = Profile.model_validate(document)
    backend = Backend.model_validate({"name": "b", "arm": arm, "gpus": ("g",), "profile": "made-up"})
    spec = LoadedFleet(Fleet(version=1, target=TARGET, backends=(backend,)), "f", {"made-up": profile}).specs[0]
    clock = ManualClock()
    gpu = EmulatedGpu("g", spec.cost.idle)
    engine = EmulatedEngine(spec, acceptance_model([(arm, profile)]), [gpu], clock, seed=1)
    site = Site(
        profile=profile,
        arm=profile.arm(arm),
        spec=spec,
        limits=Limits(context_tokens=context_tokens, kv_tokens=spec.max_kv_tokens),
        host="127.0.0.1",
        port=30_000,
        max_queued_requests=None,
    )
    app = EmulatorApp(site, engine, lambda: energy_report([gpu], clock))
    time = EmulatedTime(clock)
    rig = Rig(
        client=SglangClient(Memory(Client(app, clock)), "http://memory", time.now),
        clock=time,
        meter=None,
        host=None,
        vocab_size=32_000,
        context_length=context_tokens,
    )
    return rig, clock


async def found(rig: Rig, clock: ManualClock, arm: str, *, window_s: float = 5.2) -> Any:
    shape = Shape(batch=7, prompt_tokens=512, verify_tokens=ARMS[arm][1])
    task = asyncio.ensure_future(measure_interruption(rig, shape, LONE_TOKENS, window_s=window_s, seed=1))
    while not task.done():
        await turns()
        clock.step()
    return task.result()


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("resume_ms", [0.0, RESUME_MS])
async def test_the_stall_of_a_lone_prompt_is_its_pass_and_the_time_to_resume(arm: str, resume_ms: float) -> None:
    rig, clock = emulated(arm, resume_ms=resume_ms)
    interruption = await found(rig, clock, arm)
    assert interruption.prompts > 30
    # The made-up server has no graphs: the one step that the prompt joins costs 0.1 ms more for each of its tokens.
    joined_ms = 0.1 * ARMS[arm][1]
    assert interruption.stall_ms == pytest.approx(PASS_MS + resume_ms + joined_ms, abs=0.3)


async def test_the_steps_beside_are_those_of_the_batch_alone() -> None:
    rig, clock = emulated("none", resume_ms=RESUME_MS)
    interruption = await found(rig, clock, "none")
    # 5.0 + 0.1 a request, and the keys and values that grow from 512 tokens on.
    assert interruption.step_ms == pytest.approx(5.7 + 7 * 3e-5 * 900, rel=0.02)
    assert interruption.window_s == pytest.approx(5.2, abs=0.1)


async def test_a_batch_that_ends_too_soon_is_refused() -> None:
    rig, clock = emulated("dspark-8", resume_ms=RESUME_MS, context_tokens=1_024)
    with pytest.raises(UpstreamError, match="requests ended before"):
        await found(rig, clock, "dspark-8")
