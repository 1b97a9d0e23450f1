"""What a schedule is for, and what every fixed depth would give in the place of one of its tiers.

A tier at a batch b serves λ tokens per ms, and under an open load just that load keeps the batch at b. So each tier
stands for the pace that it keeps itself: a depth in its place would be left with the batch at which it serves λ
(`depthpace`), and is priced there, above idle power. The batch stays b under a closed load, and under any load where it
is full, above nine tenths of the largest: there depths are priced at b.

Targets are judged at b, as the plugin judges them: what is too slow there is no choice there, whatever batch it would
lead to. A depth that has no room for λ comes behind all that have, by its price at b.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from selector.core.depthpace import batch_at_rate, most_requests, step_between
from selector.core.depthsurvival import SlowRequests, accept_lengths, slow_accept_lengths, survivals_with_mean
from selector.core.depthtable import DepthPoint, DepthTable
from selector.core.sglangadaptive import Expected
from selector.errors import DomainError


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
    open_load: bool = False
    """Requests come by themselves, however fast they are served; else clients wait for their answers."""
    idle_w: float = 0.0
    """Power of the server's GPUs while it has no request; counts under an open load alone."""

    def __post_init__(self) -> None:
        """Raises `DomainError` for survivals that do not reach the deepest depth, or numbers that cannot be."""
        if len(self.survivals) < max(self.table.depths[-1], 1) or not 0.0 <= self.band_frac < 1.0:
            raise DomainError(f"{len(self.survivals)} survivals, band {self.band_frac}: no schedule can be made")
        if self.idle_w < 0.0:
            raise DomainError(f"an idle power of {self.idle_w} W: no schedule can be made")

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

    def stays(self, batch: int) -> bool:
        """Whether the batch is the same at every depth."""
        return not self.open_load or batch > most_requests(self.table)

    def j_of(self, found: Expected) -> float:
        """J per accepted token, above idle power under an open load."""
        return found.j_per_accepted_token - self.idle_j_per_ms / found.tokens_per_ms

    @property
    def idle_j_per_ms(self) -> float:
        """What is sunk: under an open load a server idles when it has served what came."""
        return self.idle_w / 1e3 if self.open_load else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A fixed depth in the place of a tier."""

    depth: int
    batch: float
    """That it would be left with; the tier's own where that stays, or where it has no room for the tier's pace."""
    has_room: bool
    """Whether it can serve the tier's pace with a batch that is not full."""
    j_per_accepted_token: float
    """Above idle power under an open load."""
    tbt_ms: float
    """At the quantile that targets are judged at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rivals:
    """Every fixed depth in the place of a tier."""

    by_depth: dict[int, Rival]
    best: Rival
    """The cheapest of those within the target; the one most likely to meet it where none is within at the quantile."""
    any_within: bool
    """Whether any is within the target at the tier's batch."""


def depth_points(aim: Aim, survivals: Sequence[float], batch: int) -> list[DepthPoint]:
    """Every depth at one batch, shallowest first."""
    lengths, slow = accept_lengths(survivals), slow_accept_lengths(survivals, aim.slow)
    return aim.table.points(batch, aim.context_tokens, lengths, slow)


def rivals_of(aim: Aim, survivals: Sequence[float], batch: int, tokens_per_ms: float) -> Rivals:
    """The fixed depths in the place of what serves so many tokens per ms with `batch` requests."""
    points = depth_points(aim, survivals, batch)
    by_depth = {point.depth: _rival(aim, point, batch, tokens_per_ms) for point in points}
    within = [by_depth[point.depth] for point in points if aim.meets(point.tbt_ms)]
    if within or aim.target_ms is None:
        best = min(within, key=lambda rival: (not rival.has_room, rival.j_per_accepted_token, rival.depth))
    else:
        target_ms = aim.target_ms
        likeliest = max(points, key=lambda point: (point.nearness(target_ms), -point.tbt_ms, -point.depth))
        best = by_depth[likeliest.depth]
    return Rivals(by_depth=by_depth, best=best, any_within=bool(within))


def _rival(aim: Aim, point: DepthPoint, batch: int, tokens_per_ms: float) -> Rival:
    depth, tokens = point.depth, point.accept_length
    needed, ms, j = float(batch), point.step_ms, point.step_j
    has_room = True
    if not aim.stays(batch):
        at_pace = batch_at_rate(aim.table, depth, tokens, tokens_per_ms, batch=batch, context_tokens=aim.context_tokens)
        has_room = at_pace < inf
        if has_room:
            needed = at_pace
            ms, j = step_between(aim.table, depth, needed, aim.context_tokens)
    return Rival(
        depth=depth,
        batch=needed,
        has_room=has_room,
        j_per_accepted_token=(j - aim.idle_j_per_ms * ms) / (needed * tokens),
        tbt_ms=point.tbt_ms * ms / point.step_ms,
    )
