"""How much of an engine's time prompts take from those who decode, reckoned by cost and without a clock.

    share = P / (P + D)       P: ms of prefill passes and the pauses after them, D: ms of decode steps

Both fade with the time they add up to. A request whose steps would give it a token every t ms gets one every
t / (1 − share): prompts come by the second and not by the step, whatever the depth.

The ranks of a tensor-parallel engine must choose alike, and their clocks differ; their batches do not. (What the router
reckons with is `forecast.PrefillShare`: by its clock, over what it sent.)
"""

from __future__ import annotations

from math import log

from selector.core.prefillcost import PrefillCost

HALF_LIFE_MS = 4_000.0
"""About as long as an answer takes: a target is met or missed by the mean over it."""
_MOST = 0.9


class EnginePrefillShare:
    """Not thread-safe."""

    __slots__ = ("_cost", "_decode_ms", "_fresh_ms", "_prefill_ms", "frac")

    def __init__(self, cost: PrefillCost | None = None) -> None:
        """Without `cost` nothing is known of prefill, and its share is 0."""
        self._cost = cost
        self._fresh_ms = self._prefill_ms = 0.0
        self._decode_ms = HALF_LIFE_MS
        # As if so much had been decoded without a prompt: the first prompt alone says little.
        self.frac = 0.0
        """The share, 0 to 0.9."""

    def prefilled(self, tokens: int) -> None:
        """A pass over so many prompt tokens is made."""
        if self._cost is not None:
            self._fresh_ms += self._cost.stall_ms(tokens)

    def stepped(self, ms: float) -> None:
        """A decode step, or several, take so long."""
        fresh_ms, self._fresh_ms = self._fresh_ms, 0.0
        fade = 1.0 / (1.0 + (log(2.0) / HALF_LIFE_MS) * (ms + fresh_ms))
        self._prefill_ms = prefill_ms = (self._prefill_ms + fresh_ms) * fade
        self._decode_ms = decode_ms = (self._decode_ms + ms) * fade
        self.frac = min(_MOST, prefill_ms / (prefill_ms + decode_ms))
