"""How much of an engine's time prompts take from those who decode, reckoned by cost and without a clock.

    share = P / (P + D)       P: ms of prefill passes and the pauses after them, D: ms of decode steps

Both fade with the time they add up to. A request whose steps would give it a token every t ms gets one every
t / (1 − share): prompts come by the second and not by the step, whatever the depth.

The ranks of a tensor-parallel engine must choose alike, and their clocks differ; their batches do not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import log

from selector.errors import DomainError

HALF_LIFE_MS = 4_000.0
"""About as long as an answer takes: a target is met or missed by the mean over it."""
_MOST = 0.9


class PrefillShare:
    """Not thread-safe."""

    __slots__ = ("_decode_ms", "_floor_ms", "_fresh_ms", "_points", "_prefill_ms", "_resume_ms", "_tokens", "frac")

    def __init__(
        self, points: Sequence[tuple[float, float]] = (), *, floor_ms: float = 0.0, resume_ms: float = 0.0
    ) -> None:
        """`points` are (prompt tokens, ms) of a pass, linear between them, from 0, and beyond the last.

        A pass takes `floor_ms` at least, and those who decode go on `resume_ms` later. Without points nothing is
        known of prefill, and its share is 0. Raises `DomainError` for points that do not rise.
        """
        self._points = [(0.0, 0.0), *points]
        if min(floor_ms, resume_ms) < 0.0 or any(t1 <= t0 or m1 < m0 for (t0, m0), (t1, m1) in pairwise(self._points)):
            raise DomainError(f"the time of a prefill must rise with the prompt: {points}, {floor_ms=}, {resume_ms=}")
        self._tokens = [tokens for tokens, _ in self._points]
        self._floor_ms, self._resume_ms = floor_ms, resume_ms
        self._fresh_ms = self._prefill_ms = 0.0
        self._decode_ms = HALF_LIFE_MS
        # As if so much had been decoded without a prompt: the first prompt alone says little.
        self.frac = 0.0
        """The share, 0 to 0.9."""

    def prefilled(self, tokens: int) -> None:
        """A pass over so many prompt tokens is made."""
        if len(self._points) > 1 and tokens > 0:
            self._fresh_ms += max(self._floor_ms, self._work_ms(tokens)) + self._resume_ms

    def stepped(self, ms: float) -> None:
        """A decode step, or several, take so long."""
        fresh_ms, self._fresh_ms = self._fresh_ms, 0.0
        fade = 1.0 / (1.0 + (log(2.0) / HALF_LIFE_MS) * (ms + fresh_ms))
        self._prefill_ms = prefill_ms = (self._prefill_ms + fresh_ms) * fade
        self._decode_ms = decode_ms = (self._decode_ms + ms) * fade
        self.frac = min(_MOST, prefill_ms / (prefill_ms + decode_ms))

    def _work_ms(self, tokens: float) -> float:
        at = min(bisect_right(self._tokens, tokens), len(self._points) - 1)
        (t0, m0), (t1, m1) = self._points[at - 1], self._points[at]
        return m0 + (m1 - m0) * (tokens - t0) / (t1 - t0)
