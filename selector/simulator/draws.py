"""Accept lengths of one request, drawn pass by pass around its text type's mean.

Every request has random numbers of its own, told by (seed, draw key): the same request draws the same numbers whatever
the policy, the other requests or the order of events. Comparing two policies is therefore a paired comparison.

    request   1 / a_i = (1 / a) · (1 + σ z),  z ~ N(0, 1) cut at ±2.5      σ: relative spread between requests
    pass      tokens = 1 + number of leading drafts that survive, each with the p of a_i, at most w − 1

1/a is what is averaged, so that tokens over passes of many requests comes out as the profile's mean accept length.

The numbers of neighbouring keys are made together, since making them one request at a time costs several times as much.
A request that needs more than its part of such a block goes on with a stream of its own. The passes of one request are
counted by numpy: for a hundred of them that takes a third of a plain loop.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from selector.core.acceptance import accept_length_of
from selector.simulator.depthpasses import DepthPasses

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_TABLE_POINTS = 1025
_CUT_DEVIATIONS = 2.5
_BLOCK_KEYS = 32
_BLOCK_PASSES = 256
_KEPT_BLOCKS = 16
_OWN_STREAM = 1
"""Counter word that tells a request's own stream from the one of its block."""
_ALL_SURVIVE = 1e15


class Passes:
    """The verify passes of one request after its first token."""

    __slots__ = ("_cumulative", "_delivered", "_done", "_tokens", "count", "surplus")

    def __init__(
        self, deviates: FloatArray, scale: float, most_drafts: int, tokens: int, done: Sequence[int] = ()
    ) -> None:
        """Exp(1) `deviates`, one per pass: floor(e · scale) drafts survive, at most `most_drafts`.

        Passes that are `done` already gave so many tokens each, whatever scale they had.
        """
        self._done = done
        self._tokens = tokens
        self._cumulative: list[int] | None = None
        before = sum(done)
        gained = _surviving(deviates, scale, most_drafts)
        gained += 1
        self._delivered = np.add.accumulate(gained)
        """By the passes after those that were done."""
        passes = min(int(self._delivered.searchsorted(tokens - before)) + 1, len(gained))
        self.count = len(done) + passes
        """How many it takes to deliver all tokens."""
        self.surplus = before + (int(self._delivered[passes - 1]) if passes else 0) - tokens
        """What the last pass accepted beyond the end: not delivered, yet reported by SGLang among accepted drafts.

        Below 0 where the deviates do not suffice."""

    def after(self, passes: int) -> int:
        """Tokens delivered after the first `passes` ≥ 1."""
        return self.cumulative[passes - 1]

    @property
    def cumulative(self) -> list[int]:
        """Tokens delivered after each pass; worked out when first asked for."""
        if self._cumulative is None:
            after_done = self._delivered[: self.count - len(self._done)] + sum(self._done)
            self._cumulative = [*accumulate(self._done), *after_done.tolist()]
            self._cumulative[-1] = self._tokens
        return self._cumulative


def _surviving(deviates: FloatArray, scale: float, most_drafts: int) -> IntArray:
    """Leading drafts that survive in each pass."""
    drafts = (deviates * scale).astype(np.int64)
    return np.minimum(drafts, most_drafts, out=drafts)


class AcceptDraws:
    """Draws for one run. Not thread-safe."""

    __slots__ = ("_blocks", "_generator", "_philox", "_seed", "_state")

    def __init__(self, seed: int) -> None:
        self._seed = seed & 0xFFFFFFFFFFFFFFFF
        self._philox = np.random.Philox(key=0)
        self._generator = np.random.Generator(self._philox)
        self._state = self._philox.state
        self._blocks: dict[int, tuple[list[float], FloatArray]] = {}

    def passes(
        self,
        draw_key: int,
        *,
        tokens: int,
        accept_length: float,
        spread: float,
        verify_tokens: int,
        done: Sequence[int] = (),
    ) -> Passes | None:
        """The passes of a request that delivers `tokens`, at least 1, after its first; `None` if each gives one.

        `done` are the tokens of the passes that it has behind it, where its accept length changes in the middle.
        """
        if verify_tokens == 1 or (accept_length <= 1.0 and max(done, default=1) == 1):
            return None
        own, scale, row = self._of_request(draw_key, accept_length, spread, verify_tokens)
        if scale <= 0.0 and not done:
            return None
        most_drafts, expected = verify_tokens - 1, tokens / own
        likely = int(expected + 3.0 * math.sqrt(expected)) + 8
        passes = Passes(row[len(done) : likely], scale, most_drafts, tokens, done)
        if passes.surplus < 0:
            passes = Passes(self._as_many(draw_key, row, tokens)[len(done) :], scale, most_drafts, tokens, done)
        return passes

    def depth_passes(
        self, draw_key: int, *, tokens: int, accept_length: float, spread: float, deepest: int, depth: int
    ) -> DepthPasses:
        """The passes of such a request in an engine that changes its depth; `accept_length` is that at the deepest.

        They begin at `depth`. What would survive of a pass is the same whatever the depth, and the same as in `passes`.
        """
        _, scale, row = self._of_request(draw_key, accept_length, spread, deepest + 1)
        surviving: list[int] = _surviving(self._as_many(draw_key, row, tokens), scale, deepest).tolist()
        return DepthPasses(surviving, tokens, depth)

    def _of_request(
        self, draw_key: int, accept_length: float, spread: float, verify_tokens: int
    ) -> tuple[float, float, FloatArray]:
        """(own accept length, scale of `Passes`, deviates of the first passes) of a request."""
        normal, rows = self._block(draw_key // _BLOCK_KEYS)
        place = draw_key % _BLOCK_KEYS
        inverse = 1.0 + spread * normal[place]
        own = accept_length / (inverse if inverse > 1e-6 else 1e-6)
        own = 1.0 if own < 1.0 else own if own < verify_tokens else float(verify_tokens)
        survival = _survival(own, verify_tokens)
        # P(at least k leading drafts survive) = p^k, so their number is floor(e / −ln p) with e ~ Exp(1).
        scale = _ALL_SURVIVE if survival >= 1.0 else -1.0 / math.log(survival) if survival > 0.0 else 0.0
        return own, scale, rows[place]

    def _as_many(self, draw_key: int, row: FloatArray, tokens: int) -> FloatArray:
        """Deviates of at least `tokens` passes: each delivers a token at least."""
        if tokens <= len(row):
            return row
        stream = self._stream(draw_key, _OWN_STREAM)
        return np.concatenate([row, stream.standard_exponential(tokens - len(row))])

    def _block(self, number: int) -> tuple[list[float], FloatArray]:
        """N(0, 1) deviates of the keys of a block, cut, and Exp(1) ones of their first passes, shape (keys, passes)."""
        known = self._blocks.get(number)
        if known is not None:
            return known
        if len(self._blocks) >= _KEPT_BLOCKS:
            del self._blocks[next(iter(self._blocks))]
        stream = self._stream(number, 0)
        normal = stream.standard_normal(_BLOCK_KEYS).clip(-_CUT_DEVIATIONS, _CUT_DEVIATIONS).tolist()
        made = normal, stream.standard_exponential((_BLOCK_KEYS, _BLOCK_PASSES))
        self._blocks[number] = made
        return made

    def _stream(self, key: int, kind: int) -> np.random.Generator:
        """The generator at the start of a stream; re-keying costs a tenth of a new generator."""
        state = self._state
        state["state"]["key"][:] = (self._seed, key & 0xFFFFFFFFFFFFFFFF)
        state["state"]["counter"][:] = (0, 0, 0, kind)
        state["buffer_pos"] = 4
        state["has_uint32"] = 0
        self._philox.state = state
        return self._generator


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
