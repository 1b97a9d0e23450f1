"""A closed batch that decodes together on an idle server for as long as somebody looks at it.

idle ── submit ───prefill───── steps ──────────────────┐ aborted
                     settled ├─── the context's body ──┤
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from selector.errors import UpstreamError
from selector.profiler.client import Generation, StepTotals, random_prompts
from selector.profiler.rig import Rig, Shape

_SETTLE_STEPS = 32
_SETTLE_POLL_S = 0.05
_SETTLE_TIMEOUT_S = 60.0
"""Prefill of the largest batch included."""
_KV_USE_FRAC = 0.9
_DRAIN_TIMEOUT_S = 20.0
_MAX_TOKENS = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBatch:
    """The batch, once all of it decodes together."""

    idle: StepTotals
    """Totals before it was submitted."""
    start: StepTotals
    """Totals once it had settled."""
    answer: asyncio.Task[Generation]

    @property
    def ended(self) -> bool:
        """Whether it ran out of tokens, or failed."""
        return self.answer.done()


@asynccontextmanager
async def running_batch(rig: Rig, shape: Shape, seed: str) -> AsyncIterator[RunningBatch]:
    """Runs a batch for the length of the context, or until its answers are as long as the server allows.

    Raises `UpstreamError` when the server fails, is not idle before, or does not run the batch together.
    """
    prompts = random_prompts(seed, shape.batch, shape.prompt_tokens, rig.vocab_size)
    idle = await _drained(rig)
    answer = asyncio.create_task(rig.client.generate(prompts, _answer_tokens(rig, shape, idle)))
    try:
        start = await _settled(rig, shape, idle, answer)
        yield RunningBatch(idle=idle, start=start, answer=answer)
    finally:
        if not answer.done():
            await rig.client.abort_all()
        with suppress(UpstreamError):  # an aborted batch may be answered with an error; one that failed was seen above
            await answer


def _answer_tokens(rig: Rig, shape: Shape, idle: StepTotals) -> int:
    """The longest answers with which the whole batch still runs at once.

    SGLang admits requests that ignore the end token only while all of them, at full length, fit the KV cache.
    """
    limit = min(_MAX_TOKENS, rig.context_length - shape.prompt_tokens - shape.verify_tokens - 1)
    if idle.kv_capacity_tokens is not None:
        share = int(_KV_USE_FRAC * idle.kv_capacity_tokens / shape.batch)
        limit = min(limit, share - shape.prompt_tokens - shape.verify_tokens)
    if limit < 2 * _SETTLE_STEPS:
        raise UpstreamError(
            f"{shape.batch} prompts of {shape.prompt_tokens} tokens leave no room to decode in KV cache or context"
        )
    return limit


async def _settled(rig: Rig, shape: Shape, idle: StepTotals, batch: asyncio.Task[Generation]) -> StepTotals:
    """Totals once the whole batch has decoded together for a while."""
    last, together = idle, 0.0
    deadline_s = rig.clock.now() + _SETTLE_TIMEOUT_S
    while not batch.done():
        if rig.clock.now() > deadline_s:
            raise UpstreamError(f"the {shape.batch} requests did not decode together within {_SETTLE_TIMEOUT_S:g} s")
        await rig.clock.sleep(_SETTLE_POLL_S)
        now = await rig.client.step_totals()
        if now.steps == last.steps:
            continue
        full = math.isclose(now.request_steps - last.request_steps, shape.batch * (now.steps - last.steps))
        together = together + now.steps - last.steps if full else 0.0
        last = now
        if together >= _SETTLE_STEPS:
            return now
    batch.result()  # raises what the server answered, if it refused the batch
    if last.steps == idle.steps:
        raise UpstreamError("/v1/loads has no decode_moments: use method 'difference'")
    raise UpstreamError(
        f"the {shape.batch} requests never decoded together; "
        "is there room for all (--max-running-requests, KV cache), and context left to decode in?"
    )


async def _drained(rig: Rig) -> StepTotals:
    """Totals of a server on which nothing runs any more; an aborted batch takes a moment to leave its counts."""
    deadline_s = rig.clock.now() + _DRAIN_TIMEOUT_S
    while (totals := await rig.client.step_totals()).running:
        if rig.clock.now() > deadline_s:
            raise UpstreamError(f"{totals.running} other requests run on the server")
        await rig.clock.sleep(_SETTLE_POLL_S)
    return totals
