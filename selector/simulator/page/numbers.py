"""Every number of every run, in one table."""

from __future__ import annotations

from collections.abc import Sequence

from selector.page.svg import element
from selector.page.tables import Cell, number, percent, table
from selector.simulator.report import PolicyResult

_COLUMNS = (
    "policy", "target, ms", "J/token", "decode J/token", "attained", "worst text type", "worst class",
    "TBT p50, ms", "TBT p99, ms", "TTFT p50, ms", "TTFT p99, ms", "mean W", "energy, kJ", "decode, kJ", "prefill, kJ",
    "idle, kJ", "done", "rejected", "dropped", "tokens", "duration, s", "retractions", "extrapolated", "sent to",
)  # fmt: skip


def numbers_table(results: Sequence[PolicyResult]) -> str:
    """One row a run; the least energy of each target in bold."""
    least: dict[object, float] = {}
    for result in results:
        if result.j_per_accepted_token is not None:
            target = result.tbt_target_ms
            least[target] = min(least.get(target, result.j_per_accepted_token), result.j_per_accepted_token)
    rows = [_row(result, least) for result in results]
    return element("div", table(_COLUMNS, rows, caption="all numbers"), class_="numbers")


def _row(result: PolicyResult, least: dict[object, float]) -> list[Cell | str]:
    target = result.tbt_target_ms
    total = sum(result.decisions_by_arm.values()) or 1
    arms = ", ".join(f"{arm} {count / total:.0%}" for arm, count in result.decisions_by_arm.items() if count)
    energies = (result.energy_j, result.decode_j, result.prefill_j, result.idle_j)
    return [
        Cell(text=result.policy, prose=True),
        "classes" if target is None else f"{target:g}" if isinstance(target, float | int) else target,
        Cell(
            text=number(result.j_per_accepted_token, 4),
            best=target in least and result.j_per_accepted_token == least[target],
        ),
        number(result.decode_j_per_accepted_token, 4),
        percent(result.tbt_attainment),
        _worst(result.attainment_by_text_type),
        _worst(result.attainment_by_class),
        number(result.tbt_p50_ms, 2),
        number(result.tbt_p99_ms, 2),
        number(result.ttft_p50_ms, 0),
        number(result.ttft_p99_ms, 0),
        number(result.mean_power_w, 0),
        *(number(joules / 1e3, 1) for joules in energies),
        f"{result.requests:,}",
        f"{result.requests_rejected:,}",
        f"{result.requests_dropped:,}",
        f"{result.accepted_tokens:,}",
        number(result.duration_s, 1),
        f"{result.retractions:,}",
        percent(result.extrapolated_energy_frac),
        Cell(text=arms or "–", prose=True),
    ]


def _worst(attained: dict[str, float]) -> str:
    if not attained:
        return "–"
    name = min(attained, key=lambda key: attained[key])
    return f"{name} {percent(attained[name])}"
