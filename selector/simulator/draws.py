"""Accept lengths of one request, drawn step by step around its text type's mean.

Every request has a random stream of its own, keyed by (seed, draw key): the same request draws the same numbers
whatever the policy, the other requests or the order of events. Comparing two policies is therefore a paired comparison.

    request   1 / a_i = (1 / a) · (1 + σ z),  z ~ N(0, 1) cut at ±2.5      σ: relative spread between requests
    step      tokens = 1 + number of leading drafts that survive, each with the p of a_i, at most w − 1

1/a is what is averaged, so that tokens over steps of many requests comes out as the profile's mean accept length.
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


class AcceptDraws:
    """Draws for one run. Not thread-safe."""

    __slots__ = ("_generator", "_philox", "_seed", "_state")

    def __init__(self, seed: int) -> None:
        self._seed = seed & 0xFFFFFFFFFFFFFFFF
        self._philox = np.random.Philox(key=0)
        self._generator = np.random.Generator(self._philox)
        self._state = self._philox.state

    def _stream(self, draw_key: int) -> np.random.Generator:
        """The generator at the start of the stream of `draw_key`; re-keying costs a tenth of a new generator."""
        state = self._state
        state["state"]["key"][:] = (self._seed, draw_key & 0xFFFFFFFFFFFFFFFF)
        state["state"]["counter"][:] = 0
        state["buffer_pos"] = 4
        state["has_uint32"] = 0
        self._philox.state = state
        return self._generator

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
        stream = self._stream(draw_key)
        z = min(max(float(stream.standard_normal()), -_CUT_DEVIATIONS), _CUT_DEVIATIONS)
        own = accept_length / max(1.0 + spread * z, 1e-6)
        own = min(max(own, 1.0), float(verify_tokens))
        survival = _survival(own, verify_tokens)
        if survival <= 0.0:
            return np.arange(1, tokens + 1, dtype=np.int64), 0
        if survival >= 1.0:
            every = np.arange(1, -(-tokens // verify_tokens) + 1, dtype=np.int64) * verify_tokens
            return np.minimum(every, tokens), int(every[-1]) - tokens
        log_survival = math.log(survival)
        parts: list[npt.NDArray[np.int64]] = []
        delivered = 0
        while delivered < tokens:
            want = int((tokens - delivered) / own * 1.15) + 8
            # P(at least k leading drafts survive) = p^k, so their number is floor(ln u / ln p).
            drafts = np.log(1.0 - stream.random(want)) / log_survival
            gained = np.minimum(drafts.astype(np.int64) + 1, verify_tokens)
            total = np.cumsum(gained) + delivered
            parts.append(total)
            delivered = int(total[-1])
        cumulative = parts[0] if len(parts) == 1 else np.concatenate(parts)
        steps = int(np.searchsorted(cumulative, tokens)) + 1
        cumulative = cumulative[:steps]
        surplus = int(cumulative[-1]) - tokens
        cumulative[-1] = tokens
        return cumulative, surplus

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
