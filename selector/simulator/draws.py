"""Accept lengths of one request, drawn step by step around its text type's mean.

Every request has random numbers of its own, told by (seed, draw key): the same request draws the same numbers whatever
the policy, the other requests or the order of events. Comparing two policies is therefore a paired comparison.

    request   1 / a_i = (1 / a) · (1 + σ z),  z ~ N(0, 1) cut at ±2.5      σ: relative spread between requests
    step      tokens = 1 + number of leading drafts that survive, each with the p of a_i, at most w − 1

1/a is what is averaged, so that tokens over steps of many requests comes out as the profile's mean accept length.

The numbers of neighbouring keys are made together, since making them one request at a time costs several times as much.
A request that needs more than its part of such a block goes on with a stream of its own.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from selector.core.acceptance import accept_length_of
from selector.simulator.job import Job

_TABLE_POINTS = 1025
_CUT_DEVIATIONS = 2.5
_BLOCK_KEYS = 32
_BLOCK_STEPS = 256
_KEPT_BLOCKS = 64
_OWN_STREAM = 1
"""Counter word that tells a request's own stream from the one of its block."""


class AcceptDraws:
    """Draws for one run. Not thread-safe."""

    __slots__ = ("_blocks", "_generator", "_philox", "_seed", "_state")

    def __init__(self, seed: int) -> None:
        self._seed = seed & 0xFFFFFFFFFFFFFFFF
        self._philox = np.random.Philox(key=0)
        self._generator = np.random.Generator(self._philox)
        self._state = self._philox.state
        self._blocks: dict[int, tuple[list[float], npt.NDArray[np.float64]]] = {}

    def _stream(self, key: int, kind: int) -> np.random.Generator:
        """The generator at the start of a stream; re-keying costs a tenth of a new generator."""
        state = self._state
        state["state"]["key"][:] = (self._seed, key & 0xFFFFFFFFFFFFFFFF)
        state["state"]["counter"][:] = (0, 0, 0, kind)
        state["buffer_pos"] = 4
        state["has_uint32"] = 0
        self._philox.state = state
        return self._generator

    def _block(self, number: int) -> tuple[list[float], npt.NDArray[np.float64]]:
        """N(0, 1) deviates of the keys of a block, and Exp(1) deviates of shape (keys, steps)."""
        known = self._blocks.get(number)
        if known is not None:
            return known
        if len(self._blocks) >= _KEPT_BLOCKS:
            del self._blocks[next(iter(self._blocks))]
        stream = self._stream(number, 0)
        normal: list[float] = stream.standard_normal(_BLOCK_KEYS).tolist()
        made = self._blocks[number] = normal, stream.standard_exponential((_BLOCK_KEYS, _BLOCK_STEPS))
        return made

    def steps(
        self, draw_key: int, *, tokens: int, accept_length: float, spread: float, verify_tokens: int
    ) -> tuple[npt.NDArray[np.int64], int]:
        """Tokens delivered after each step, up to `tokens` (shape (steps,), empty for 0 tokens), and a surplus.

        The surplus is what the last step accepted beyond the end of the answer: not delivered, yet reported by SGLang
        among the accepted drafts.
        """
        if tokens <= 0:
            return np.empty(0, dtype=np.int64), 0
        if verify_tokens == 1 or accept_length <= 1.0:
            return np.arange(1, tokens + 1, dtype=np.int64), 0
        number, row = divmod(draw_key, _BLOCK_KEYS)
        normal, exponential = self._block(number)
        z = min(max(normal[row], -_CUT_DEVIATIONS), _CUT_DEVIATIONS)
        own = accept_length / max(1.0 + spread * z, 1e-6)
        own = min(max(own, 1.0), float(verify_tokens))
        survival = _survival(own, verify_tokens)
        if survival <= 0.0:
            return np.arange(1, tokens + 1, dtype=np.int64), 0
        if survival >= 1.0:
            every = np.arange(1, -(-tokens // verify_tokens) + 1, dtype=np.int64) * verify_tokens
            return np.minimum(every, tokens), int(every[-1]) - tokens
        # P(at least k leading drafts survive) = p^k, so their number is floor(e / −ln p) with e ~ Exp(1).
        scale = -1.0 / math.log(survival)
        expected = tokens / own
        want = min(int(expected + 3.0 * math.sqrt(expected)) + 8, _BLOCK_STEPS)
        cumulative = _delivered(exponential[row, :want], scale, verify_tokens)
        if cumulative[-1] < tokens:
            cumulative = self._drawn_further(draw_key, cumulative, tokens, own, scale, verify_tokens)
        steps = int(cumulative.searchsorted(tokens)) + 1
        cumulative = cumulative[:steps]
        surplus = int(cumulative[-1]) - tokens
        cumulative[-1] = tokens
        return cumulative, surplus

    def _drawn_further(
        self,
        draw_key: int,
        cumulative: npt.NDArray[np.int64],
        tokens: int,
        own: float,
        scale: float,
        verify_tokens: int,
    ) -> npt.NDArray[np.int64]:
        """`cumulative`, continued until all `tokens` are delivered."""
        parts = [cumulative]
        delivered = int(cumulative[-1])
        row = draw_key % _BLOCK_KEYS
        rest = self._block(draw_key // _BLOCK_KEYS)[1][row, len(cumulative) :]
        if len(rest):
            parts.append(_delivered(rest, scale, verify_tokens) + delivered)
            delivered = int(parts[-1][-1])
        stream = self._stream(draw_key, _OWN_STREAM)
        while delivered < tokens:
            want = int((tokens - delivered) / own * 1.15) + 8
            parts.append(_delivered(stream.standard_exponential(want), scale, verify_tokens) + delivered)
            delivered = int(parts[-1][-1])
        return np.concatenate(parts)

    def draw_for(self, job: Job, verify_tokens: int) -> None:
        """Draws the verify passes of a job of two tokens or more, as `steps` does."""
        tokens = job.output_tokens - 1
        if verify_tokens == 1 or job.accept_length <= 1.0:
            job._steps_needed = tokens
            return
        job._cumulative, job._surplus = self.steps(
            job.draw_key,
            tokens=tokens,
            accept_length=job.accept_length,
            spread=job.accept_spread,
            verify_tokens=verify_tokens,
        )
        job._steps_needed = len(job._cumulative)


def _delivered(exponential: npt.NDArray[np.float64], scale: float, verify_tokens: int) -> npt.NDArray[np.int64]:
    """Tokens delivered after each step, from Exp(1) deviates."""
    drafts = exponential * scale
    np.minimum(drafts, verify_tokens - 1, out=drafts)
    gained = drafts.astype(np.int64)
    gained += 1
    return gained.cumsum()


@lru_cache(maxsize=64)
def _table(verify_tokens: int) -> tuple[list[float], list[float]]:
    rates = [i / (_TABLE_POINTS - 1) for i in range(_TABLE_POINTS)]
    return [accept_length_of(p, verify_tokens) for p in rates], rates


def _survival(accept_length: float, verify_tokens: int) -> float:
    """The survival rate of an accept length, by a table (within 1e-6 of the exact inverse)."""
    lengths, rates = _table(verify_tokens)
    right = bisect_right(lengths, accept_length)
    if right >= len(lengths):
        return 1.0
    low, high = lengths[right - 1], lengths[right]
    return rates[right - 1] + (accept_length - low) / (high - low) * (rates[right] - rates[right - 1])
