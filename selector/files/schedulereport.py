"""What an exported schedule is expected to give, batch by batch, against SGLang's own and against fixed depths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from selector.core.adaptiveschedule import Aim, PlannedTier, best_point, depth_points
from selector.core.sglangadaptive import DEFAULT_SCHEDULES, Expected, Schedule, expected, priced, tier_of

SEED = 1
_MISSED = 1.0
"""A fixed depth that misses a target which another meets counts as that much dearer when fixed depths are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """One batch under the exported schedule and beside it. Energies in J per accepted token, decode only."""

    batch: int
    candidates: tuple[int, ...]
    j_per_accepted_token: float
    tbt_ms: float
    meets_target: bool
    best_fixed_depth: int
    """At this very batch."""
    best_fixed_j_per_accepted_token: float
    sglang_default_j_per_accepted_token: float | None
    """SGLang's default schedule, its candidates without a measured cost left out; `None` where none is left."""
    sglang_default_tbt_ms: float | None
    sglang_default_left_out: tuple[int, ...]
    one_depth_j_per_accepted_token: float
    """The fixed depth that is best over all batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleReport:
    """The whole comparison."""

    one_depth: int
    """The one depth that does best if it must serve every batch."""
    batches: tuple[BatchReport, ...]

    def as_document(self) -> dict[str, Any]:
        """Plain data with rounded numbers, for the file."""
        return {
            "best_depth_for_all_batches": self.one_depth,
            "batches": [
                {key: _rounded(value) for key, value in asdict(report).items() if value is not None}
                for report in self.batches
            ],
        }


def schedule_of(planned: Sequence[PlannedTier]) -> Schedule:
    """The tiers by batch. The first serves smaller batches too."""
    return {each.batch: each.tier for each in planned}


def schedule_report(
    aim: Aim, schedule: Schedule, batches: Sequence[int], release: str, graph_batches: Sequence[int] = ()
) -> ScheduleReport:
    """The schedule at those batches, against the defaults of an SGLang release (a key of `DEFAULT_SCHEDULES`)."""
    default = DEFAULT_SCHEDULES[release]
    one_depth = _best_for_all(aim, batches)
    reports = []
    for batch in batches:
        found = _under(aim, schedule, batch, graph_batches)
        if found is None:
            continue
        best = best_point(aim, aim.survivals, batch)
        others = _under(aim, default, batch, graph_batches)
        fixed = next(point for point in depth_points(aim, aim.survivals, batch) if point.depth == one_depth)
        reports.append(
            BatchReport(
                batch=batch,
                candidates=tier_of(schedule, batch, graph_batches).candidate_steps,
                j_per_accepted_token=found.j_per_accepted_token,
                tbt_ms=found.tbt_ms,
                meets_target=aim.meets(found.tbt_ms),
                best_fixed_depth=best.depth,
                best_fixed_j_per_accepted_token=best.j_per_accepted_token,
                sglang_default_j_per_accepted_token=others.j_per_accepted_token if others else None,
                sglang_default_tbt_ms=others.tbt_ms if others else None,
                sglang_default_left_out=priced(tier_of(default, batch, graph_batches), aim.table)[1],
                one_depth_j_per_accepted_token=fixed.j_per_accepted_token,
            )
        )
    return ScheduleReport(one_depth=one_depth, batches=tuple(reports))


def _under(aim: Aim, schedule: Schedule, batch: int, graph_batches: Sequence[int]) -> Expected | None:
    tier = tier_of(schedule, batch, graph_batches)
    if priced(tier, aim.table)[0] is None:
        return None
    return expected(
        tier,
        aim.table,
        aim.survivals,
        aim.slow,
        batch=batch,
        context_tokens=aim.context_tokens,
        draws=Random(SEED),
    )


def _best_for_all(aim: Aim, batches: Sequence[int]) -> int:
    totals: dict[int, float] = dict.fromkeys(aim.table.depths, 0.0)
    for batch in batches:
        best = best_point(aim, aim.survivals, batch)
        for point in depth_points(aim, aim.survivals, batch):
            missed = aim.meets(best.tbt_ms) and not aim.meets(point.tbt_ms)
            totals[point.depth] += point.j_per_accepted_token / best.j_per_accepted_token + _MISSED * missed
    return min(totals, key=lambda depth: (totals[depth], depth))


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def explanation(
    *, about: Mapping[str, Any], report: ScheduleReport, start_depth: int, notes: Sequence[str]
) -> dict[str, Any]:
    """What stands in the exported file for people to read."""
    return {
        **about,
        "start_with": f"--speculative-num-steps {start_depth}",
        "notes": list(notes),
        "expected": report.as_document(),
    }
