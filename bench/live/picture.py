"""Live results as a picture: joules per accepted token by policy, one panel a load and text; the simulation beside.

    python bench/live/picture.py --rows bench/results/h200_live.jsonl --fleet three-on-one --load "rises and falls" \\
        --load "rises and falls, collection frozen" --out docs/live.svg

Bars are measured, the board's idle power included: the mean where a cell was run under several seeds, with a dot for
each. A line across a bar is what the simulator says of the same requests. Above it stands the share of requests within
the target. The policy that is asked about is dark. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

_MOST_ACROSS = 3
_ASKED, _OTHER = "#1b4f72", "#c9d3da"


def main() -> None:
    """Draws the rows of one fleet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True, help="results.jsonl of run.py")
    parser.add_argument("--fleet", required=True, help="the fleet whose cells are drawn, by its file's name")
    parser.add_argument("--load", action="append", default=[], help="only this load; several times for several")
    parser.add_argument("--policy", default="min_energy", help="the policy that is drawn dark (default: min_energy)")
    parser.add_argument("--out", type=Path, required=True, help="file to write, .svg or .png")
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.rows.read_text(encoding="utf-8").splitlines() if line.strip()]
    of_fleet = [row for row in rows if row["fleet"] == args.fleet]
    if not of_fleet:
        parser.error(f"{args.rows} has no row of the fleet {args.fleet!r}")
    if unknown := set(args.load) - {row["load"] for row in of_fleet}:
        parser.error(f"{args.rows} has no row of {args.fleet!r} under the load {', '.join(sorted(unknown))!r}")
    draw([row for row in of_fleet if not args.load or row["load"] in args.load], args.policy, args.out)


def draw(rows: Sequence[Mapping[str, Any]], policy: str, out: Path) -> None:
    """One panel for each load, text and target, in the order of the rows; policies in that of their first row.

    One load of all rows needs no name.
    """
    panels: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    loads = {row["load"] for row in rows}
    for row in rows:
        target = "no target" if row["target_ms"] is None else f"{row['target_ms']:g} ms"
        title = ",\n".join([row["load"]] * (len(loads) > 1) + [f"{row['text']}, {target}"])
        panels.setdefault(title, {}).setdefault(row["policy"], []).append(row)
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    across = min(len(panels), _MOST_ACROSS)
    down = math.ceil(len(panels) / across)
    figure, axes = pyplot.subplots(down, across, figsize=(1.2 + 3.0 * across, 3.6 * down), sharey=True, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (title, cells) in zip(axes.flat, panels.items(), strict=False):
        for name, runs in cells.items():
            place = policies.index(name)
            each = [run["live"]["j_per_accepted_token"] for run in runs]
            joules, simulated = fmean(each), fmean(run["simulated"]["j_per_accepted_token"] for run in runs)
            axis.bar(place, joules, width=0.7, color=_ASKED if name == policy else _OTHER, edgecolor="black")
            axis.plot([place - 0.45, place + 0.45], [simulated, simulated], color="black", linewidth=1.6)
            if len(each) > 1:
                axis.plot([place] * len(each), each, linestyle="", marker="o", markersize=4, **_DOT)
            attained = [run["live"]["tbt_attainment"] for run in runs if run["live"]["tbt_attainment"] is not None]
            if attained:
                axis.annotate(f"{fmean(attained):.0%}", (place, max(*each, simulated)), (0, 3), **_CENTRED)
        axis.set_xticks(range(len(policies)), [name.removeprefix("static:") for name in policies], rotation=30)
        axis.set_xlim(-0.6, len(policies) - 0.4)
        axis.set_title(title, fontsize=10)
        axis.margins(y=0.12)
    axes[0][0].set_ylabel("J per accepted token")
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


_DOT = {"markerfacecolor": "white", "markeredgecolor": "black"}
_CENTRED: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontsize": 9}


if __name__ == "__main__":
    main()
