"""Time and energy of a decode step: closed batches, driven in one of two ways.

    difference   submit ───prefill───┬── n₁ steps ──┐ answered               the same batch twice, with few and with
                 submit ───prefill───┴──────── n₂ steps ────────┐ answered   many tokens; prefill and both ends cancel:
                                                                             step = (long − short) / (n₂ − n₁)

    steady       submit ───prefill───── steps ─────────────────────┐ aborted one run; the server's step totals and the
                             settled ├────── window ──────┤                  energy counter are read at both ends of a
                                                                             window in which the whole batch decodes

`difference` needs nothing but complete answers, and pays every prefill twice. `steady` needs `decode_moments` in
/v1/loads (SGLang ≥ 0.5.17) and takes about half the time. Those totals are published every 15 steps or so: a window's
step count is uncertain by that many, but its mean step time is not, and its energy per step is mean power × mean step
time, since power is constant while the same batch decodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

from selector.errors import MeterError, UpstreamError
from selector.profiler.cells import DecodeRepeat, Metered
from selector.profiler.client import Generation, StepTotals, random_prompts
from selector.profiler.config import Method
from selector.profiler.energy import MIN_UPDATES, Span
from selector.profiler.rig import Rig, Shape
from selector.profiler.runningbatch import RunningBatch, running_batch

_SHORT_TOKENS = 16
_PILOT_TOKENS = 64
_LENGTH_MARGIN = 1.15
"""A long run is made this much longer than the pilot says, since steps get slower as the context grows."""

_WINDOW_POLL_S = 0.25
_MIN_PIECE_S = 0.5
_CLOCK_TOLERANCE_FRAC = 0.15
"""Step times must add up to the window, but for the steps not yet published at its ends."""

_MAX_ROUNDS = 40


async def measure_decode(rig: Rig, shape: Shape, *, method: Method, window_s: float, seed: int) -> DecodeRepeat:
    """One measurement of a decode cell.

    Raises `MeterError` when the energy must not be used, `UpstreamError` when the server fails or the batch did not run
    together.
    """
    if method == "steady":
        return await _steady(rig, shape, window_s, seed)
    return await _difference(rig, shape, window_s, seed)


class _Runs:
    """Answered batches of one length, with the host's energy beside them."""

    def __init__(self, rig: Rig, shape: Shape, seed: int, label: str) -> None:
        self._rig, self._shape, self._seed, self._label = rig, shape, seed, label
        self.done: list[Generation] = []
        self.host_j: float | None = None if rig.host is None else 0.0

    async def run(self, tokens: int) -> Generation:
        rig, shape = self._rig, self._shape
        prompts = random_prompts(
            f"{self._seed} {self._label} {len(self.done)}", shape.batch, shape.prompt_tokens, rig.vocab_size
        )
        before_j = rig.host_j()
        answered = await rig.client.generate(prompts, tokens)
        after_j = rig.host_j()
        if before_j is not None and after_j is not None and self.host_j is not None:
            self.host_j += after_j - before_j
        if set(answered.completion_tokens) != {tokens}:
            raise UpstreamError(f"asked for {tokens} tokens each, got {sorted(set(answered.completion_tokens))}")
        self.done.append(answered)
        return answered

    @property
    def duration_s(self) -> float:
        return sum(run.duration_s for run in self.done)

    @property
    def spans(self) -> list[Span]:
        return [(run.start_s, run.end_s) for run in self.done]

    def steps(self) -> float:
        """Decode steps of all runs; the first token of an answer comes from prefill."""
        if self._shape.verify_tokens == 1:
            return sum(run.completion_tokens[0] - 1 for run in self.done)
        counts = [count for run in self.done for count in run.verify_counts]
        known = [count for count in counts if count is not None]
        if len(known) < len(counts):
            raise UpstreamError("answers lack meta_info.spec_verify_ct: does this server speculate?")
        return sum(known) / self._shape.batch


async def _difference(rig: Rig, shape: Shape, window_s: float, seed: int) -> DecodeRepeat:
    limit = rig.context_length - shape.prompt_tokens - shape.verify_tokens - 1
    if limit < _SHORT_TOKENS + _PILOT_TOKENS:
        raise UpstreamError(f"prompts of {shape.prompt_tokens} tokens leave {limit} of the context to decode in")
    pilot = _Runs(rig, shape, seed, "pilot")
    short_s = (await pilot.run(_SHORT_TOKENS)).duration_s
    token_s = ((await pilot.run(_SHORT_TOKENS + _PILOT_TOKENS)).duration_s - short_s) / _PILOT_TOKENS
    wanted = _SHORT_TOKENS + math.ceil(_LENGTH_MARGIN * window_s / max(token_s, 1e-5))
    long_tokens = min(limit, wanted)

    short, long = _Runs(rig, shape, seed, "short"), _Runs(rig, shape, seed, "long")
    while long.duration_s - short.duration_s < window_s:
        if len(long.done) == _MAX_ROUNDS:
            raise UpstreamError(f"{_MAX_ROUNDS} rounds of {long_tokens} tokens do not fill {window_s} s")
        await short.run(_SHORT_TOKENS)
        await long.run(long_tokens)

    gained_s = long.duration_s - short.duration_s
    steps = long.steps() - short.steps()
    rounds = len(long.done)
    step_j = None
    window = await rig.energy(long.spans, min_updates=1)
    less = await rig.energy(short.spans, min_updates=1)
    if window is not None and less is not None:
        gained_updates = window.counter_updates - less.counter_updates
        if gained_updates < MIN_UPDATES:
            raise MeterError(f"{gained_s:.2f} s of difference hold {gained_updates} counter updates; measure longer")
        step_j = (window.energy_j - less.energy_j) / steps
    host_step_j = None if long.host_j is None or short.host_j is None else (long.host_j - short.host_j) / steps
    return DecodeRepeat(
        seed=seed,
        step_ms=1e3 * gained_s / steps,
        step_j=step_j,
        host_step_j=host_step_j,
        accept_length=rounds * (long_tokens - _SHORT_TOKENS) / steps,
        context_tokens=shape.prompt_tokens + (_SHORT_TOKENS + long_tokens) / 2,
        steps=steps,
        window_s=gained_s,
        energy=Metered.of(window) if window else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """One window in steady state."""

    idle: StepTotals
    start: StepTotals
    end: StepTotals
    host_j: float | None

    @property
    def duration_s(self) -> float:
        return self.end.at_s - self.start.at_s


async def _steady(rig: Rig, shape: Shape, window_s: float, seed: int) -> DecodeRepeat:
    pieces: list[_Piece] = []
    while (left_s := window_s - sum(piece.duration_s for piece in pieces)) > 0:
        if len(pieces) == _MAX_ROUNDS:
            raise UpstreamError(f"{_MAX_ROUNDS} runs do not fill {window_s} s")
        pieces.append(await _steady_piece(rig, shape, left_s, f"{seed} steady {len(pieces)}"))

    duration_s = sum(piece.duration_s for piece in pieces)
    steps = sum(piece.end.steps - piece.start.steps for piece in pieces)
    stepping_s = sum(piece.end.step_s - piece.start.step_s for piece in pieces)
    tokens = sum(piece.end.tokens - piece.start.tokens for piece in pieces)
    if abs(stepping_s - duration_s) > _CLOCK_TOLERANCE_FRAC * duration_s:
        raise UpstreamError(f"steps of {stepping_s:.2f} s in a window of {duration_s:.2f} s: something else ran in it")
    step_s = stepping_s / steps
    window = await rig.energy([(piece.start.at_s, piece.end.at_s) for piece in pieces])
    host = [piece.host_j for piece in pieces if piece.host_j is not None]
    middle = [
        1 + (piece.start.tokens + piece.end.tokens) / 2 / shape.batch - piece.idle.tokens / shape.batch
        for piece in pieces
    ]
    return DecodeRepeat(
        seed=seed,
        step_ms=1e3 * step_s,
        step_j=None if window is None else window.watts_mean * step_s,
        host_step_j=sum(host) / duration_s * step_s if len(host) == len(pieces) else None,
        accept_length=tokens / (steps * shape.batch),
        context_tokens=shape.prompt_tokens + fmean(middle),
        steps=steps,
        window_s=duration_s,
        energy=Metered.of(window) if window else None,
    )


async def _steady_piece(rig: Rig, shape: Shape, window_s: float, seed: str) -> _Piece:
    async with running_batch(rig, shape, seed) as running:
        before_j = rig.host_j()
        end = await _window_end(rig, shape, running, window_s)
        after_j = rig.host_j()
    return _Piece(
        idle=running.idle,
        start=running.start,
        end=end,
        host_j=None if before_j is None or after_j is None else after_j - before_j,
    )


async def _window_end(rig: Rig, shape: Shape, running: RunningBatch, window_s: float) -> StepTotals:
    """The last totals while the whole batch decoded, `window_s` after it settled or when it ended before."""
    start = last = running.start
    while not running.ended and last.at_s - start.at_s < window_s:
        left_s = window_s - (last.at_s - start.at_s)
        await rig.clock.sleep(min(_WINDOW_POLL_S, max(left_s, 0.01)))
        now = await rig.client.step_totals()
        if now.running < shape.batch:
            break
        last = now
    if last.at_s - start.at_s < min(_MIN_PIECE_S, window_s):
        raise UpstreamError("the batch ended before a window could be taken; the context leaves too few tokens")
    return last
