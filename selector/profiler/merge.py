"""All repeats of a decode cell as one, from however many lines and runs they come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from selector.core.cost import StepPoint
from selector.profiler.cells import Cell, DecodeCell, DecodeRepeat, Origin, Pass
from selector.profiler.checks import spread_frac
from selector.profiler.config import Method


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedCell:
    """One decode cell of one arm."""

    batch: int
    prompt_tokens: int
    repeats: tuple[DecodeRepeat, ...]
    origin: Origin

    def mean(self, name: str) -> float:
        """Mean of a field of the repeats."""
        return fmean(getattr(repeat, name) for repeat in self.repeats)

    def metered(self, name: str) -> float | None:
        """Mean of a field of the repeats' energy windows; `None` where none has it."""
        values = [getattr(repeat.energy, name) for repeat in self.repeats if repeat.energy is not None]
        known = [value for value in values if value is not None]
        return fmean(known) if known else None

    def spread(self, name: str) -> float | None:
        """Largest less smallest over the mean of a field of the repeats; `None` for a single one."""
        return spread_frac([getattr(repeat, name) for repeat in self.repeats])

    @property
    def flags(self) -> frozenset[str]:
        """What the meter flagged in any repeat."""
        return frozenset(flag for repeat in self.repeats if repeat.energy for flag in repeat.energy.flags)

    @property
    def point(self) -> StepPoint:
        """The cell as the cost model takes it."""
        return StepPoint(
            batch=self.batch,
            context_tokens=self.mean("context_tokens"),
            step_ms=self.mean("step_ms"),
            step_j=self.mean("step_j"),
        )


def main_method(cells: Iterable[Cell]) -> Method | None:
    """The method that most decode cells were measured by: a sweep's own, since others only cross-check a few cells."""
    counts = Counter(cell.method for cell in cells if isinstance(cell, DecodeCell))
    return counts.most_common(1)[0][0] if counts else None


def merged_cells(
    cells: Iterable[Cell], arm: str, sweep_pass: Pass, method: Method, setting: float | None = None
) -> list[MergedCell]:
    """Decode cells of an arm at a live setting (as launched) that have energy, by batch and prompt."""
    lines: dict[tuple[int, int], list[DecodeCell]] = {}
    for cell in cells:
        if (
            isinstance(cell, DecodeCell)
            and (cell.arm, cell.sweep_pass, cell.method, cell.setting) == (arm, sweep_pass, method, setting)
            and all(repeat.step_j is not None for repeat in cell.repeats)
        ):
            lines.setdefault((cell.batch, cell.prompt_tokens), []).append(cell)
    return [
        MergedCell(
            batch=batch,
            prompt_tokens=tokens,
            repeats=tuple(repeat for cell in same for repeat in cell.repeats),
            origin=same[0].origin,
        )
        for (batch, tokens), same in sorted(lines.items())
    ]
