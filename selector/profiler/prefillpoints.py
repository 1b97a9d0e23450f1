"""Prefill of one arm for a profile: on a busy server by prompt length, and the least that a pass takes.

An arm that drafts puts its own part on top: measured at few lengths, it is taken to be the same ratio at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from selector.core.prefillcost import PrefillCost
from selector.files.profile import LonePass, PrefillPass, PrefillPoint, Provenance
from selector.profiler.cells import Cell, InterruptionCell, PrefillCell
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


def scaled_points(
    cells: Sequence[Cell], arm: str, plain: Sequence[PrefillPoint], key: str, provenance: dict[str, Provenance]
) -> tuple[PrefillPoint, ...] | None:
    """The plain server's prefill, times what the arm's took of it at the lengths measured; `None` where none was."""
    busy = _metered(cells, arm, alone=False)
    if not busy:
        return None
    cost = PrefillCost([(point.prompt_tokens, point.ms, point.j) for point in plain])
    ms_ratio = fmean(cell.ms / cost.work(cell.prompt_tokens)[0] for cell in busy)
    j_ratio = _mean_j(busy) / fmean(cost.work(cell.prompt_tokens)[1] for cell in busy)
    lengths = ", ".join(str(tokens) for tokens in sorted({cell.prompt_tokens for cell in busy}))
    provenance[key] = Provenance(
        kind="derived",
        source=f"prefill without a drafter × {ms_ratio:.3f} (time) and {j_ratio:.3f} (energy)",
        note=f"ratios measured with prompts of {lengths} tokens on {busy[0].origin.date}",
    )
    return tuple(
        PrefillPoint(
            prompt_tokens=point.prompt_tokens,
            ms=round(point.ms * ms_ratio, 4),
            j=round(point.j * j_ratio, 5),
            provenance=key,
        )
        for point in plain
    )


def lone_pass(cells: Sequence[Cell], arm: str, key: str, provenance: dict[str, Provenance]) -> PrefillPass | None:
    """What a pass over a single prompt took on the arm, by length from the shortest on; `None` if there is none."""
    by_length: dict[int, list[PrefillCell]] = {}
    for cell in sorted(_metered(cells, arm, alone=True), key=lambda cell: cell.prompt_tokens):
        by_length.setdefault(cell.prompt_tokens, []).append(cell)
    if not by_length:
        return None
    provenance[key] = measured_provenance(next(iter(by_length.values()))[0].origin, _ALONE)
    alone = [
        LonePass(
            prompt_tokens=tokens,
            ms=round(fmean(cell.ms for cell in same), 4),
            j=round(_mean_j(same), 5),
            repeats=len(same),
        )
        for tokens, same in by_length.items()
    ]
    return PrefillPass(**alone[0].model_dump(), provenance=key, longer=tuple(alone[1:]) or None)


def resumption(
    cells: Sequence[Cell], arm: str, alone: PrefillPass, key: str, provenance: dict[str, Provenance]
) -> dict[str, Any]:
    """Fields of the pass: how long running requests wait beyond it, in the mean over the lengths measured both ways;
    none where there is no such length.

    Passes that delay them by less than they take alone, since they overlap with their steps, leave nothing to resume.
    """
    passes_ms = {one.prompt_tokens: one.ms for one in alone.every_length}
    by_length: dict[int, list[InterruptionCell]] = {}
    for cell in cells:
        if isinstance(cell, InterruptionCell) and cell.arm == arm and cell.prompt_tokens in passes_ms:
            by_length.setdefault(cell.prompt_tokens, []).append(cell)
    if not by_length:
        return {}
    same = [cell for _, cells_of_length in sorted(by_length.items()) for cell in cells_of_length]
    stalls_ms = {tokens: fmean(cell.stall_ms for cell in each) for tokens, each in sorted(by_length.items())}
    running = ", ".join(str(count) for count in sorted({cell.running for cell in same}))
    provenance[key] = measured_provenance(
        same[0].origin,
        f"a lone prompt of {' or '.join(map(str, stalls_ms))} tokens put the next step of {running} running requests "
        f"off by {' or '.join(f'{stall_ms:.2f}' for stall_ms in stalls_ms.values())} ms "
        f"({sum(cell.prompts for cell in same)} prompts), less the pass alone",
    )
    resume_ms = fmean(stall_ms - passes_ms[tokens] for tokens, stall_ms in stalls_ms.items())
    return {"resume_ms": round(max(0.0, resume_ms), 3), "resume_provenance": key}


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
