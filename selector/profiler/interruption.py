"""How long a prefill keeps running requests from their next token.

    settled ├─ quiet ─┤├─ lone prompts, one after another ─┤├─ quiet ─┤ aborted
             steps of T                                      steps of T

In the middle the server makes N steps and P passes, and whatever lies between a pass and the next step counts too:

    stall of a pass = (time of the middle − N · T) / P        T: mean of both quiet parts, since steps get slower as the
                                                              context grows

Less the pass alone (`prefill.measure_lone_prefill`) it is the time to resume of `core.prefillcost`. A lone prompt
gets two tokens, so that it joins the batch for one step: putting it in and taking it out belong to the stall. That
step costs what one with a request less does only where both are padded to one CUDA graph: let the running requests be
one fewer than a captured batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from selector.errors import UpstreamError
from selector.profiler.client import StepTotals, random_prompts
from selector.profiler.rig import Rig, Shape
from selector.profiler.runningbatch import RunningBatch, running_batch

RUNNING_PROMPT_TOKENS = 512
"""Of the running requests: a context in the middle of those that a profile has."""
_ANSWER_TOKENS = 2
_GAP_S = 0.03
"""Between an answer and the next prompt: some steps with nothing to disturb them."""
_EDGE_POLL_S = 0.005
_EDGE_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """What lone prompts did to a running batch."""

    stall_ms: float
    """By which each of them put the next step off."""
    step_ms: float
    """Of a step without."""
    prompts: int
    window_s: float
    """In which they were sent."""


async def measure_interruption(rig: Rig, shape: Shape, lone_tokens: int, *, window_s: float, seed: int) -> Interruption:
    """Sends prompts of `lone_tokens` for `window_s` into a batch of that shape; as long in all it runs without them.

    Raises `UpstreamError` when the server fails, its steps do not tell, or the batch ends before the measurement does.
    """
    async with running_batch(rig, shape, f"{seed} interrupted") as running:
        edges = [await _published(rig, running, shape.batch)]
        await rig.clock.sleep(window_s / 2)
        edges.append(await _published(rig, running, shape.batch))
        prompts = await _lone_prompts(rig, lone_tokens, window_s, seed)
        edges.append(await _published(rig, running, shape.batch))
        await rig.clock.sleep(window_s / 2)
        edges.append(await _published(rig, running, shape.batch))
    begin, first, second, end = edges
    quiet_s = (first.at_s - begin.at_s) + (end.at_s - second.at_s)
    step_s = quiet_s / ((first.steps - begin.steps) + (end.steps - second.steps))
    interrupted_s = second.at_s - first.at_s
    stall_s = (interrupted_s - step_s * (second.steps - first.steps)) / prompts
    if stall_s <= 0.0:
        raise UpstreamError(f"{prompts} prompts took no time from the running batch: was it running?")
    return Interruption(stall_ms=1e3 * stall_s, step_ms=1e3 * step_s, prompts=prompts, window_s=interrupted_s)


async def _lone_prompts(rig: Rig, tokens: int, window_s: float, seed: int) -> int:
    """Prompts one after another, until the time is up; how many."""
    start_s, sent = rig.clock.now(), 0
    while rig.clock.now() - start_s < window_s:
        prompt = random_prompts(f"{seed} interrupting {sent}", 1, tokens, rig.vocab_size)
        await rig.client.generate(prompt, _ANSWER_TOKENS)
        sent += 1
        await rig.clock.sleep(_GAP_S)
    return sent


async def _published(rig: Rig, running: RunningBatch, batch: int) -> StepTotals:
    """The totals at the moment when the server publishes new ones: then they are as old as a poll, not as 15 steps."""
    before = await rig.client.step_totals()
    deadline_s = rig.clock.now() + _EDGE_TIMEOUT_S
    while (now := await rig.client.step_totals()).steps == before.steps and not running.ended:
        if rig.clock.now() > deadline_s:
            raise UpstreamError(f"no step was counted in {_EDGE_TIMEOUT_S:g} s")
        await rig.clock.sleep(_EDGE_POLL_S)
    if running.ended or now.running < batch:
        raise UpstreamError("requests ended before all was measured; the context leaves them too few tokens")
    return now
