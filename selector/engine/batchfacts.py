"""What a choice of depth needs to know of the requests in a batch: their tightest TBT target and their mean context.

The router puts a request's target into `custom_params`, which SGLang carries from its HTTP routes to the scheduler
without reading it (`/v1/chat/completions`, `/v1/completions`: a field of the body; `/generate`: of `sampling_params`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from selector.core.targetfield import TARGET_FIELD

CONTEXT_EVERY_STEPS = 32
"""The mean context grows by a few tokens a step, its cost by less than a thousandth."""


class BatchFacts:
    """Facts of the batch that runs; worked out anew only when its requests changed. Not thread-safe."""

    __slots__ = ("_count", "_default_target_ms", "_requests", "_steps", "context_tokens", "target_ms")

    def __init__(self, default_target_ms: float | None) -> None:
        """`default_target_ms` is the target of requests that bring none."""
        self._default_target_ms = default_target_ms
        self._requests: Sequence[Any] | None = None
        self._count = 0
        self._steps = 0
        self.target_ms: float | None = default_target_ms
        """The tightest target of the batch; `None` when no request has one."""
        self.context_tokens = 0.0
        """Mean tokens per request."""

    def update(self, requests: Sequence[Any] | None) -> None:
        """The requests of the next step: SGLang's `Req` objects, or `None` when they are not known.

        SGLang makes a new list whenever requests join or leave, so the same list holds the same requests. What a `Req`
        lacks is an `AttributeError`.
        """
        if requests is None:
            self._requests, self.target_ms, self.context_tokens = None, self._default_target_ms, 0.0
            return
        self._steps += 1
        changed = requests is not self._requests or len(requests) != self._count
        if changed:
            self._requests, self._count = requests, len(requests)
            self.target_ms = self._tightest(requests)
        if changed or self._steps >= CONTEXT_EVERY_STEPS:
            self._steps = 0
            tokens = sum([len(each.origin_input_ids) + len(each.output_ids) for each in requests])
            self.context_tokens = tokens / len(requests) if requests else 0.0

    def _tightest(self, requests: Sequence[Any]) -> float | None:
        tightest = math.inf
        for request in requests:
            params = request.sampling_params.custom_params
            target_ms = target_in(params) if params else None
            if target_ms is None:
                target_ms = self._default_target_ms
            if target_ms is not None and target_ms < tightest:
                tightest = target_ms
        return None if tightest == math.inf else tightest


def target_in(custom_params: object) -> float | None:
    """The target in a request's `custom_params`; `None` when there is none that can be used."""
    value = custom_params.get(TARGET_FIELD) if isinstance(custom_params, dict) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 < value < math.inf:
        return None
    return float(value)
