"""Which of the bars of the planner's table the rows meet, and which of those missed no policy can.

A bar compares two figures of a cell. Where even the bound for any policy (_planner_bound.py) is above what the bar asks
for, no policy meets it there, and the cell counts as out of reach. On ramps, a bar that is not met against the cheapest
arm is judged against the cheapest of those that serve no worse (_planner_verdict.py): who leaves more of the load late
can do it for less. Where there is none, nobody else serves as well, and the bar says nothing of the cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from _planner_verdict import Result, comparisons, worse_because

Row = Mapping[str, Any]
_MIXED = ("code+romansh", "ten types")


@dataclass(slots=True)
class Bar:
    """One bar over all cells that it applies to."""

    words: str
    met: int = 0
    out_of_reach: list[str] = field(default_factory=list)
    unrivalled: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    def judge(self, row: Row, figure: float, most: float, least_possible: float = 0.0, but: str = "") -> None:
        """A cell whose figure may be at most `most`, and at any policy is `least_possible` at least.

        `but` says what else speaks against the cell, if anything does.
        """
        label = _label(row, figure)
        if figure <= most and not but:
            self.met += 1
        elif least_possible > most:
            self.out_of_reach.append(f"{label}, no policy below {least_possible:.3f}")
        else:
            self.missed.append(label + but)

    def judge_against(self, row: Row, ours: Result, arms: Mapping[str, Result], most: float, bound_j: float) -> None:
        """A cell whose joules per token may be `most` times those of the cheapest arm that serves no worse."""
        than = min(arms.values(), key=lambda arm: arm["j"])
        if ours["j"] > most * than["j"] and (worse := worse_because(than, ours)):
            no_worse = [arm for arm in arms.values() if not worse_because(arm, ours)]
            if not no_worse:
                self.unrivalled.append(f"{_label(row, ours['j'] / than['j'])} of an arm that {worse}")
                return
            than = min(no_worse, key=lambda arm: arm["j"])
        self.judge(row, ours["j"] / than["j"], most, bound_j / than["j"])

    def __str__(self) -> str:
        cells = self.met + len(self.out_of_reach) + len(self.unrivalled) + len(self.missed)
        told = "".join(f"\n      out of reach: {each}" for each in self.out_of_reach)
        told += "".join(f"\n      nobody else serves as well: {each}" for each in self.unrivalled)
        told += "".join(f"\n      missed: {each}" for each in self.missed)
        return f"  {self.words}: {self.met} of {cells} cells{told}"


def _label(row: Row, figure: float) -> str:
    return f"{row['mix']} {row['load']} {row['target_ms'] or 'no'} ms: {figure:.3f}"


def bars(rows: Sequence[Row]) -> Iterator[Bar]:
    """Every bar that has cells."""
    for gpus in sorted({row["gpus"] for row in rows}):
        here = [row for row in rows if row["gpus"] == gpus]
        for bar in (*_steady(here, gpus), *_ramp(here, gpus), *_trace(here, gpus), *_shared(here)):
            if bar.met or bar.out_of_reach or bar.unrivalled or bar.missed:
                yield bar


def _steady(rows: Sequence[Row], gpus: int) -> Iterator[Bar]:
    steady = [(row, comparisons(row)["same fleet"]) for row in rows if row["part"] == "steady"]
    bar = Bar(f"steady, {gpus} GPUs, at most 2 % above the best competitor and nobody better for no more")
    for row, found in steady:
        served = ", ".join(found["better_served_by"])
        bar.judge(row, found["ratio"] or 0.0, 1.02, but=f", served better by {served}" if served else "")
    yield bar
    bar = Bar(f"steady, {gpus} GPUs, at most 5 % above the best competitor")
    for row, found in steady:
        bar.judge(row, found["ratio"] or 0.0, 1.05)
    yield bar
    over = [(row["target_ms"], row["results"]["min_energy"]["j"] / row["bounds"]["min_energy"]) for row, _ in steady]
    for words, ratios in (
        ("without targets", [ratio for target_ms, ratio in over if target_ms is None]),
        ("all of them, the oracle without targets", [ratio for _, ratio in over]),
    ):
        bar = Bar(f"steady, {gpus} GPUs, {words}: within 5 % of the oracle in the median")
        if ratios:
            bar.judge({"mix": "all mixes", "load": "and clients", "target_ms": None}, median(ratios), 1.05)
        yield bar


def _ramp(rows: Sequence[Row], gpus: int) -> Iterator[Bar]:
    ramps = [row for row in rows if row["part"] == "ramp"]
    least_loaded = 0.8 if gpus > 4 else 0.9
    for words, against, most, mixes in (
        (
            f"{1 - least_loaded:.0%} below the cheapest least-loaded arm that serves no worse",
            "all static:",
            least_loaded,
            None,
        ),
        ("not above the cheapest packed arm that serves no worse", "all pack:", 1.0, None),
        ("7 % below the cheapest packed arm that serves no worse, on mixed text", "all pack:", 0.93, _MIXED),
    ):
        bar = Bar(f"ramp, {gpus} GPUs, {words}")
        for row in ramps:
            if mixes is None or row["mix"] in mixes:
                arms = {name: result for name, result in row["results"].items() if name.startswith(against)}
                ours, bound_j = row["results"]["planned min_energy"], row["bounds"]["planned min_energy"]
                bar.judge_against(row, ours, arms, most, bound_j)
        yield bar


def _trace(rows: Sequence[Row], gpus: int) -> Iterator[Bar]:
    traces = [row for row in rows if row["part"] == "trace"]
    for against in ("same fleet", "least loaded", "packed"):
        bar = Bar(f"trace, {gpus} GPUs, at most 2 % above the best competitor ({against})")
        for row in traces:
            bar.judge(row, comparisons(row)[against]["ratio"] or 0.0, 1.02)
        yield bar
    bar = Bar(f"trace, {gpus} GPUs, Azure conversation at 30 %: 10 % below the cheapest least-loaded arm")
    for row in traces:
        if row["load"] == "azure 2023 conversation 0.3":
            bar.judge(row, comparisons(row)["least loaded"]["cheapest_ratio"], 0.9)
    yield bar
    for ours in ("min_energy", "planned min_energy"):
        bar = Bar(f"trace, {gpus} GPUs, `{ours}` at most 10 % above the oracle")
        for row in traces:
            if row["bounds"][ours] is not None:
                bar.judge(row, row["results"][ours]["j"] / row["bounds"][ours], 1.10)
        yield bar


def _shared(rows: Sequence[Row]) -> Iterator[Bar]:
    bar = Bar("shared GPU, below the best single arm")
    for row in rows:
        if row["part"] == "shared":
            than = min(result["j"] for name, result in row["results"].items() if name.startswith("static:"))
            bar.judge(row, row["results"]["min_energy"]["j"] / than, 1.0)
    yield bar
