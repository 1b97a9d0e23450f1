"""What a schedule gives batch by batch, and at a pace: the batch that it would be left with under a load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from selector.core.depthpace import most_requests
from selector.core.scheduleaim import Aim
from selector.core.sglangadaptive import Draws, Expected, Schedule, expected, priced, tier_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AtPace:
    """A schedule under one load."""

    batch: float
    j_per_accepted_token: float
    """Above idle power under an open load."""
    tbt_ms: float
    """At the quantile that targets are judged at."""


class PacedSchedule:
    """A schedule at work on the requests of an aim. Every batch is run once."""

    def __init__(self, aim: Aim, schedule: Schedule, graph_batches: Sequence[int], draws: Callable[[], Draws]) -> None:
        """`draws` gives each run a source of chance; batches are padded to the next of `graph_batches`."""
        self._aim = aim
        self._schedule = schedule
        self._graph_batches = tuple(graph_batches)
        self._draws = draws
        self._known: dict[int, Expected | None] = {}

    def at_batch(self, batch: int) -> Expected | None:
        """`None` where no depth of the tier has a cost."""
        if batch not in self._known:
            aim, tier = self._aim, tier_of(self._schedule, batch, self._graph_batches)
            self._known[batch] = (
                None
                if priced(tier, aim.table)[0] is None
                else expected(
                    tier,
                    aim.table,
                    aim.survivals,
                    aim.slow,
                    batch=batch,
                    context_tokens=aim.context_tokens,
                    draws=self._draws(),
                )
            )
        return self._known[batch]

    def at_pace(self, tokens_per_ms: float) -> AtPace | None:
        """Where a load that has grown to that pace leaves it; `None` without room for it, or a cost on the way.

        It grows until the first batch that serves the pace. Between that and the one before, which may belong to
        another tier, it spends its time in turn: tokens and energy per ms go in straight lines.
        """
        below: tuple[float, float, float] | None = None
        for batch in range(1, int(most_requests(self._aim.table)) + 1):
            found = self.at_batch(batch)
            if found is None:
                return None
            pace = found.tokens_per_ms
            here = pace, self._aim.j_of(found) * pace, found.tbt_ms
            if pace >= tokens_per_ms:
                if below is None:
                    return AtPace(batch=1.0, j_per_accepted_token=self._aim.j_of(found), tbt_ms=found.tbt_ms)
                part = (tokens_per_ms - below[0]) / (pace - below[0])
                j_per_ms, tbt_ms = (low + part * (high - low) for low, high in zip(below[1:], here[1:], strict=True))
                return AtPace(batch=batch - 1 + part, j_per_accepted_token=j_per_ms / tokens_per_ms, tbt_ms=tbt_ms)
            below = here
        return None
