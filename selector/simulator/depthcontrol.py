"""The draft depth of a simulated engine that chooses it by itself.

    a step is next, and the batch changed or the last choice has run out
      └─ tell the rule what the steps since then accepted ─▶ ask it ─▶ turn every request to the depth, follow its costs

Rules decide on nothing else, so between two choices steps are summed as in any other engine. What a request costs is
bounded by its passes, which are told once each, and by the changes of depth while it runs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import inf

from selector.core.cost import StepCost
from selector.core.depthbatch import DepthBatch
from selector.core.depthengines import OwnDepth
from selector.core.policy import BackendSpec
from selector.simulator.decoding import Decoding
from selector.simulator.depthpasses import DepthPasses
from selector.simulator.draws import AcceptDraws
from selector.simulator.job import Job


class DepthControl:
    """Of one engine, whose batch is `decoding`."""

    def __init__(self, own: OwnDepth, step_at: Mapping[int, StepCost], decoding: Decoding) -> None:
        """`step_at` holds what a step costs at each depth. Raises `InputError` where the rule's file is not here."""
        self._engine = own.start()
        self._step_at = step_at
        self._decoding = decoding
        self._deepest = max(step_at)
        self._asked_step = 0
        self._batch = DepthBatch(())
        self._there: set[Hashable] = set()
        self._told: list[tuple[DepthPasses, int]] = []
        """Of the requests whose passes since then the rule has to be told: those, and how many they had before."""
        self.depth = self._deepest
        """In force."""

    @classmethod
    def of(cls, spec: BackendSpec, decoding: Decoding) -> DepthControl | None:
        """The control of a backend's engine; `None` where its depth is fixed."""
        if spec.own_depth is None:
            return None
        return cls(spec.own_depth, {at.cost.verify_tokens - 1: at.cost.step for at in spec.depths}, decoding)

    def draw(self, job: Job, draws: AcceptDraws) -> None:
        """A request has its first token; its accept length is that of the deepest depth."""
        job._passes = passes = draws.depth_passes(
            job.draw_key,
            tokens=job.output_tokens - 1,
            accept_length=job.accept_length,
            spread=job.accept_spread,
            deepest=self._deepest,
            depth=self.depth,
        )
        job._steps_needed = passes.count

    def rejoins(self, job: Job) -> None:
        """A request comes back that was retracted, perhaps at another depth."""
        self._turn(job)

    def prefilled(self, tokens: int) -> None:
        """A pass over so many prompt tokens ended."""
        self._engine.prefilled(tokens)

    def left_during_step(self) -> None:
        """Somebody left in the middle of a step: it ends as it began, and the next one is chosen for."""
        self._decoding.until_step = self._decoding.step + 1

    def choose(self) -> None:
        """Before a step of a batch that is not empty; nothing happens where the last choice still holds."""
        decoding = self._decoding
        if not decoding.changed and decoding.step < decoding.until_step:
            return
        self._tell()
        jobs = decoding.jobs.values()
        if decoding.changed or not self._batch.size:
            before, self._there = self._there, set(decoding.jobs)
            fresh = [place for place, key in enumerate(decoding.jobs) if key not in before]
            self._batch = DepthBatch([job.told for job in jobs], fresh)
        depth, steps = self._engine.choose(self._batch, decoding.kv_tokens / len(jobs))
        if depth != self.depth:
            self._change(depth)
        self._asked_step = decoding.step
        decoding.until_step = inf if steps is None else decoding.step + steps
        if steps is not None:
            for job in jobs:
                assert isinstance(job._passes, DepthPasses)
                self._told.append((job._passes, job._steps_before + decoding.step - job._started_step))
        decoding.changed = False

    def _tell(self) -> None:
        steps = self._decoding.step - self._asked_step
        if self._told and steps:
            by_request = [passes.accepted(before, before + steps) for passes, before in self._told]
            self._engine.verified(self.depth, list(zip(*by_request, strict=True)))
        self._told.clear()

    def _change(self, depth: int) -> None:
        decoding = self._decoding
        self.depth = depth
        decoding.follow(self._step_at[depth])
        for job in list(decoding.jobs.values()):
            delivered = job.delivered(decoding.step)
            decoding.leave(job)
            self._turn(job)
            job._joined_tokens = delivered
            decoding.join(job)

    def _turn(self, job: Job) -> None:
        passes = job._passes
        assert isinstance(passes, DepthPasses)
        passes.turn(job._steps_before, self.depth)
        job._steps_needed = passes.count
