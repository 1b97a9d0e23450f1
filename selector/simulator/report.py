"""A run as the numbers that the command line prints (the keys are a contract, see docs and `simulate --help`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from selector.core.quantile import quantile
from selector.simulator.engine import RequestRecord, Run

TargetChoice = float | Literal["none"] | None
"""The target of a run: one for every request in ms, "none" for nobody, `None` leaves it to the fleet's SLO classes."""


class PolicyResult(BaseModel):
    """One policy on one trace. Energies in J over all boards of the fleet; quantiles over completed requests."""

    model_config = ConfigDict(frozen=True)

    policy: str
    policy_sha256: str
    tbt_target_ms: TargetChoice = None
    requests: int
    """Completed."""
    requests_rejected: int
    requests_dropped: int
    """Over every backend's context: no policy saw them."""
    requests_unfinished: int = 0
    """Still waiting or running when the run was ended."""
    accepted_tokens: int
    energy_j: float
    """decode_j + prefill_j + idle_j."""
    decode_j: float
    prefill_j: float
    idle_j: float
    j_per_accepted_token: float | None
    decode_j_per_accepted_token: float | None
    tbt_attainment: float | None
    """Share of completed, rejected and unfinished requests with a target whose TBT met it; `None` without a target."""
    tbt_p50_ms: float | None
    tbt_p99_ms: float | None
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    mean_power_w: float | None
    duration_s: float
    extrapolated_energy_frac: float
    """Share of decode energy from outside the measured cells."""
    attainment_by_text_type: dict[str, float]
    attainment_by_class: dict[str, float] = {}
    """By SLO class."""
    decisions_by_arm: dict[str, int]
    retractions: int
    wall_s: float
    """Real seconds the simulation took, loading excluded."""
    simulated_requests_per_s: float


def summarise(
    run: Run, *, policy: str, policy_sha256: str, wall_s: float, tbt_target_ms: TargetChoice = None
) -> PolicyResult:
    """The result of a run that took `wall_s` real seconds."""
    done = [record.outcome for record in run.records if record.outcome is not None]
    energy_j = run.decode_j + run.prefill_j + run.idle_j
    tokens = run.accepted_tokens
    tbt = [outcome.tbt_ms for outcome in done if outcome.tbt_ms is not None]
    ttft = [outcome.ttft_ms for outcome in done if outcome.ttft_ms is not None]
    return PolicyResult(
        policy=policy,
        policy_sha256=policy_sha256,
        tbt_target_ms=tbt_target_ms,
        requests=len(done),
        requests_rejected=run.rejected,
        requests_unfinished=run.unfinished,
        requests_dropped=run.dropped,
        accepted_tokens=tokens,
        energy_j=energy_j,
        decode_j=run.decode_j,
        prefill_j=run.prefill_j,
        idle_j=run.idle_j,
        j_per_accepted_token=energy_j / tokens if tokens else None,
        decode_j_per_accepted_token=run.decode_j / tokens if tokens else None,
        tbt_attainment=attainment(run.records),
        tbt_p50_ms=quantile(tbt, 0.5),
        tbt_p99_ms=quantile(tbt, 0.99),
        ttft_p50_ms=quantile(ttft, 0.5),
        ttft_p99_ms=quantile(ttft, 0.99),
        mean_power_w=energy_j / run.duration_s if run.duration_s else None,
        duration_s=run.duration_s,
        extrapolated_energy_frac=run.extrapolated_j / run.decode_j if run.decode_j else 0.0,
        attainment_by_text_type=_attainment_by(run.records, lambda record: record.request.text_type),
        attainment_by_class=_attainment_by(run.records, lambda record: record.request.slo_class),
        decisions_by_arm=run.decisions_by_arm,
        retractions=run.retractions,
        wall_s=wall_s,
        simulated_requests_per_s=len(run.records) / wall_s if wall_s else 0.0,
    )


def attainment(records: Sequence[RequestRecord]) -> float | None:
    """Share of requests with a target that met it.

    A rejected or unfinished one missed; one under two tokens has no TBT to judge.
    """
    met = judged = 0
    for record in records:
        target = record.request.tbt_target_ms
        if target is None:
            continue
        if record.outcome is None:
            judged += 1
        elif record.outcome.tbt_ms is not None:
            judged += 1
            met += record.outcome.tbt_ms <= target
    return met / judged if judged else None


def _attainment_by(records: Sequence[RequestRecord], group: Callable[[RequestRecord], str]) -> dict[str, float]:
    """Attainment of every group that has a target, by the group's name in order."""
    groups: dict[str, list[RequestRecord]] = {}
    for record in records:
        groups.setdefault(group(record), []).append(record)
    attained = {name: attainment(groups[name]) for name in sorted(groups)}
    return {name: value for name, value in attained.items() if value is not None}
