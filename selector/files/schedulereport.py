"""What an exported schedule is expected to give, batch by batch, against SGLang's own and against fixed depths.

All of a row are under the load that the exported tier serves at the row's batch. Under an open load the others are at
the batch that this load would leave each of them with, and J are above idle power; under a closed load, and where a
batch is full, all are at the row's batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from selector.core.adaptiveschedule import PlannedTier
from selector.core.scheduleaim import Aim, Rivals, rivals_of
from selector.core.schedulepace import AtPace, PacedSchedule
from selector.core.sglangadaptive import DEFAULT_SCHEDULES, Expected, Schedule, priced, tier_of

SEED = 1
_MISSED = 1.0
"""A fixed depth that misses a target which another meets counts as that much dearer when fixed depths are compared, as
does one without room for the load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """One batch under the exported schedule and beside it. Energies in J per accepted token, decode only."""

    batch: int
    candidates: tuple[int, ...]
    j_per_accepted_token: float
    tbt_ms: float
    meets_target: bool
    best_fixed_depth: int
    """Of those that meet the target at this batch."""
    best_fixed_batch: float
    """The batch that it is compared at; so for the others."""
    best_fixed_j_per_accepted_token: float
    sglang_default_batch: float | None
    """SGLang's default schedule, its candidates without a measured cost left out; `None` where none is left, or it has
    no room for the load."""
    sglang_default_j_per_accepted_token: float | None
    sglang_default_tbt_ms: float | None
    sglang_default_left_out: tuple[int, ...]
    """Candidates of this batch."""
    one_depth_batch: float | None
    """The fixed depth that is best over all batches; `None` where it has no room for the load."""
    one_depth_j_per_accepted_token: float | None


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
    ours, theirs = (PacedSchedule(aim, each, graph_batches, lambda: Random(SEED)) for each in (schedule, default))
    known = {batch: found for batch in batches if (found := ours.at_batch(batch)) is not None}
    rivals = {batch: rivals_of(aim, aim.survivals, batch, found.tokens_per_ms) for batch, found in known.items()}
    one_depth = _best_for_all(aim, list(rivals.values()))
    reports = []
    for batch, found in known.items():
        best, fixed = rivals[batch].best, rivals[batch].by_depth[one_depth]
        compared = fixed if fixed.has_room else None
        others = _beside(aim, theirs, batch, found)
        reports.append(
            BatchReport(
                batch=batch,
                candidates=tier_of(schedule, batch, graph_batches).candidate_steps,
                j_per_accepted_token=aim.j_of(found),
                tbt_ms=found.tbt_ms,
                meets_target=aim.meets(found.tbt_ms),
                best_fixed_depth=best.depth,
                best_fixed_batch=best.batch,
                best_fixed_j_per_accepted_token=best.j_per_accepted_token,
                sglang_default_batch=others.batch if others else None,
                sglang_default_j_per_accepted_token=others.j_per_accepted_token if others else None,
                sglang_default_tbt_ms=others.tbt_ms if others else None,
                sglang_default_left_out=priced(tier_of(default, batch, graph_batches), aim.table)[1],
                one_depth_batch=compared.batch if compared else None,
                one_depth_j_per_accepted_token=compared.j_per_accepted_token if compared else None,
            )
        )
    return ScheduleReport(one_depth=one_depth, batches=tuple(reports))


def _beside(aim: Aim, schedule: PacedSchedule, batch: int, found: Expected) -> AtPace | None:
    """Another schedule under the load that is served at the batch as `found` says."""
    if not aim.stays(batch):
        return schedule.at_pace(found.tokens_per_ms)
    there = schedule.at_batch(batch)
    return AtPace(batch=batch, j_per_accepted_token=aim.j_of(there), tbt_ms=there.tbt_ms) if there else None


def _best_for_all(aim: Aim, rows: Sequence[Rivals]) -> int:
    totals: dict[int, float] = dict.fromkeys(aim.table.depths, 0.0)
    for rivals in rows:
        best = rivals.best
        for rival in rivals.by_depth.values():
            missed = aim.meets(best.tbt_ms) and not aim.meets(rival.tbt_ms)
            totals[rival.depth] += rival.j_per_accepted_token / best.j_per_accepted_token
            totals[rival.depth] += _MISSED * (missed or not rival.has_room)
    return min(totals, key=lambda depth: (totals[depth], depth))


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def compared_at(aim: Aim) -> str:
    """What load the schedule is for, and what the numbers of its report are compared at."""
    if not aim.open_load:
        return "closed: clients wait for their answers; everything is compared at the batch that is there"
    return (
        "open: requests come by themselves; everything is compared at the batch at which it serves as many tokens a "
        f"second as the tier, J above the {aim.idle_w:.4g} W of an idle server; a full batch, above nine tenths of the "
        "largest, stays as it is"
    )


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
