"""Engines that choose their own draft depth, as a simulation or a benchmark drives them: the rule, without the engine.

    choose(batch, context) ──▶ a depth, and for how many steps it holds if the batch stays as it is
    verified(depth, passes)    what each of those steps accepted of each request of that batch
    prefilled(tokens)          a pass over prompts was made

SGLang's rule (`sglangadaptive`) may move every `update_interval` batches of a tier and is asked just then, which is
exact. The plugin's (`depthchoice`) is asked before every step in an engine; asked when the batch changes, at the end of
a trial and after each dwell, it moves at most a dwell later than there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import NamedTuple, Protocol

from selector.core.depthbatch import UNTOLD_TEXT, DepthBatch, DepthRequest
from selector.core.depthchoice import DepthChoice
from selector.core.depthtable import DepthTable
from selector.core.sglangadaptive import DepthRule, Schedule, priced, tier_of
from selector.core.types import UNKNOWN_TEXT_TYPE
from selector.errors import DomainError


class DepthStretch(NamedTuple):
    """What an engine chose."""

    depth: int
    steps: int | None
    """At most so many steps of the same batch until it has to be asked again, and told what they accepted.

    `None`: for as long as the batch stays as it is, and nothing has to be told.
    """


class DepthEngine(Protocol):
    """Chooses the depth of one engine. Deterministic, no clock."""

    def choose(self, batch: DepthBatch, context_tokens: float) -> DepthStretch:
        """For a batch of 1 request at least, with so much context per request."""
        ...

    def verified(self, depth: int, passes: Sequence[Sequence[int]]) -> None:
        """Drafts accepted, by pass and request, of steps of the batch and at the depth that were chosen for last."""
        ...

    def prefilled(self, tokens: int) -> None:
        """A pass over so many prompt tokens was made."""
        ...


class ScheduledDepths:
    """SGLang's rule on a schedule; each tier learns from its own batches."""

    def __init__(
        self, schedule: Schedule, table: DepthTable, graph_batches: Sequence[int] = (), *, start_depth: int
    ) -> None:
        """Depths without a cost in `table` are left out. Raises `DomainError` for a tier of which none has one."""
        self._schedule = priced_schedule(schedule, table)
        self._graph_batches = tuple(graph_batches)
        self._rules = {id(tier): DepthRule(tier, start_depth) for tier in self._schedule.values()}

    def choose(self, batch: DepthBatch, context_tokens: float) -> DepthStretch:
        """The depth at which the batch's tier is; neither context nor targets count."""
        rule = self._rule(batch.size)
        return DepthStretch(rule.depth, rule.batches_to_go)

    def verified(self, depth: int, passes: Sequence[Sequence[int]]) -> None:
        """Each pass counts by its mean."""
        if passes:
            rule = self._rule(len(passes[0]))
            for accepted in passes:
                rule.update(fmean(accepted))

    def prefilled(self, tokens: int) -> None:
        """Does not count."""

    def _rule(self, batch: int) -> DepthRule:
        return self._rules[id(tier_of(self._schedule, batch, self._graph_batches))]


def priced_schedule(schedule: Schedule, table: DepthTable) -> Schedule:
    """The schedule with those candidates that have a cost. Raises `DomainError` for a tier of which none has one."""
    known = {}
    for key, tier in schedule.items():
        there, left_out = priced(tier, table)
        if there is None:
            raise DomainError(f"tier {key} has the depths {left_out} alone, of which none has a cost")
        known[key] = there
    return known


class PluginDepths:
    """The choice that the engine plugin makes, told what a pass accepted one step late.

    SGLang's overlapped scheduler launches a step before the results of the one before are there.
    """

    def __init__(self, choice: DepthChoice) -> None:
        self.choice = choice
        self._batch = DepthBatch(())
        self._late: deque[tuple[int, Sequence[int], DepthBatch]] = deque()

    def choose(self, batch: DepthBatch, context_tokens: float) -> DepthStretch:
        """Least energy within the targets, as far as the engine knows."""
        self._batch = batch
        depth = self.choice.choose(batch, context_tokens)
        return DepthStretch(depth, self.choice.keeps_for(batch.size))

    def verified(self, depth: int, passes: Sequence[Sequence[int]]) -> None:
        """All but the last are learnt at once."""
        for accepted in passes:
            self._late.append((depth, accepted, self._batch))
            if len(self._late) > 1:
                self.choice.acceptance.observe(*self._late.popleft())
        if len(passes) > 1:
            self.choice.kept(len(passes) - 1, len(passes[0]))

    def prefilled(self, tokens: int) -> None:
        """Of the time, so much is taken from those who decode."""
        self.choice.prefill.prefilled(tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDepth:
    """That an engine chooses its depth, and how."""

    start: Callable[[], DepthEngine]
    """A rule that has seen nothing yet; each server needs its own."""
    tiers: tuple[tuple[int, tuple[int, ...]], ...]
    """(smallest batch, depths among which it chooses from there on), by rising batch; the first is for smaller ones."""
    takes_tbt_target: bool = False
    """Whether requests bring it their targets, and their text types."""
    default_target_ms: float | None = None
    """Of a request that brings none."""

    def candidates(self, batch: int) -> tuple[int, ...]:
        """Depths among which it chooses at a batch."""
        return self.tiers[max(0, bisect_right(self.tiers, batch, key=lambda tier: tier[0]) - 1)][1]

    def target_ms(self, tbt_target_ms: float | None) -> float | None:
        """What it takes the target of a request to be that asks for `tbt_target_ms`."""
        told = tbt_target_ms if self.takes_tbt_target else None
        return self.default_target_ms if told is None else told

    def told(self, text_type: str, tbt_target_ms: float | None) -> DepthRequest:
        """What it knows of a request that asks for `tbt_target_ms` and is taken to be of `text_type`."""
        target_ms = self.target_ms(tbt_target_ms)
        known = self.takes_tbt_target and text_type != UNKNOWN_TEXT_TYPE
        return DepthRequest(text_type if known else UNTOLD_TEXT, inf if target_ms is None else target_ms)


def tiers_by_batch(
    schedule: Schedule, graph_batches: Sequence[int], most_requests: int
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """`OwnDepth.tiers` of a schedule: where batches are padded to the next graph, a tier begins below its key."""
    tiers: list[tuple[int, tuple[int, ...]]] = []
    for batch in range(1, most_requests + 1):
        depths = tier_of(schedule, batch, graph_batches).candidate_steps
        if not tiers or tiers[-1][1] != depths:
            tiers.append((batch, depths))
    return tuple(tiers)
