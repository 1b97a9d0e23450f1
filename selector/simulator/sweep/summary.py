"""Finished cells as means over seeds, policy by policy within each case, and as a table of everything."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from selector.simulator.page.names import target_words
from selector.simulator.report import PolicyResult, TargetChoice
from selector.simulator.sweep.cells import Cell, CellRecord


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class PolicySummary(_Frozen):
    """One policy in one case: means over the seeds that finished."""

    policy: str
    seeds: int
    failed: int
    """Seeds whose cell failed."""
    missing: int
    """Seeds whose cell has not been run."""
    j_per_accepted_token: float | None
    decode_j_per_accepted_token: float | None
    tbt_attainment: float | None
    worst_text_type_attainment: float | None
    """Of each seed's worst text type."""
    tbt_p50_ms: float | None
    tbt_p99_ms: float | None
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    mean_power_w: float | None
    requests: float | None
    requests_lost: float | None
    """Rejected, dropped or unfinished."""
    extrapolated_energy_frac: float | None


class CaseSummary(_Frozen):
    """Policies on the same requests, fleet and target."""

    trace: str
    fleet: str
    tbt_target_ms: TargetChoice
    rate_scale: float
    text_mix: dict[str, float] | None
    policies: tuple[PolicySummary, ...]

    @property
    def words(self) -> str:
        """The case as a heading."""
        mix = "its own text types" if self.text_mix is None else mix_words(self.text_mix)
        rate = "" if self.rate_scale == 1.0 else f", rate × {self.rate_scale:g}"
        return f"{self.trace}, {self.fleet}, {target_words(self.tbt_target_ms)}{rate}, {mix}"

    @property
    def least(self) -> str | None:
        """The policy with the least energy per accepted token."""
        known = [each for each in self.policies if each.j_per_accepted_token is not None]
        return min(known, key=lambda each: each.j_per_accepted_token or 0.0).policy if known else None


def mix_words(mix: Mapping[str, float]) -> str:
    """A text mix in words."""
    return ", ".join(f"{name} {share:.0%}" for name, share in mix.items())


def summarise_sweep(cells: Sequence[Cell], records: Mapping[str, CellRecord]) -> list[CaseSummary]:
    """Cases in the order of the plan."""
    cases: dict[tuple[object, ...], dict[str, list[Cell]]] = {}
    for cell in cells:
        mix = json.dumps(cell.text_mix)
        case = (cell.trace, cell.fleet, cell.tbt_target_ms, cell.rate_scale, mix)
        cases.setdefault(case, {}).setdefault(cell.policy, []).append(cell)
    summaries = []
    for policies in cases.values():
        first = next(iter(policies.values()))[0]
        summaries.append(
            CaseSummary(
                trace=first.trace, fleet=first.fleet, tbt_target_ms=first.tbt_target_ms, rate_scale=first.rate_scale,
                text_mix=first.text_mix,
                policies=tuple(_summary(name, own, records) for name, own in policies.items()),
            )
        )  # fmt: skip
    return summaries


def _summary(policy: str, cells: Sequence[Cell], records: Mapping[str, CellRecord]) -> PolicySummary:
    found = [records.get(cell.key) for cell in cells]
    results = [record.result for record in found if record is not None and record.result is not None]

    def mean(field: str) -> float | None:
        return _mean([getattr(result, field) for result in results])

    return PolicySummary(
        policy=policy,
        seeds=len(results),
        failed=sum(record is not None and record.result is None for record in found),
        missing=sum(record is None for record in found),
        j_per_accepted_token=mean("j_per_accepted_token"),
        decode_j_per_accepted_token=mean("decode_j_per_accepted_token"),
        tbt_attainment=mean("tbt_attainment"),
        worst_text_type_attainment=_mean([_worst(result) for result in results]),
        tbt_p50_ms=mean("tbt_p50_ms"),
        tbt_p99_ms=mean("tbt_p99_ms"),
        ttft_p50_ms=mean("ttft_p50_ms"),
        ttft_p99_ms=mean("ttft_p99_ms"),
        mean_power_w=mean("mean_power_w"),
        requests=mean("requests"),
        requests_lost=_mean([r.requests_rejected + r.requests_dropped + r.requests_unfinished for r in results]),
        extrapolated_energy_frac=mean("extrapolated_energy_frac"),
    )


def _worst(result: PolicyResult) -> float | None:
    return min(result.attainment_by_text_type.values(), default=None)


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of the values there are; `None` of none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def cells_csv(cells: Sequence[Cell], records: Mapping[str, CellRecord]) -> str:
    """One line a cell that was run, with every number of its result; groups of numbers as JSON."""
    axes = [name for name in Cell.model_fields if name not in ("key", "inputs")]
    numbers = [name for name in PolicyResult.model_fields if name not in axes]
    text = io.StringIO()
    writer = csv.DictWriter(text, [*axes, *numbers, "error", "key"], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for cell in cells:
        record = records.get(cell.key)
        if record is None:
            continue
        row = {**(record.result.model_dump() if record.result else {}), **cell.model_dump(), "error": record.error}
        writer.writerow({name: json.dumps(value) if isinstance(value, dict) else value for name, value in row.items()})
    return text.getvalue()
