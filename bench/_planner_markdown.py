"""The tables of docs/planner.md, from the rows of `planner_table.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from _planner_verdict import comparisons, passes

Row = Mapping[str, Any]


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """Each table in Markdown: steady loads by fleet, ramps, traces by fleet."""
    for gpus in (4, 8):
        steady = [row for row in rows if row["part"] == "steady" and row["gpus"] == gpus]
        if steady:
            yield f"steady load, {gpus} GPUs\n\n{_steady(steady)}"
    ramps = [row for row in rows if row["part"] == "ramp"]
    if ramps:
        yield f"ramps\n\n{_ramps(ramps)}"
    for gpus in (4, 8):
        traces = [row for row in rows if row["part"] == "trace" and row["gpus"] == gpus]
        if traces:
            yield f"traces, {gpus} GPUs\n\n{_traces(traces)}"
    for row in rows:
        if row["part"] == "shared":
            yield "shared GPU\n\n" + "\n".join(
                f"- {name}: {_told(result)}" for name, result in sorted(row["results"].items(), key=_joules)
            )


def _steady(rows: Sequence[Row]) -> str:
    lines = [
        "| clients | cells | over the best competitor: median, best, worst | decode alone: median |"
        " over the oracle: median | pass |",
        "|---|---|---|---|---|---|",
    ]
    every = [comparisons(row)["same fleet"] for row in rows]
    for load in sorted({row["load"] for row in rows}, key=int):
        of_load = [row for row in rows if row["load"] == load]
        found = [each for row, each in zip(rows, every, strict=True) if row["load"] == load]
        ratios = [each["ratio"] for each in found if each["ratio"] is not None]
        decode = [each["decode_ratio"] for each in found if each["decode_ratio"] is not None]
        over = [row["results"]["min_energy"]["j"] / row["bounds"]["min_energy"] for row in of_load]
        figures = f"{median(ratios):.3f}, {min(ratios):.3f}, {max(ratios):.3f}"
        passed = sum(map(passes, found))
        lines.append(f"| {load} | {len(found)} | {figures} | {median(decode):.3f} | {median(over):.3f} | {passed} |")
    bounds = {
        target: [
            row["results"]["min_energy"]["j"] / row["bounds"]["min_energy"]
            for row in rows
            if target == "all" or row["target_ms"] == target
        ]
        for target in ("all", None, 25.0, 10.0, 5.0)
    }
    told = ", ".join(
        f"{'no target' if target is None else target}: {median(over) - 1.0:.1%}"
        for target, over in bounds.items()
        if over
    )
    within = sum(each["ratio"] is None or each["ratio"] <= 1.05 for each in every)
    alone = sum(each["ratio"] is None for each in every)
    lines += ["", f"{sum(map(passes, every))} of {len(every)} pass, {within} within 5 %, {alone} without a competitor"]
    return "\n".join([*lines, f"over the oracle in the median: {told}"])


def _ramps(rows: Sequence[Row]) -> str:
    lines = [
        "| GPUs | mix | fleet | `min_energy` | best least-loaded arm | best packed arm | no fleet below |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        results = row["results"]
        cells = [_told(results["planned min_energy"])]
        for kind in ("all static:", "all pack:"):
            name = min((name for name in results if name.startswith(kind)), key=lambda each: results[each]["j"])
            cells.append(f"{_told(results[name])}, `{name.removeprefix(kind)}`")
        bound = row["bounds"]["planned min_energy"]
        lines.append(f"| {row['gpus']} | {row['mix']} | {row['plan']['fleet']} | {' | '.join(cells)} | {bound:.4f} |")
    return "\n".join(lines)


def _traces(rows: Sequence[Row]) -> str:
    lines = [
        "| trace | fill | `min_energy`, planned fleet | best packed arm | best least-loaded arm |"
        " `min_energy`, mixed fleet | no policy below, planned fleet |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        results = row["results"]
        name, _, fill = row["load"].rpartition(" ")
        best = [
            _told(min((r for each, r in results.items() if each.startswith(kind)), key=lambda r: r["j"]), 3)
            for kind in ("all pack:", "all static:")
        ]
        planned, mixed = _told(results["planned min_energy"], 3), _told(results["min_energy"], 3)
        bound = row["bounds"]["planned min_energy"]
        lines.append(f"| {name} | {float(fill):.0%} | {planned} | {' | '.join(best)} | {mixed} | {bound:.3f} |")
    return "\n".join(lines)


def _told(result: Mapping[str, Any], digits: int = 4) -> str:
    """Joules per token, of decoding alone in brackets, and the mean attainment over the text types."""
    told = f"{result['j']:.{digits}f} ({result['decode_j']:.{digits}f})"
    met = list(result["attainment"].values())
    return f"{told}, {sum(met) / len(met):.0%}" if met else told


def _joules(item: tuple[str, Mapping[str, Any]]) -> float:
    return float(item[1]["j"])
