"""How SGLang's adaptive speculation picks a draft depth: its own rule, for predicting what a schedule would do.

`--speculative-adaptive-config` holds tiers by batch. A batch, padded to the next CUDA graph's, belongs to the tier of
the largest key at or below it. Each tier keeps an exponential average of accepted drafts and, every `update_interval`
batches after `warmup_batches`, compares it with thresholds between its candidate depths:

    down to the candidate d' below     average ≤ (d' − 0.5, or 0.5 for d' = 0) + down_hysteresis
    up from the candidate d            average > d − 0.5 + up_hysteresis
    at depth 0                         always up, as a trial: nothing is learnt at depth 0
    not above ⌈ceiling_coeff × average⌉ unless it moves up; 0 switches this off

It knows of no cost, no target and no energy. Read off SGLang 0.5.17 and 0.5.23, whose rules are the same; their default
schedules differ in one candidate. tests/engine holds this model against the installed engine's.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from selector.core.depthsurvival import SlowRequests, accept_lengths, slow_accept_lengths
from selector.core.depthtable import DepthTable
from selector.errors import DomainError


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """What is configured for the batches from one key up to the next; the defaults are SGLang's."""

    candidate_steps: tuple[int, ...]
    ema_alpha: float = 0.2
    update_interval: int = 5
    warmup_batches: int = 10
    down_hysteresis: float = -0.25
    up_hysteresis: float = 0.0
    ceiling_coeff: float = 0.0

    def __post_init__(self) -> None:
        """Raises `DomainError` for candidates that are none, below 0, or not in rising order."""
        steps = self.candidate_steps
        if not steps or steps[0] < 0 or list(steps) != sorted(set(steps)) or self.update_interval < 1:
            raise DomainError(f"no tier of a schedule: {self}")


Schedule = Mapping[int, Tier]
"""By the smallest batch of each tier."""


def _steady(*steps: int) -> Tier:
    return Tier(candidate_steps=steps, down_hysteresis=0.0)


DEFAULT_SCHEDULES: Mapping[str, Schedule] = {
    "0.5.17": {1: Tier(candidate_steps=(1, 3, 7)), 8: _steady(0, 1, 3), 32: _steady(0, 1), 64: _steady(0)},
    "0.5.23": {1: Tier(candidate_steps=(1, 3, 5, 7)), 8: _steady(0, 1, 3), 32: _steady(0, 1), 64: _steady(0)},
}
"""What each release runs without a configuration file."""


def tier_of(schedule: Schedule, batch: int, graph_batches: Sequence[int] = ()) -> Tier:
    """The tier that serves `batch`; `graph_batches` are those of the CUDA graphs, to the next of which it is padded."""
    padded = min((size for size in graph_batches if size >= batch), default=batch)
    keys = sorted(schedule)
    return schedule[keys[max(0, bisect_right(keys, padded) - 1)]]


class DepthRule:
    """One tier at work."""

    __slots__ = ("_batches", "_tier", "average", "depth")

    def __init__(self, tier: Tier, initial_depth: int) -> None:
        """Starts at `initial_depth` where it is a candidate, else at the middle one."""
        steps = tier.candidate_steps
        self._tier = tier
        self._batches = 0
        self.depth = initial_depth if initial_depth in steps else steps[len(steps) // 2]
        self.average = self.depth - 1.0

    def update(self, accepted: float) -> None:
        """One verified batch in which requests had `accepted` drafts accepted in the mean."""
        tier = self._tier
        if self.depth > 0:
            self.average += tier.ema_alpha * (accepted - self.average)
        self._batches += 1
        since = self._batches - tier.warmup_batches
        if since > 0 and since % tier.update_interval == 0:
            self.depth = self._next()

    @property
    def batches_to_go(self) -> int | None:
        """Batches until it may take another depth, at least 1; `None` where the tier has one alone."""
        tier = self._tier
        if len(tier.candidate_steps) == 1:
            return None
        since = self._batches - tier.warmup_batches
        return tier.update_interval - (since if since < 0 else since % tier.update_interval)

    def _next(self) -> int:
        tier, steps = self._tier, self._tier.candidate_steps
        at = before = steps.index(self.depth)
        if self.depth == 0:
            target = steps[min(at + 1, len(steps) - 1)]
            if target > 0 and self.average < 0.0:
                self.average = target - 1.0
            return target
        while at > 0 and self.average <= (steps[at - 1] or 1) - 0.5 + tier.down_hysteresis:
            at -= 1
        if at == before:
            while at < len(steps) - 1 and self.average > steps[at] - 0.5 + tier.up_hysteresis:
                at += 1
        if tier.ceiling_coeff > 0.0:
            ceiling = max(1, math.ceil(self.average * tier.ceiling_coeff))
            while at > 0 and self.depth >= steps[at] > ceiling:
                at -= 1
        return steps[at]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a tier gives at one load, in the long run."""

    j_per_accepted_token: float
    tbt_ms: float
    """At the quantile that targets are judged at."""
    tokens_per_ms: float
    """Of all requests together: the load that keeps the batch as it is."""
    depth_shares: Mapping[int, float]
    """Share of the steps at each depth."""
    unpriced_depths: tuple[int, ...] = ()
    """Candidates without a cost in the table, left out: what they would do is not known."""


class Draws(Protocol):
    """What `expected` needs of a source of chance; `random.Random` is one."""

    def random(self) -> float:
        """Uniform in [0, 1)."""
        ...

    def gauss(self, mu: float, sigma: float) -> float:
        """Normal."""
        ...


def priced(tier: Tier, table: DepthTable) -> tuple[Tier | None, tuple[int, ...]]:
    """The tier with the candidates that have a cost, `None` if none has, and the candidates left out."""
    known = tuple(depth for depth in tier.candidate_steps if depth in table.depths)
    left_out = tuple(depth for depth in tier.candidate_steps if depth not in table.depths)
    return (replace(tier, candidate_steps=known) if known else None), left_out


_LEARNING_STEPS = 200
"""Left out at the start of a run, while the average forgets where it began."""
_EACH_DRAWN = 16
"""Batches up to this size are drawn request by request; the mean of a larger one is as good as normal."""


def expected(
    tier: Tier,
    table: DepthTable,
    survivals: Sequence[float],
    slow: SlowRequests,
    *,
    batch: int,
    context_tokens: float,
    draws: Draws,
    steps: int = 2_000,
) -> Expected:
    """Runs the rule on requests whose drafts survive with `survivals`, at one steady load.

    Raises `DomainError` for a tier of which no candidate has a cost.
    """
    known, left_out = priced(tier, table)
    if known is None:
        raise DomainError(f"none of the depths {tier.candidate_steps} has a measured cost")
    counts = dict.fromkeys(known.candidate_steps, 0)
    if len(counts) == 1:
        counts = dict.fromkeys(counts, 1)
    else:
        rule = DepthRule(known, known.candidate_steps[len(known.candidate_steps) // 2])
        for step in range(_LEARNING_STEPS + steps):
            if step >= _LEARNING_STEPS:
                counts[rule.depth] += 1
            rule.update(_mean_accepted(survivals[: rule.depth], batch, draws))
    return _mixture(counts, left_out, table, survivals, slow, batch, context_tokens)


def _mean_accepted(survivals: Sequence[float], batch: int, draws: Draws) -> float:
    """Accepted drafts of a batch at the depth of as many survivals, in the mean over its requests."""
    if not survivals:
        return 0.0
    if batch <= _EACH_DRAWN:
        total = 0
        for _ in range(batch):
            chance = draws.random()
            for survival in survivals:
                if chance >= survival:
                    break
                total += 1
        return total / batch
    mean = math.fsum(survivals)
    second_moment = math.fsum((2 * k - 1) * survival for k, survival in enumerate(survivals, start=1))
    deviation = math.sqrt(max(0.0, second_moment - mean * mean) / batch)
    return min(max(draws.gauss(mean, deviation), 0.0), float(len(survivals)))


def _mixture(
    counts: Mapping[int, int],
    left_out: tuple[int, ...],
    table: DepthTable,
    survivals: Sequence[float],
    slow: SlowRequests,
    batch: int,
    context_tokens: float,
) -> Expected:
    """Energy and time over tokens of steps that were made at several depths."""
    lengths, slow_lengths = accept_lengths(survivals), slow_accept_lengths(survivals, slow)
    ms = j = tokens = slow_tokens = 0.0
    for depth, count in counts.items():
        step_ms, step_j = table.step(depth, batch, context_tokens)
        ms += count * step_ms
        j += count * step_j
        tokens += count * lengths[depth]
        slow_tokens += count * slow_lengths[depth]
    total = sum(counts.values())
    return Expected(
        j_per_accepted_token=j / (batch * tokens),
        tbt_ms=ms / slow_tokens,
        tokens_per_ms=batch * tokens / ms,
        depth_shares={depth: count / total for depth, count in counts.items()},
        unpriced_depths=left_out,
    )
