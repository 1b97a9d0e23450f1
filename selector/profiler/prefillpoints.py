"""Prefill of one arm for a profile: on a busy server by prompt length, and the least that a pass takes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from selector.files.profile import PrefillPass, PrefillPoint, Provenance
from selector.profiler.cells import Cell, PrefillCell
from selector.profiler.checks import spread_frac
from selector.profiler.provenance import measured_provenance

_BUSY = "prompts answered with one token, back to back, short ones several at a time, no prefix cache"
_ALONE = "prompts answered with one token, one after the other; time from the launch of a pass to its result"


def prefill_points(
    cells: Sequence[Cell], arm: str, key: str, provenance: dict[str, Provenance]
) -> tuple[PrefillPoint, ...] | None:
    """What a busy server of the arm took by prompt length; `None` where no cell has its energy."""
    by_length: dict[int, list[PrefillCell]] = {}
    for cell in _metered(cells, arm, alone=False):
        by_length.setdefault(cell.prompt_tokens, []).append(cell)
    if not by_length:
        return None
    provenance[key] = measured_provenance(next(iter(by_length.values()))[0].origin, _BUSY)
    return tuple(
        PrefillPoint(
            prompt_tokens=tokens,
            ms=round(fmean(cell.ms for cell in same), 4),
            j=round(_mean_j(same), 5),
            provenance=key,
            repeats=len(same),
            spread_frac=_rounded(spread_frac([cell.ms for cell in same])),
        )
        for tokens, same in sorted(by_length.items())
    )


def lone_pass(cells: Sequence[Cell], arm: str, key: str, provenance: dict[str, Provenance]) -> PrefillPass | None:
    """What a pass over a single short prompt took on the arm, the shortest if there are several; `None` if there is
    none."""
    alone = _metered(cells, arm, alone=True)
    if not alone:
        return None
    tokens = min(cell.prompt_tokens for cell in alone)
    same = [cell for cell in alone if cell.prompt_tokens == tokens]
    provenance[key] = measured_provenance(same[0].origin, _ALONE)
    return PrefillPass(
        prompt_tokens=tokens,
        ms=round(fmean(cell.ms for cell in same), 4),
        j=round(_mean_j(same), 5),
        provenance=key,
        repeats=len(same),
    )


def _metered(cells: Sequence[Cell], arm: str, *, alone: bool) -> list[PrefillCell]:
    return [
        cell
        for cell in cells
        if isinstance(cell, PrefillCell) and cell.arm == arm and cell.alone == alone and cell.j is not None
    ]


def _mean_j(cells: Sequence[PrefillCell]) -> float:
    return fmean(cell.j for cell in cells if cell.j is not None)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)
