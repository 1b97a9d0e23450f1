"""What prefill costs, from the prefill cells of a sweep: of the plain server by prompt length, and of every arm.

An arm that drafts puts its own part on top: measured at few lengths, it is taken to be the same ratio at all. What a
pass takes at least is measured with a short prompt alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from selector.core.cost import PrefillCost
from selector.errors import InputError
from selector.files.profile import NO_DRAFTER, Arm, PrefillPass, PrefillPoint, Profile, Provenance
from selector.profiler.cells import Cell, PrefillCell
from selector.profiler.checks import IMPOSSIBLE, Ceiling, spread_frac
from selector.profiler.provenance import measured_provenance


def plain_prefill(
    cells: Iterable[Cell], base: Profile | None, provenance: dict[str, Provenance], ceiling: Ceiling
) -> tuple[PrefillPoint, ...]:
    """Prefill without a drafter, on a busy server; the base's where none was measured.

    Raises `InputError` when there is neither, and for a cell that is faster than its arithmetic.
    """
    by_length: dict[int, list[PrefillCell]] = {}
    for cell in _metered(cells, NO_DRAFTER, alone=False):
        by_length.setdefault(cell.prompt_tokens, []).append(cell)
    if not by_length:
        if base is None:
            raise InputError("cells.jsonl", "has no prefill cell with energy", "run the sweep on, or give --base")
        return base.prefill
    points = []
    for tokens, same in sorted(by_length.items()):
        ms = fmean(cell.ms for cell in same)
        floor_ms = ceiling.prefill_floor_ms(tokens)
        if floor_ms > ms:
            raise InputError(
                f"cells.jsonl: prefill of {tokens} tokens: ms",
                f"is {ms:.3f}, {floor_ms / ms:.2f} × the roofline",
                IMPOSSIBLE,
            )
        spread = spread_frac([cell.ms for cell in same])
        points.append(
            PrefillPoint(
                prompt_tokens=tokens,
                ms=round(ms, 4),
                j=round(_mean_j(same), 5),
                provenance="sweep-prefill",
                repeats=len(same),
                spread_frac=None if spread is None else round(spread, 5),
            )
        )
    first = next(iter(by_length.values()))[0]
    provenance["sweep-prefill"] = measured_provenance(
        first.origin, "prompts answered with one token, back to back, short ones several at a time, no prefix cache"
    )
    return tuple(points)


def arm_prefill(
    arm: str, cells: Sequence[Cell], plain: Sequence[PrefillPoint], old: Arm | None, provenance: dict[str, Provenance]
) -> dict[str, Any]:
    """The fields `prefill` and `prefill_pass` of an arm; the older profile's where nothing was measured."""
    alone = _metered(cells, arm, alone=True)
    return {
        "prefill": _scaled(arm, cells, plain, provenance) or (old.prefill if old else None),
        "prefill_pass": _pass(arm, alone, old, provenance) if alone else old.prefill_pass if old else None,
    }


def _scaled(
    arm: str, cells: Sequence[Cell], plain: Sequence[PrefillPoint], provenance: dict[str, Provenance]
) -> tuple[PrefillPoint, ...] | None:
    """The plain server's prefill, times what the arm's took of it at the lengths measured; `None` where none was."""
    busy = [] if arm == NO_DRAFTER else _metered(cells, arm, alone=False)
    if not busy:
        return None
    cost = PrefillCost([(point.prompt_tokens, point.ms, point.j) for point in plain])
    ms_ratio = fmean(cell.ms / cost.work(cell.prompt_tokens)[0] for cell in busy)
    j_ratio = _mean_j(busy) / fmean(cost.work(cell.prompt_tokens)[1] for cell in busy)
    lengths = ", ".join(str(tokens) for tokens in sorted({cell.prompt_tokens for cell in busy}))
    key = f"sweep-prefill-{arm}"
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


def _pass(arm: str, alone: Sequence[PrefillCell], old: Arm | None, provenance: dict[str, Provenance]) -> PrefillPass:
    key = f"sweep-pass-{arm}"
    provenance[key] = measured_provenance(
        alone[0].origin, "short prompts answered with one token, one after the other, no prefix cache"
    )
    before = old.prefill_pass if old else None
    return PrefillPass(
        prompt_tokens=alone[0].prompt_tokens,
        ms=round(fmean(cell.ms for cell in alone), 4),
        j=round(_mean_j(alone), 5),
        provenance=key,
        repeats=len(alone),
        resume_ms=before.resume_ms if before else 0.0,
        resume_provenance=before.resume_provenance if before else None,
    )


def _metered(cells: Iterable[Cell], arm: str, *, alone: bool) -> list[PrefillCell]:
    """The arm's prefill cells of that kind that have energy."""
    return [
        cell
        for cell in cells
        if isinstance(cell, PrefillCell) and cell.arm == arm and cell.alone == alone and cell.j is not None
    ]


def _mean_j(cells: Iterable[PrefillCell]) -> float:
    return fmean(cell.j for cell in cells if cell.j is not None)
