"""The summary of a sweep as an HTML page."""

from __future__ import annotations

from collections.abc import Sequence

from selector.page.document import document, figure, grid, provenance_table
from selector.page.front import Point
from selector.page.styles import line_legend, line_style
from selector.page.svg import element, words
from selector.page.tables import Cell, number, percent, table
from selector.simulator.page.charts import front
from selector.simulator.sweep.summary import CaseSummary, PolicySummary

MOST_FRONTS = 60
"""Cases drawn; the tables have them all."""

_COLUMNS = (
    "policy", "seeds", "J/token", "decode J/token", "attained", "worst text type", "TBT p50, ms", "TBT p99, ms",
    "TTFT p50, ms", "TTFT p99, ms", "mean W", "done", "lost", "extrapolated",
)  # fmt: skip


def sweep_page(cases: Sequence[CaseSummary], facts: Sequence[tuple[str, str]]) -> str:
    """The whole document."""
    policies = list(dict.fromkeys(each.policy for case in cases for each in case.policies))
    styles = {name: line_style(index) for index, name in enumerate(policies)}
    panels = []
    for case in cases[:MOST_FRONTS]:
        judged = any(each.tbt_attainment is not None for each in case.policies)
        points = []
        for each in case.policies:
            x, y = each.tbt_attainment if judged else each.tbt_p99_ms, each.j_per_accepted_token
            if x is not None and y is not None:
                points.append(Point(name=each.policy, style=styles[each.policy], x=x, y=y))
        if points:
            panels.append(figure(case.words, front(points, title=case.words, by_attainment=judged)))
    told = (
        "Means over seeds. Lower is less energy, further right is more targets met; the grey line joins the policies "
        "that no other beats in both."
    )
    fronts = element("p", words(told)) + line_legend(policies, list(styles.values())) + grid(panels)
    if len(cases) > MOST_FRONTS:
        fronts += element("p", f"The first {MOST_FRONTS} of {len(cases)} cases are drawn.", class_="note")
    sections = [
        ("overview", "J per accepted token, case by case", overview(cases, policies)),
        ("fronts", "Energy against targets met", fronts),
        ("numbers", "All numbers", "".join(_case(case) for case in cases)),
        ("provenance", "Provenance", provenance_table(facts)),
    ]
    return document("Sweep", sentences(cases), sections)


def sentences(cases: Sequence[CaseSummary]) -> list[str]:
    """How many cases each policy has the least energy in, and what is not there."""
    wins: dict[str, int] = {}
    for case in cases:
        if case.least is not None:
            wins[case.least] = wins.get(case.least, 0) + 1
    counted = ", ".join(f"{name} in {count}" for name, count in sorted(wins.items(), key=lambda item: -item[1]))
    said = [f"{len(cases)} cases. Least energy per accepted token, whatever targets it meets: {counted or 'none'}."]
    failed = sum(each.failed for case in cases for each in case.policies)
    missing = sum(each.missing for case in cases for each in case.policies)
    if failed or missing:
        said.append(f"{failed} cells failed and {missing} have not been run; means are over the others.")
    return said


def overview(cases: Sequence[CaseSummary], policies: Sequence[str]) -> str:
    """A row per case, a column per policy: energy, and attainment below it; the least in bold."""
    rows: list[list[Cell | str]] = []
    for case in cases:
        row: list[Cell | str] = [Cell(text=case.words, prose=True)]
        by_name = {each.policy: each for each in case.policies}
        for policy in policies:
            each = by_name.get(policy)
            row.append(Cell(text="–" if each is None else _short(each), best=policy == case.least))
        rows.append(row)
    return table(("case", *policies), rows, caption="J per accepted token and attainment by case and policy")


def _short(each: PolicySummary) -> str:
    attained = "" if each.tbt_attainment is None else f" ({each.tbt_attainment:.1%})"
    return number(each.j_per_accepted_token, 4) + attained


def _case(case: CaseSummary) -> str:
    rows: list[list[Cell | str]] = []
    for each in case.policies:
        gone = "".join(
            f", {count} {what}" for count, what in ((each.failed, "failed"), (each.missing, "not run")) if count
        )
        rows.append(
            [
                Cell(text=each.policy, prose=True),
                f"{each.seeds}{gone}",
                Cell(text=number(each.j_per_accepted_token, 4), best=each.policy == case.least),
                number(each.decode_j_per_accepted_token, 4),
                percent(each.tbt_attainment),
                percent(each.worst_text_type_attainment),
                number(each.tbt_p50_ms, 2),
                number(each.tbt_p99_ms, 2),
                number(each.ttft_p50_ms, 0),
                number(each.ttft_p99_ms, 0),
                number(each.mean_power_w, 0),
                number(each.requests, 0),
                number(each.requests_lost, 1),
                percent(each.extrapolated_energy_frac),
            ]
        )
    return element("h3", words(case.words)) + element(
        "div", table(_COLUMNS, rows, caption=case.words), class_="numbers"
    )
