"""Judges the rows of `planner_table.py`.

A fixed choice competes with `min_energy` in a cell when it is no worse than it: it loses no more requests, its
attainment is no lower (−1 point) on any text type, and its TTFT p99 is at most 10 % above. A choice that spends less by
missing targets or letting requests queue is listed but does not compete. `min_energy` passes when it spends at most 2 %
more than every competitor, and no competitor attains more than a point more on some text type at no more energy.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

Result = Mapping[str, Any]
ATTAINMENT_MARGIN, TTFT_MARGIN = 0.01, 1.1
MOST_EXTRAPOLATED_FRAC = 0.05


def worse_because(one: Result, than: Result) -> str:
    """Why `one` is worse service than `than`; empty where it is no worse."""
    if one["lost"] > than["lost"]:
        return f"loses {one['lost']} requests"
    for text_type, met in than["attainment"].items():
        if one["attainment"].get(text_type, 0.0) < met - ATTAINMENT_MARGIN:
            return f"attains {one['attainment'].get(text_type, 0.0):.0%} of {text_type}, not {met:.0%}"
    if one["ttft_p99_ms"] > TTFT_MARGIN * than["ttft_p99_ms"]:
        return f"TTFT p99 {one['ttft_p99_ms']:.0f} ms, not {than['ttft_p99_ms']:.0f} ms"
    return ""


def compared(ours: Result, fixed: Mapping[str, Result]) -> dict[str, Any]:
    """Our energy over the best competitor's, and what else there is to say."""
    competing = {name: other for name, other in fixed.items() if not worse_because(other, ours)}
    best = min(competing, key=lambda name: competing[name]["j"], default=None)
    better_served = [
        name for name, other in competing.items() if other["j"] <= ours["j"] and worse_because(ours, other)
    ]
    cheapest = min(fixed, key=lambda name: fixed[name]["j"])
    return {
        "best": best,
        "ratio": ours["j"] / competing[best]["j"] if best else None,
        "decode_ratio": ours["decode_j"] / competing[best]["decode_j"] if best else None,
        "better_served_by": better_served,
        "cheapest": cheapest,
        "cheapest_ratio": ours["j"] / fixed[cheapest]["j"],
        "cheapest_fails": worse_because(fixed[cheapest], ours),
    }


def comparisons(row: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """`same fleet`, `least loaded` and `packed` (single arms on as many GPUs), as far as the row has them."""
    results = row["results"]
    found = {}
    same = {
        name: r for name, r in results.items() if not name.startswith(("all ", "planned ")) and name != "min_energy"
    }
    if "min_energy" in results and same:
        found["same fleet"] = compared(results["min_energy"], same)
    if "planned min_energy" in results:
        ours = results["planned min_energy"]
        for words, policy in (("least loaded", "all static:"), ("packed", "all pack:")):
            single = {name: r for name, r in results.items() if name.startswith(policy)}
            if single:
                found[words] = compared(ours, single)
    return found


def passes(comparison: Mapping[str, Any], most: float = 1.02) -> bool:
    """Within `most` of the best competitor, and nobody serves better for no more."""
    return (comparison["ratio"] is None or comparison["ratio"] <= most) and not comparison["better_served_by"]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The cells of a file of rows."""
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if "part" in line]


def print_summary(path: Path, plot: Path | None = None) -> None:
    """Counts by part, and every cell that misses."""
    rows = read_rows(path)
    grouped: dict[tuple[str, int, str], list[tuple[dict[str, Any], dict[str, Any]]]] = defaultdict(list)
    for row in rows:
        for against, comparison in comparisons(row).items():
            grouped[row["part"], row["gpus"], against].append((row, comparison))
    for (part, gpus, against), pairs in sorted(grouped.items()):
        ratios = [c["ratio"] for _, c in pairs if c["ratio"] is not None]
        alone = len(pairs) - len(ratios)
        print(
            f"{part:7s} {gpus} GPUs, against {against}: {len(pairs)} cells, {alone} without a competitor; "
            f"J over the best competitor's: "
            f"median {median(ratios) if ratios else 0:.3f}, worst {max(ratios, default=0):.3f}; "
            f"{sum(passes(c) for _, c in pairs)} pass at 2 %, {sum(passes(c, 1.05) for _, c in pairs)} at 5 %; "
            f"over the cheapest, however it serves: median {median(c['cheapest_ratio'] for _, c in pairs):.3f}, "
            f"worst {max(c['cheapest_ratio'] for _, c in pairs):.3f}"
        )
    for part in ("steady", "ramp", "trace", "shared"):
        extrapolated = [
            results["extrapolated"]
            for row in rows
            if row["part"] == part
            for name, results in row["results"].items()
            if name.endswith("min_energy")
        ]
        if extrapolated:
            few = sum(each <= MOST_EXTRAPOLATED_FRAC for each in extrapolated)
            print(
                f"{part}: decode energy from outside the measured cells: median {median(extrapolated):.1%}, "
                f"at most {MOST_EXTRAPOLATED_FRAC:.0%} in {few} of {len(extrapolated)} runs of min_energy"
            )
    for row, against, comparison in misses(rows):
        served = (
            f" served better by {', '.join(comparison['better_served_by'])}" if comparison["better_served_by"] else ""
        )
        print(
            f"  misses: {row['part']} {row['gpus']} {row['mix']} {row['load']} {row['target_ms']} ({against}): "
            f"{comparison['ratio'] or 0:.3f} of {comparison['best']}{served}"
        )
    from _planner_bars import bars  # which judges by this module

    print("bars:")
    for bar in bars(rows):
        print(bar)
    if plot is not None:
        from _planner_plot import draw

        draw(rows, plot)


def misses(rows: Iterable[dict[str, Any]]) -> list[tuple[dict[str, Any], str, dict[str, Any]]]:
    """Every comparison that does not pass."""
    return [
        (row, against, comparison)
        for row in rows
        for against, comparison in comparisons(row).items()
        if not passes(comparison)
    ]
