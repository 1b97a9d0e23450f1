"""What a choice of depth needs to know of the requests in a batch: text types, TBT targets and their mean context.

The router puts a request's target and text type into `custom_params`, which SGLang carries from its HTTP routes to the
scheduler without reading it (`/v1/chat/completions`, `/v1/completions`: a field of the body; `/generate`: of
`sampling_params`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from selector.core.depthbatch import UNTOLD_TEXT, DepthBatch, DepthRequest
from selector.core.enginefields import target_in, text_type_in

CONTEXT_EVERY_STEPS = 32
"""The mean context of the same requests grows by a few tokens a step, its cost by less than a thousandth."""
CHANGED_CONTEXT_EVERY_STEPS = 8
"""At high load requests come and go at almost every step: what one of them does to the mean is as little."""

LARGE_BATCH = 8
LOOKED_AT_PER_STEP = 4
LEAST_WAIT_STEPS = 4
"""A batch so large is not looked at before every step, but so that at most so many of its requests come to a step: of
its make-up, too, one request more or less is little."""

_MOST_GONE = 256
"""Requests that have left of which facts are kept until they are cleared away together."""


class BatchFacts:
    """Facts of the batch that runs; read anew only as far as its requests changed. Not thread-safe."""

    __slots__ = (
        "_context_steps",
        "_default_target_ms",
        "_known",
        "_read_steps",
        "_requests",
        "_there",
        "_untold",
        "batch",
        "context_tokens",
        "read_now",
    )

    def __init__(self, default_target_ms: float | None) -> None:
        """`default_target_ms` is the target of requests that bring none."""
        self._default_target_ms = math.inf if default_target_ms is None else default_target_ms
        self._untold = DepthRequest(UNTOLD_TEXT, self._default_target_ms)
        self._requests: Sequence[Any] | None = None
        self._there: set[str] = set()
        self._known: dict[str, DepthRequest] = {}
        self._context_steps = self._read_steps = 0
        self.batch = DepthBatch([self._untold])
        """The requests when they were last looked at; nothing is told of them where they are not known."""
        self.context_tokens = 0.0
        """Mean tokens per request, of the last batch whose requests were known."""
        self.read_now = False
        """Whether `batch` was looked at for the step that is next."""

    def update(self, requests: Sequence[Any] | None, size: int) -> None:
        """The `size` ≥ 1 requests of the next step: SGLang's `Req` objects, or `None` when they are not known.

        SGLang makes a new list whenever requests join or leave, so the same list holds the same requests. What a `Req`
        lacks is an `AttributeError`.
        """
        self._context_steps += 1
        self._read_steps += 1
        smaller = min(size, self.batch.size)
        wait = max(LEAST_WAIT_STEPS, smaller // LOOKED_AT_PER_STEP) if smaller >= LARGE_BATCH else 1
        self.read_now = False
        if self._read_steps >= wait or (requests is None) != (self._requests is None):
            self.read(requests, size)

    def read(self, requests: Sequence[Any] | None, size: int) -> None:
        """Looks at the requests of the next step, whenever they were last looked at; arguments as in `update`."""
        self.read_now = True
        self._read_steps = 0
        changed = requests is not self._requests or self.batch.size != size
        if changed:
            self.batch = self._looked_at(requests) if requests else DepthBatch([self._untold] * size)
        wait = CHANGED_CONTEXT_EVERY_STEPS if changed else CONTEXT_EVERY_STEPS
        if requests and (not self._requests or self._context_steps >= wait):
            self._context_steps = 0
            tokens = sum([len(each.origin_input_ids) + len(each.output_ids) for each in requests])
            self.context_tokens = tokens / len(requests)
        self._requests = requests

    def _looked_at(self, requests: Sequence[Any]) -> DepthBatch:
        before = self._there
        self._there = {each.rid for each in requests}
        fresh = [place for place, each in enumerate(requests) if each.rid not in before]
        return DepthBatch(self._facts(requests), fresh)

    def _facts(self, requests: Sequence[Any]) -> list[DepthRequest]:
        known = self._known
        found = [known.get(each.rid) for each in requests]
        if None in found:
            for new in [each for each in requests if each.rid not in known]:
                told = new.sampling_params.custom_params
                known[new.rid] = DepthRequest(text_type_in(told), target_in(told) or self._default_target_ms)
            if len(known) > _MOST_GONE + 2 * len(requests):
                known = self._known = {each.rid: known[each.rid] for each in requests}
            found = [known[each.rid] for each in requests]
        return found  # type: ignore[return-value]  # every one is known by now
