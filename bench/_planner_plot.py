"""The figure of `planner_table.py`: how far `min_energy` is from the best fixed choice that serves no worse."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from _planner_verdict import comparisons

matplotlib.use("Agg")
from matplotlib import pyplot

_COLOURS = {"same fleet": "#1b6ca8", "least loaded": "#c1666b", "packed": "#d4b483"}


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Cells in order of the ratio, one line per part and competitor."""
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4.6), sharey=True)
    for axis, parts in zip(axes, (("steady", "shared"), ("ramp", "trace")), strict=True):
        for against, colour in _COLOURS.items():
            ratios = sorted(
                found["ratio"]
                for row in rows
                if row["part"] in parts
                for words, found in comparisons(row).items()
                if words == against and found["ratio"] is not None
            )
            if ratios:
                shares = [(number + 0.5) / len(ratios) for number in range(len(ratios))]
                axis.plot(
                    shares, ratios, marker=".", linewidth=1, color=colour, label=f"{against} ({len(ratios)} cells)"
                )
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.axhline(1.02, color="grey", linewidth=0.6, linestyle="--")
        axis.set_title(", ".join(parts))
        axis.set_xlabel("share of cells")
        axis.legend(frameon=False)
    axes[0].set_ylabel("J per token of min_energy over the best competitor's")
    figure.tight_layout()
    figure.savefig(path)
