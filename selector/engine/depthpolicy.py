"""In place of SGLang's own choice of depth: a subclass of its `AdaptiveSpeculativeParams` that asks `core.depthchoice`.

SGLang calls, for each decode step,

    forward_batch_generation(batch)     (the plugin's hook hands over the batch's requests, or counts a prompt's tokens)
      └─ get_steps_for_batch(size)      the depth of this step
    on_verify_complete(accepted, size)  a step or two later, when the accepted drafts are known

so what a pass accepted is matched with the depth it ran at by a queue of the steps under way. Should anything here
fail, the engine's own choice goes on from where it stands, and the log says so once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

from selector.core.depthbatch import DepthBatch
from selector.core.depthchoice import DepthChoice
from selector.engine.batchfacts import BatchFacts
from selector.errors import DomainError
from selector.files.depthfile import DepthFile

_LOG = logging.getLogger("drafter_selector")
_MOST_UNDER_WAY = 8
"""Steps that may be launched before the results of the first are there; SGLang overlaps two."""


class Steering:
    """The choice, the facts it rests on and the passes under way. No SGLang in it."""

    def __init__(self, choice: DepthChoice, facts: BatchFacts) -> None:
        self.choice = choice
        self._facts = facts
        self._requests: Sequence[Any] | None = None
        self._under_way: deque[tuple[int, int, DepthBatch | None]] = deque()
        """Depth, requests and, where something is to be learnt of the pass, who they are."""
        self.unmatched = 0
        """Results that belonged to no pass under way, and taught nothing."""

    def announce(self, requests: Sequence[Any] | None) -> None:
        """The requests of the batch that is run next."""
        self._requests = requests

    def prefilled(self, tokens: int) -> None:
        """The batch that is run next are prompts of so many tokens."""
        self.choice.prefill.prefilled(tokens)

    def depth_for(self, batch: int) -> int:
        """The depth of the next step of that many requests."""
        requests, self._requests = self._requests, None
        # What was announced may be a list that grew since; a batch of another size says nothing of this one.
        if requests is not None and len(requests) != batch:
            requests = None
        facts, size = self._facts, max(batch, 1)
        facts.update(requests, size)
        depth = self.choice.choose(facts.batch, facts.context_tokens, size)
        if self.choice.trying:
            facts.read(requests, size)
        self._under_way.append((depth, batch, facts.batch if facts.read_now else None))
        if len(self._under_way) > _MOST_UNDER_WAY:
            self._under_way.popleft()
            self.unmatched += 1
        return depth

    def verified(self, accepted: Sequence[int], batch: int) -> None:
        """Drafts accepted by each request of the oldest pass under way."""
        if not self._under_way:
            self.unmatched += 1
            return
        depth, expected, who = self._under_way.popleft()
        if expected != batch or len(accepted) != batch:
            # Out of step: begin again with the next pass rather than teach the wrong depth.
            self._under_way.clear()
            self.unmatched += 1
            return
        if who is not None:
            self.choice.acceptance.observe(depth, accepted, who)


def steered(own: type[Any], file: DepthFile) -> type[Any]:
    """SGLang's class `own` with the choice of depth replaced by that of `file`."""
    priced = frozenset(each.depth for each in file.depths)

    class DepthPolicy(own):  # type: ignore[misc]  # the base is known only at run time
        """Chooses depths as `file` says; everything else is SGLang's."""

        def __init__(self, initial_steps: int, cfg_path: str | None = None) -> None:
            super().__init__(initial_steps, cfg_path)
            self.drafter_selector: Steering | None = None
            self._graph_batches: list[int] | None = None
            candidates = tuple(self.candidate_steps)
            try:
                choice = file.choice(start_depth=initial_steps, candidates=candidates)
            except DomainError as bad:
                self._keep_own("it cannot choose", bad)
                return
            self.drafter_selector = Steering(choice, BatchFacts(file.tbt_target_ms))
            chosen = [depth for depth in candidates if depth in priced]
            _LOG.info("drafter-selector chooses among depths %s of %s, by %s", chosen, candidates, file.profile)

        def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
            super().set_cuda_graph_bs(cuda_graph_bs)
            self._graph_batches = sorted(cuda_graph_bs) if cuda_graph_bs else None

        def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
            # SGLang captures a depth only for the batches of tiers that list it; here any batch may run at it.
            if self.drafter_selector is not None and step in priced:
                return self._graph_batches
            return super().cuda_graph_bs_for_step(step)  # type: ignore[no-any-return]  # the base is Any

        def get_steps_for_batch(self, batch_size: int) -> int:
            if self.drafter_selector is not None:
                try:
                    return self.drafter_selector.depth_for(batch_size)
                except Exception as failed:  # noqa: BLE001  # a server must not stop over its draft depth
                    self._keep_own("it failed to choose", failed)
            return super().get_steps_for_batch(batch_size)  # type: ignore[no-any-return]  # the base is Any

        def on_verify_complete(self, num_correct_drafts_per_req: list[int], batch_size: int) -> int | None:
            if self.drafter_selector is not None:
                try:
                    self.drafter_selector.verified(num_correct_drafts_per_req, batch_size)
                    return None  # the depth changes with the next batch, not between two
                except Exception as failed:  # noqa: BLE001  # a server must not stop over its draft depth
                    self._keep_own("it failed to learn", failed)
            return super().on_verify_complete(  # type: ignore[no-any-return]  # the base is Any
                num_correct_drafts_per_req, batch_size
            )

        def _keep_own(self, what: str, why: Exception) -> None:
            self.drafter_selector = None
            kind = type(why).__name__
            _LOG.warning("drafter-selector: %s (%s: %s); SGLang's own choice of depth goes on", what, kind, why)

    DepthPolicy.__qualname__ = DepthPolicy.__name__ = own.__name__
    return DepthPolicy


def announcing(worker: Any, batch: Any, *args: object, **kwargs: object) -> None:
    """Before `EAGLEWorkerV2.forward_batch_generation`: tells the policy whose tokens come next."""
    controller = getattr(worker, "adaptive_controller", None)
    steering = getattr(getattr(controller, "params", None), "drafter_selector", None)
    if steering is None:
        return
    is_extend = getattr(getattr(batch, "forward_mode", None), "is_extend", None)
    if is_extend is not None and is_extend():
        steering.prefilled(getattr(batch, "extend_num_tokens", None) or 0)
    else:
        steering.announce(getattr(batch, "reqs", None))
