"""The schedule that SGLang's adaptive speculation should be given: candidate depths per batch tier, by measured costs.

The engine chooses among the candidates of a tier by acceptance alone (`sglangadaptive`). So a tier gets

    one candidate       the cheapest depth within the target, where no other is cheaper over the band of accept lengths
    two candidates      where the band crosses the accept length at which two depths cost the same; the hysteresis keys
                        are then set so that the engine's thresholds lie where the energies meet:
                        up from d:      average > (accepted drafts at d,  at that accept length)
                        down from d':   average ≤ (accepted drafts at d', at that accept length)

and of all these the one that costs least over the band, with the engine's own rule run on it, its trials included: a
tier with depth 0 and another spends every other interval on the other, whatever that costs.

What a tier costs at its batch is held against the cheapest depth under the load that the tier serves there
(`scheduleaim`). Under an open load that is another load for each tier: two depths cost the same where they do in the
mean over the paces that each of them keeps. A single threshold lies there, so that neither hands over to the other and
gets it back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from selector.core.depthsurvival import accept_lengths
from selector.core.scheduleaim import Aim, Rival, depth_points, rivals_of
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
class PlannedTier:
    """One tier of the schedule, and why."""

    batch: int
    """Smallest batch of the tier; costs were judged at it, as SGLang pads smaller ones up to it."""
    tier: Tier
    best: Rival
    """The best fixed depth in its place, at the expected accept length."""
    meets_target: bool
    """Whether any depth meets the target there."""
    expected: Expected
    """What the engine's rule makes of the tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleGap:
    """A schedule at one batch against the best fixed depth there."""

    excess_frac: float
    """Energy per accepted token above it, under the load that the schedule serves; below 0 only where the schedule
    misses the target or its depths in turn are better than any one."""
    misses: bool
    """Some depth meets the target at the batch and the schedule does not."""


def planned_schedule(aim: Aim, batches: Sequence[int], draws: Draws) -> tuple[PlannedTier, ...]:
    """The tiers for batches of those sizes (the engine's graphs), neighbours alike put together."""
    planned: list[PlannedTier] = []
    for batch in sorted(set(batches)):
        tier = _best_tier(aim, batch, draws)
        if planned and _alike(planned[-1].tier, tier):
            continue
        found = _expected(aim, tier, aim.survivals, batch, draws)
        rivals = rivals_of(aim, aim.survivals, batch, found.tokens_per_ms)
        planned.append(
            PlannedTier(batch=batch, tier=tier, best=rivals.best, meets_target=rivals.any_within, expected=found)
        )
    return tuple(planned)


def schedule_at(
    aim: Aim, schedule: Schedule, batch: int, graph_batches: Sequence[int], draws: Draws
) -> Expected | None:
    """A schedule at a batch, whatever the load of `aim`; `None` where none of its depths has a cost."""
    tier = tier_of(schedule, batch, graph_batches)
    try:
        return _expected(aim, tier, aim.survivals, batch, draws)
    except DomainError:
        return None


def schedule_gap(aim: Aim, batch: int, found: Expected) -> ScheduleGap:
    """How far the schedule that gives `found` at a batch is from the best fixed depth there."""
    rivals = rivals_of(aim, aim.survivals, batch, found.tokens_per_ms)
    return ScheduleGap(
        excess_frac=aim.j_of(found) / rivals.best.j_per_accepted_token - 1.0,
        misses=rivals.any_within and not aim.meets(found.tbt_ms),
    )


def _best_tier(aim: Aim, batch: int, draws: Draws) -> Tier:
    band = aim.band()

    def score(tier: Tier) -> float:
        total = 0.0
        for weight, survivals in zip(_BAND_WEIGHTS, band, strict=True):
            found = _expected(aim, tier, survivals, batch, draws)
            rivals = rivals_of(aim, survivals, batch, found.tokens_per_ms)
            best = rivals.best
            if rivals.any_within:
                missed = not aim.meets(found.tbt_ms)
                total += weight * (aim.j_of(found) / best.j_per_accepted_token + _MISSED * missed)
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
        survivals = aim.with_lengths(factor)
        saved = 0.0
        for point in depth_points(aim, survivals, batch):
            if point.depth in (shallow, deep):
                by_depth = rivals_of(aim, survivals, batch, batch * point.accept_length / point.step_ms).by_depth
                saved += by_depth[shallow].j_per_accepted_token - by_depth[deep].j_per_accepted_token
        return saved

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
