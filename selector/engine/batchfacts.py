"""What a choice of depth needs to know of the requests in a batch: their tightest TBT target and their mean context.

The router puts a request's target into `custom_params`, which SGLang carries from its HTTP routes to the scheduler
without reading it (`/v1/chat/completions`, `/v1/completions`: a field of the body; `/generate`: of `sampling_params`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from selector.core.targetfield import target_in

CONTEXT_EVERY_STEPS = 32
"""The mean context of the same requests grows by a few tokens a step, its cost by less than a thousandth."""
CHANGED_CONTEXT_EVERY_STEPS = 8
"""At high load requests come and go at almost every step: what one of them does to the mean is as little."""

_MOST_GONE = 256
"""Targets of requests that have left which are kept until they are cleared away together."""


class BatchFacts:
    """Facts of the batch that runs; read anew only as far as its requests changed. Not thread-safe."""

    __slots__ = ("_default_target_ms", "_requests", "_steps", "_targets_ms", "context_tokens", "target_ms")

    def __init__(self, default_target_ms: float | None) -> None:
        """`default_target_ms` is the target of requests that bring none."""
        self._default_target_ms = math.inf if default_target_ms is None else default_target_ms
        self._requests: Sequence[Any] | None = None
        self._targets_ms: dict[str, float] = {}
        self._steps = 0
        self.target_ms: float | None = default_target_ms
        """The tightest target of the batch; `None` when no request has one."""
        self.context_tokens = 0.0
        """Mean tokens per request, of the last batch whose requests were known."""

    def update(self, requests: Sequence[Any] | None) -> None:
        """The requests of the next step: SGLang's `Req` objects, or `None` when they are not known.

        SGLang makes a new list whenever requests join or leave, so the same list holds the same requests. What a `Req`
        lacks is an `AttributeError`.
        """
        self._steps += 1
        if requests is self._requests:
            stale = self._steps >= CONTEXT_EVERY_STEPS
        else:
            stale = not self._requests or self._steps >= CHANGED_CONTEXT_EVERY_STEPS
            self._requests = requests
            self.target_ms = self._tightest(requests or ())
        if stale and requests:
            self._steps = 0
            tokens = sum([len(each.origin_input_ids) + len(each.output_ids) for each in requests])
            self.context_tokens = tokens / len(requests)

    def _tightest(self, requests: Sequence[Any]) -> float | None:
        known, default_ms = self._targets_ms, self._default_target_ms
        for new in [each for each in requests if each.rid not in known]:
            known[new.rid] = target_in(new.sampling_params.custom_params) or default_ms
        rids = [each.rid for each in requests]
        if len(known) > _MOST_GONE + 2 * len(rids):
            known = self._targets_ms = {rid: known[rid] for rid in rids}
        tightest_ms = min(map(known.__getitem__, rids), default=default_ms)
        return None if tightest_ms == math.inf else tightest_ms
