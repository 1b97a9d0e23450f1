"""The schedule that SGLang's adaptive speculation should be given: candidate depths per batch tier, by measured costs.

The engine chooses among the candidates of a tier by acceptance alone (`sglangadaptive`). So a tier gets

    one candidate       the cheapest depth within the target, where no other is cheaper over the band of accept lengths
    two candidates      where the band crosses the accept length at which two depths cost the same; the hysteresis keys
                        are then set so that the engine's thresholds lie where the energies meet:
                        up from d:      average > (accepted drafts at d,  at that accept length)
                        down from d':   average ≤ (accepted drafts at d', at that accept length)

and of all these the one that costs least over the band, with the engine's own rule run on it, its trials included: a
tier with depth 0 and another spends every other interval on the other, whatever that costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from selector.core.depthsurvival import SlowRequests, accept_lengths, slow_accept_lengths, survivals_with_mean
from selector.core.depthtable import DepthPoint, DepthTable
from selector.core.sglangadaptive import Draws, Expected, Schedule, Tier, expected, tier_of
from selector.errors import DomainError

_ALPHA, _INTERVAL = 0.1, 40
"""Of a tier with two candidates: the average of an interval has forgotten the depth before (0.9⁴⁰ = 1.5 %)."""
_BAND_WEIGHTS = (0.25, 0.5, 0.25)
_MISSED = 1.0
"""A tier that misses a target which some depth meets counts as twice as dear."""
_WORTH_FRAC = 0.002
"""Two candidates have to save this much over one: a tier that moves costs the engine swaps."""
_SAME_THRESHOLD = 0.02
_HALVINGS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What a schedule is for."""

    table: DepthTable
    survivals: tuple[float, ...]
    """Of every position up to the deepest depth."""
    slow: SlowRequests
    context_tokens: float
    target_ms: float | None
    band_frac: float
    """By how much the accept length may be off either way."""

    def __post_init__(self) -> None:
        """Raises `DomainError` for survivals that do not reach the deepest depth, or a band outside [0, 1)."""
        if len(self.survivals) < max(self.table.depths[-1], 1) or not 0.0 <= self.band_frac < 1.0:
            raise DomainError(f"{len(self.survivals)} survivals, band {self.band_frac}: no schedule can be made")

    def band(self) -> tuple[tuple[float, ...], ...]:
        """The survivals where accept lengths are low, as expected, and high."""
        return self.with_lengths(1.0 - self.band_frac), self.survivals, self.with_lengths(1.0 + self.band_frac)

    def with_lengths(self, factor: float) -> tuple[float, ...]:
        """The survivals at which the deepest accept length is `factor` times the expected one, within what can be."""
        deepest = len(self.survivals)
        length = min(max(factor * accept_lengths(self.survivals)[-1], 1.0 + 1e-6), deepest + 1.0 - 1e-6)
        return survivals_with_mean(self.survivals, length, deepest)

    def meets(self, tbt_ms: float) -> bool:
        """Whether that is within the target."""
        return self.target_ms is None or tbt_ms <= self.target_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTier:
    """One tier of the schedule, and why."""

    batch: int
    """Smallest batch of the tier; costs were judged at it, as SGLang pads smaller ones up to it."""
    tier: Tier
    best: DepthPoint
    """The best fixed depth at the expected accept length."""
    meets_target: bool
    """Whether any depth meets the target there."""
    expected: Expected
    """What the engine's rule makes of the tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleGap:
    """A schedule at one batch against the best fixed depth there."""

    excess_frac: float
    """Energy per accepted token above it; below 0 only where the schedule misses the target."""
    misses: bool
    """The best depth meets the target and the schedule does not."""


def depth_points(aim: Aim, survivals: Sequence[float], batch: int) -> list[DepthPoint]:
    """Every depth at one load, shallowest first."""
    lengths, slow = accept_lengths(survivals), slow_accept_lengths(survivals, aim.slow)
    return aim.table.points(batch, aim.context_tokens, lengths, slow)


def best_point(aim: Aim, survivals: Sequence[float], batch: int) -> DepthPoint:
    """The cheapest depth within the target; the one most likely to meet it where none is within at the quantile."""
    points = depth_points(aim, survivals, batch)
    within = [point for point in points if aim.meets(point.tbt_ms)]
    if within or aim.target_ms is None:
        return min(within, key=lambda point: (point.j_per_accepted_token, point.depth))
    target_ms = aim.target_ms
    return max(points, key=lambda point: (point.nearness(target_ms), -point.tbt_ms, -point.depth))


def planned_schedule(aim: Aim, batches: Sequence[int], draws: Draws) -> tuple[PlannedTier, ...]:
    """The tiers for batches of those sizes (the engine's graphs), neighbours alike put together."""
    planned: list[PlannedTier] = []
    for batch in sorted(set(batches)):
        tier = _best_tier(aim, batch, draws)
        if planned and _alike(planned[-1].tier, tier):
            continue
        best = best_point(aim, aim.survivals, batch)
        planned.append(
            PlannedTier(
                batch=batch,
                tier=tier,
                best=best,
                meets_target=aim.meets(best.tbt_ms),
                expected=_expected(aim, tier, aim.survivals, batch, draws),
            )
        )
    return tuple(planned)


def schedule_gap(
    aim: Aim, schedule: Schedule, batch: int, graph_batches: Sequence[int], draws: Draws
) -> ScheduleGap | None:
    """How far a schedule is from the best fixed depth at a batch; `None` where none of its depths has a cost."""
    tier = tier_of(schedule, batch, graph_batches)
    try:
        found = _expected(aim, tier, aim.survivals, batch, draws)
    except DomainError:
        return None
    best = best_point(aim, aim.survivals, batch)
    return ScheduleGap(
        excess_frac=found.j_per_accepted_token / best.j_per_accepted_token - 1.0,
        misses=aim.meets(best.tbt_ms) and not aim.meets(found.tbt_ms),
    )


def _best_tier(aim: Aim, batch: int, draws: Draws) -> Tier:
    band = aim.band()
    bests = [best_point(aim, survivals, batch) for survivals in band]

    def score(tier: Tier) -> float:
        total = 0.0
        for weight, survivals, best in zip(_BAND_WEIGHTS, band, bests, strict=True):
            found = _expected(aim, tier, survivals, batch, draws)
            if aim.meets(best.tbt_ms):
                missed = not aim.meets(found.tbt_ms)
                total += weight * (found.j_per_accepted_token / best.j_per_accepted_token + _MISSED * missed)
            else:  # no depth meets it: stay with the one that is most likely to
                total += weight * (2.0 - found.depth_shares.get(best.depth, 0.0))
        return total

    singles = [Tier(candidate_steps=(depth,), down_hysteresis=0.0) for depth in aim.table.depths]
    scores = [(score(tier), tier.candidate_steps) for tier in singles]
    least, chosen = min(scores)
    tier = Tier(candidate_steps=chosen, down_hysteresis=0.0)
    for pair in _pairs(aim, batch):
        found = score(pair)
        if found < least - _WORTH_FRAC:
            least, tier = found, pair
    return tier


def _pairs(aim: Aim, batch: int) -> Iterator[Tier]:
    """Tiers of two depths whose energies meet within the band, with thresholds where they do."""
    for shallow, deep in combinations(aim.table.depths, 2):
        meeting = _meeting_lengths(aim, batch, shallow, deep)
        if meeting is None:
            continue
        shallow_accepted, deep_accepted = meeting
        yield Tier(
            candidate_steps=(shallow, deep),
            ema_alpha=_ALPHA,
            update_interval=_INTERVAL,
            up_hysteresis=round(shallow_accepted - (shallow - 0.5), 4),
            down_hysteresis=round(deep_accepted - ((shallow or 1) - 0.5), 4),
        )


def _meeting_lengths(aim: Aim, batch: int, shallow: int, deep: int) -> tuple[float, float] | None:
    """Accepted drafts of both depths where they cost the same energy per token; `None` outside the band."""

    def deeper_saves(factor: float) -> float:
        lengths = accept_lengths(aim.with_lengths(factor))
        j = [aim.table.step(depth, batch, aim.context_tokens)[1] for depth in (shallow, deep)]
        return j[0] / lengths[shallow] - j[1] / lengths[deep]

    low, high = 1.0 - aim.band_frac, 1.0 + aim.band_frac
    if deeper_saves(low) >= 0.0 or deeper_saves(high) <= 0.0:
        return None
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if deeper_saves(middle) < 0.0:
            low = middle
        else:
            high = middle
    lengths = accept_lengths(aim.with_lengths(high))
    return lengths[shallow] - 1.0, lengths[deep] - 1.0


def _expected(aim: Aim, tier: Tier, survivals: Sequence[float], batch: int, draws: Draws) -> Expected:
    return expected(
        tier, aim.table, survivals, aim.slow, batch=batch, context_tokens=aim.context_tokens, draws=draws, steps=1_000
    )


def _alike(one: Tier, other: Tier) -> bool:
    if one.candidate_steps != other.candidate_steps:
        return False
    return math.isclose(one.up_hysteresis, other.up_hysteresis, abs_tol=_SAME_THRESHOLD) and math.isclose(
        one.down_hysteresis, other.down_hysteresis, abs_tol=_SAME_THRESHOLD
    )
