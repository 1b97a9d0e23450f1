"""A SGLang server and a GPU in virtual time: real HTTP on a real port, but seconds pass only when all parties wait."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from selector.profiler.client import SglangClient
from selector.profiler.config import SweepArm
from selector.profiler.energy import BoardState, ThrottleReason
from selector.profiler.meter import EnergyMeter
from selector.profiler.rig import Rig
from selector.profiler.server import RunningServer

TICK_S = 0.01
PUBLISH_STEPS = 15


class VirtualClock:
    """Time that jumps to the next moment somebody waits for, once no request is on its way."""

    def __init__(self) -> None:
        self.time_s = 1000.0
        self.on_tick: list[Callable[[], None]] = []
        self.on_the_way = 0
        """Requests that are neither being computed nor answered: time stands still for them."""
        self._waiters: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self.time_s

    async def sleep(self, seconds: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((self.time_s + max(seconds, 0.0), waiter))
        await waiter

    async def drive(self) -> None:
        while True:
            for _ in range(25):
                await asyncio.sleep(0)
            if self.on_the_way > 0:
                continue
            self._waiters = [pair for pair in self._waiters if not pair[1].done()]
            if self._waiters:
                self._advance_to(min(at_s for at_s, _ in self._waiters))
                for at_s, waiter in self._waiters:
                    if at_s <= self.time_s and not waiter.done():
                        waiter.set_result(None)

    def _advance_to(self, target_s: float) -> None:
        while self.time_s < target_s:
            self.time_s = min(self.time_s + TICK_S, target_s)
            for tick in self.on_tick:
                tick()


class FakeGpu:
    """A board whose power is what the fake server sets; its counter moves every 100 ms."""

    gpu = "0"
    power_limit_w = 700.0

    def __init__(self, clock: VirtualClock, idle_w: float = 80.0) -> None:
        self._clock = clock
        self.idle_w = idle_w
        self._from_s = [clock.now()]
        self._watts = [idle_w]
        self._until_j = [0.0]
        self.throttle: frozenset[ThrottleReason] = frozenset()
        self.processes: frozenset[int] = frozenset()
        self.lie_frac = 0.0
        """How far the counter runs ahead of the truth."""

    def set_power(self, at_s: float, watts: float) -> None:
        """Power from a moment on, in order of time; what was set for later moments is dropped."""
        while self._from_s[-1] >= at_s and len(self._from_s) > 1:
            self._from_s.pop(), self._watts.pop(), self._until_j.pop()
        self._until_j.append(self._energy_j(at_s))
        self._from_s.append(at_s)
        self._watts.append(watts)

    def _energy_j(self, at_s: float) -> float:
        index = max(bisect_right(self._from_s, at_s) - 1, 0)
        return self._until_j[index] + self._watts[index] * (at_s - self._from_s[index])

    def counter_mj(self) -> int:
        tick = int(round(self._clock.now() / TICK_S, 6))
        return round(1e3 * (1 + self.lie_frac) * self._energy_j(tick // 10 * 10 * TICK_S)) + 5_000_000

    def instant_power_w(self) -> float:
        return self._watts[max(bisect_right(self._from_s, self._clock.now()) - 1, 0)]

    def state(self) -> BoardState:
        return BoardState(sm_mhz=1980.0, temperature_c=40.0, throttle=self.throttle, processes=self.processes)


@dataclass
class Costs:
    """True costs of the fake: step time and energy linear in batch and context."""

    accept_length: int = 1
    prompt_tokens_per_s: float = 50_000.0
    prefill_w: float = 650.0
    budget_frac: float = 1.0
    """Share of what it costs at the whole verify budget that depends on the batch."""

    def step_ms(self, batch: float, context: float) -> float:
        return 5.0 + 0.04 * batch * self.budget_frac + 2e-5 * batch * context

    def step_j(self, batch: float, context: float) -> float:
        return 2.4 + 0.03 * batch * self.budget_frac + 1e-5 * batch * context


@dataclass
class FakeSglang:
    """Answers as SGLang does, one batch after the other."""

    clock: VirtualClock
    gpu: FakeGpu
    costs: Costs
    max_running: int = 64
    publishes: bool = True
    generations: list[tuple[int, int, int]] = field(default_factory=list)
    """(batch, prompt tokens, new tokens) of every request answered or aborted."""
    prompts: list[list[list[int]]] = field(default_factory=list)
    stops_early: bool = False
    """Answers with a token less than asked for."""
    stepping_frac: float = 1.0
    """Share of the time that its step totals account for."""
    die_after: int | None = None
    """Batches after which the server is gone."""
    counts_prefill: bool = True
    prefill_us: float = 0.0
    url: str = ""
    verdict: bool = True
    """Whether it lets its settings be changed."""
    told: list[dict[str, float]] = field(default_factory=list)
    """What it was told to change."""
    frozen_after: list[int] = field(default_factory=list)
    """Batches answered each time it was told to leave what there is out of its garbage collection."""
    can_freeze: bool = True

    def __post_init__(self) -> None:
        self._busy = asyncio.Lock()
        self._moments = [0.0] * 6
        self._step_ends: list[float] = []
        self._run: tuple[int, int] = (0, 0)
        self._aborted = asyncio.Event()
        self._running = 0
        self._last_launch_s = -1e9
        self.dead = False

    def routes(self) -> web.Application:
        app = web.Application()
        app.add_routes(
            [
                web.get("/health", self._health),
                web.post("/generate", self._generate),
                web.get("/v1/loads", self._loads),
                web.post("/abort_request", self._abort),
                web.get("/server_info", self._info),
                web.post("/set_internal_state", self._set_internal_state),
                *([web.post("/freeze_gc", self._freeze_gc)] if self.can_freeze else []),
            ]
        )
        return app

    async def _health(self, request: web.Request) -> web.Response:
        self._check(request)
        return web.Response()

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.5.17"})

    async def _set_internal_state(self, request: web.Request) -> web.Response:
        self.told.append((await request.json())["server_args"])
        if self.verdict:
            self.costs.budget_frac = self.told[-1]["dspark_force_budget_frac"]
        return web.json_response([self.verdict])

    async def _freeze_gc(self, request: web.Request) -> web.Response:
        self.frozen_after.append(len(self.generations))
        return web.Response(text="Garbage collection frozen.")

    def _check(self, request: web.Request) -> None:
        if self.dead and request.transport is not None:
            request.transport.close()

    async def _generate(self, request: web.Request) -> web.Response:
        self._check(request)
        body = await request.json()
        self.prompts.append(body["input_ids"])
        batch, prompt = len(body["input_ids"]), len(body["input_ids"][0])
        tokens = body["sampling_params"]["max_new_tokens"]
        assert body["sampling_params"]["ignore_eos"] is True
        self.clock.on_the_way -= 1  # it waits for the batch before it
        async with self._busy:
            self.clock.on_the_way += 1
            if self.die_after is not None and len(self.generations) >= self.die_after:
                self.dead = True
                self._check(request)
                return web.Response(status=500)
            answered, steps = await self._compute(batch, prompt, tokens)
        info: dict[str, Any] = {"completion_tokens": answered - self.stops_early}
        if self.costs.accept_length > 1:
            info["spec_verify_ct"] = steps
        return web.json_response([{"output_ids": [], "meta_info": info} for _ in range(batch)])

    async def _compute(self, batch: int, prompt: int, tokens: int) -> tuple[int, int]:
        clock, gpu, costs = self.clock, self.gpu, self.costs
        self.generations.append((batch, prompt, tokens))
        self._aborted.clear()
        self._running = batch
        together = min(batch, self.max_running)
        gpu.set_power(clock.now(), costs.prefill_w)
        start_s = clock.now() + batch * prompt / costs.prompt_tokens_per_s
        self.prefill_us += 1e6 * (start_s - clock.now())
        steps = -(-(tokens - 1) // costs.accept_length)
        at_s, ends = start_s, []
        for step in range(steps):
            context = prompt + 1 + (step + 0.5) * costs.accept_length
            ms = costs.step_ms(together, context)
            gpu.set_power(at_s, costs.step_j(together, context) / ms * 1e3)
            at_s += ms / 1e3
            ends.append(at_s)
        gpu.set_power(at_s, gpu.idle_w)
        self._step_ends, self._run = ends, (together, prompt)
        clock.on_the_way -= 1
        done = asyncio.ensure_future(clock.sleep(at_s - clock.now()))
        stop = asyncio.ensure_future(self._aborted.wait())
        await asyncio.wait({done, stop}, return_when=asyncio.FIRST_COMPLETED)
        clock.on_the_way += 1
        made = bisect_right(ends, clock.now() + 1e-9)
        if not done.done():
            gpu.set_power(clock.now(), gpu.idle_w)
            done.cancel()
        stop.cancel()
        self._moments = self._totals(made)
        self._step_ends, self._running = [], 0
        self._last_launch_s = clock.now()
        answered = tokens if made == steps else 1 + made * costs.accept_length
        return answered, made

    def _totals(self, steps: int) -> list[float]:
        n, b, t, bb, bt, g = self._moments
        if steps:
            batch = self._run[0]
            began_s = self._step_ends[0] - self.costs.step_ms(batch, self._run[1]) / 1e3
            # As in SGLang, the first interval reaches back to the last step of the batch before.
            gap_s = began_s - self._last_launch_s
            spent_us = 1e6 * (self._step_ends[steps - 1] - began_s + (gap_s if gap_s < 2 else 0.0))
            n, b, t = n + steps, b + steps * batch, t + spent_us * self.stepping_frac
            g += steps * batch * self.costs.accept_length
        return [n, b, t, bb, bt, g]

    async def _loads(self, request: web.Request) -> web.Response:
        self._check(request)
        made = bisect_right(self._step_ends, self.clock.now() + 1e-9)
        moments = self._totals(made // PUBLISH_STEPS * PUBLISH_STEPS)
        load: dict[str, Any] = {"num_running_reqs": self._running, "num_waiting_reqs": 0}
        if self.counts_prefill:
            load["total_prefill_busy_us"] = round(self.prefill_us)
        if self.publishes and moments[0] > 0:
            load["decode_moments"] = moments
        return web.json_response({"loads": [load]})

    async def _abort(self, request: web.Request) -> web.Response:
        assert (await request.json())["abort_all"] is True
        self._aborted.set()
        return web.Response()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[SglangClient]:
        runner = web.AppRunner(self.routes())
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]  # port 0
        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(self._sent)
        trace.on_request_end.append(self._answered)
        trace.on_request_exception.append(self._answered)
        try:
            async with aiohttp.ClientSession(trace_configs=[trace]) as session:
                yield SglangClient(session, self.url, self.clock.now)
        finally:
            await runner.cleanup()

    async def _sent(self, *_: object) -> None:
        self.clock.on_the_way += 1

    async def _answered(self, *_: object) -> None:
        self.clock.on_the_way -= 1


class FakeLauncher:
    """Serves every arm from a `FakeSglang`; `accept` gives each arm's accept length, `prepare` may spoil a server."""

    def __init__(self, clock: VirtualClock, gpu: FakeGpu) -> None:
        self.clock = clock
        self.gpu = gpu
        self.accept: dict[str, int] = {}
        self.prepare: Callable[[str, FakeSglang], None] = lambda arm, server: None
        self.launched: list[str] = []
        self.servers: list[FakeSglang] = []
        self.launch_s = 30.0

    @asynccontextmanager
    async def launch(self, arm: SweepArm) -> AsyncIterator[RunningServer]:
        server = FakeSglang(self.clock, self.gpu, Costs(accept_length=self.accept.get(arm.name, 1)))
        self.prepare(arm.name, server)
        self.launched.append(arm.name)
        self.servers.append(server)
        await self.clock.sleep(self.launch_s)
        self.gpu.processes = frozenset({4242})
        async with server.serve() as client:
            yield RunningServer(client=client, argv=("sglang", arm.name), launch_s=self.launch_s)
        self.gpu.processes = frozenset()


@pytest.fixture
async def clock() -> AsyncIterator[VirtualClock]:
    virtual = VirtualClock()
    driver = asyncio.ensure_future(virtual.drive())
    yield virtual
    driver.cancel()


@pytest.fixture
def gpu(clock: VirtualClock) -> FakeGpu:
    return FakeGpu(clock)


@pytest.fixture
def meter(clock: VirtualClock, gpu: FakeGpu) -> EnergyMeter:
    """Polled on every tick of the virtual clock, by no thread."""
    virtual = EnergyMeter([gpu], clock=clock)
    clock.on_tick.append(virtual.poll)
    return virtual


@pytest.fixture
def fake(clock: VirtualClock, gpu: FakeGpu) -> FakeSglang:
    return FakeSglang(clock, gpu, Costs())


@pytest.fixture
def launcher(clock: VirtualClock, gpu: FakeGpu) -> FakeLauncher:
    return FakeLauncher(clock, gpu)


@pytest.fixture
async def rig(clock: VirtualClock, meter: EnergyMeter, fake: FakeSglang) -> AsyncIterator[Rig]:
    async with fake.serve() as client:
        await clock.sleep(1.0)
        yield Rig(client=client, clock=clock, meter=meter, host=None, vocab_size=32_000, context_length=16_384)
