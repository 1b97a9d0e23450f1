"""Time and energy of a prefill, and power without work."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from selector.profiler.client import random_prompts
from selector.profiler.clock import Clock
from selector.profiler.energy import EnergyWindow
from selector.profiler.meter import EnergyMeter
from selector.profiler.rig import Rig

_IN_FLIGHT = 2
"""Batches submitted at a time: while one is computed the next is being received, so that the GPU does not wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillCost:
    """Prefill of prompts of one length."""

    prompts_at_once: int
    prompts: int
    ms: float
    """Per prompt."""
    j: float | None
    energy: EnergyWindow | None


async def measure_prefill(
    rig: Rig, prompt_tokens: int, *, window_s: float, batch_tokens: int, seed: int
) -> PrefillCost:
    """Prompts that are answered with one token, back to back for `window_s`; the server must not cache prefixes.

    Prompts shorter than `batch_tokens` are sent as many at a time as fit in it: the cost is that of a busy server, on
    which prompts share a pass over the weights. Raises `MeterError` and `UpstreamError`.
    """
    at_once = max(1, batch_tokens // prompt_tokens)

    async def one_batch(label: str) -> None:
        prompts = random_prompts(f"{seed} prefill {label}", at_once, prompt_tokens, rig.vocab_size)
        await rig.client.generate(prompts, 1)

    await one_batch("warm-up")
    start_s = rig.clock.now()

    async def stream(number: int) -> int:
        sent = 0
        while rig.clock.now() - start_s < window_s:
            await one_batch(f"{number} {sent}")
            sent += 1
        return sent

    try:
        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(stream(number)) for number in range(_IN_FLIGHT)]
    except ExceptionGroup as failed:  # all streams talk to one server: the first failure tells the cause
        raise failed.exceptions[0] from None
    end_s = rig.clock.now()
    prompts = at_once * sum(task.result() for task in streams)
    energy = await rig.energy([(start_s, end_s)])
    return PrefillCost(
        prompts_at_once=at_once,
        prompts=prompts,
        ms=1e3 * (end_s - start_s) / prompts,
        j=None if energy is None else energy.energy_j / prompts,
        energy=energy,
    )


async def measure_lone_prefill(rig: Rig, prompt_tokens: int, *, window_s: float, seed: int) -> PrefillCost:
    """Prompts that are answered with one token, one after the other, each in a pass of its own.

    Time is the server's own, from the launch of a pass to its result, where it counts that: a client's would hold the
    way there and back. Energy is mean power × that time. Raises `MeterError` and `UpstreamError`.
    """

    async def one(label: str) -> None:
        await rig.client.generate(random_prompts(f"{seed} lone prefill {label}", 1, prompt_tokens, rig.vocab_size), 1)

    await one("warm-up")
    before = await rig.client.step_totals()
    start_s, prompts = rig.clock.now(), 0
    while rig.clock.now() - start_s < window_s:
        await one(f"{prompts}")
        prompts += 1
    end_s = rig.clock.now()
    busy_s = (await rig.client.step_totals()).prefill_s - before.prefill_s
    energy = await rig.energy([(start_s, end_s)])
    seconds = (busy_s if 0.0 < busy_s < end_s - start_s else end_s - start_s) / prompts
    return PrefillCost(
        prompts_at_once=1,
        prompts=prompts,
        ms=1e3 * seconds,
        j=None if energy is None else energy.energy_j / (end_s - start_s) * seconds,
        energy=energy,
    )


async def measure_idle(meter: EnergyMeter, clock: Clock, *, settle_s: float, window_s: float) -> EnergyWindow:
    """Power of the GPUs without work. Raises `MeterError`."""
    await clock.sleep(settle_s)
    start_s = clock.now()
    await clock.sleep(window_s)
    return await meter.window(start_s, clock.now())
