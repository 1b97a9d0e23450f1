"""The profiles of `live_settings_table.py`: dspark-8-compact at each of its budgets, and on the other arms' board.

The profile's dspark-8-compact was measured on another board than none, eagle3-k1 and dspark-8, on which the same steps
of `none` took less. `on_one_board` evens that out: at each measured batch times and energies are multiplied by what
`none` took on the profile's board over what it took beside them, and no step draws more than the most that any measured
one did. It is derived, and used beside the costs as they were measured, to tell what holds either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from selector.files.profile import NO_DRAFTER, Acceptance, Profile, StepCell
from selector.profiler.cells import read_cells
from selector.profiler.merge import merged_cells

COMPACT = "dspark-8-compact"
BESIDE = Path(__file__).resolve().parents[1] / "profiles" / "raw" / "h200__qwen3-8b-compact.cells.jsonl"
"""Raw cells of dspark-8-compact and of the `none` beside it."""


def budgets(profile: Profile) -> tuple[float, ...]:
    """Measured ones besides the whole."""
    return tuple(other.value for other in profile.arm(COMPACT).other_settings)


def with_fixed_budgets(profile: Profile) -> Profile:
    """The profile with arms `dspark-8-compact-0.5` and so on, launched at one budget and left there."""
    arm = profile.arm(COMPACT)
    fixed = {
        f"{COMPACT}-{other.value:g}": arm.model_copy(
            update={"cells": other.cells, "acceptance": other.acceptance, "live_setting": None}
        )
        for other in arm.other_settings
    }
    return profile.model_copy(update={"arms": {**profile.arms, **fixed}})


def on_one_board(profile: Profile) -> Profile:
    """The profile with steps of dspark-8-compact as its other arms' board would have taken them, derived."""
    arm = profile.arm(COMPACT)
    assert arm.live_setting is not None
    ratios = baseline_ratios(profile)
    most_w = max(cell.watts or 0.0 for name, each in profile.arms.items() if name != COMPACT for cell in each.cells)

    def evened(cells: Sequence[StepCell]) -> tuple[StepCell, ...]:
        made = []
        for cell in cells:
            ms_ratio, j_ratio = ratios[cell.batch]
            ms = cell.step_ms * ms_ratio
            made.append(
                cell.model_copy(update={"step_ms": ms, "step_j": min(cell.step_j * j_ratio, most_w * ms / 1e3)})
            )
        return tuple(made)

    others = tuple(other.model_copy(update={"cells": evened(other.cells)}) for other in arm.other_settings)
    knob = arm.live_setting.model_copy(update={"others": others})
    there = arm.model_copy(update={"cells": evened(arm.cells), "live_setting": knob})
    return profile.model_copy(update={"arms": {**profile.arms, COMPACT: there}})


def baseline_ratios(profile: Profile) -> dict[int, tuple[float, float]]:
    """Time and energy of a step of `none` in the profile over those beside dspark-8-compact, by batch."""
    known = profile.cost(NO_DRAFTER).step
    ratios = {}
    for cell in merged_cells(read_cells(BESIDE), NO_DRAFTER, "main", "steady"):
        ms, j = known.step(cell.batch, cell.point.context_tokens)
        ratios[cell.batch] = (ms / cell.point.step_ms, j / cell.point.step_j)
    return ratios


def accept_lengths(profile: Profile) -> dict[str, dict[str, float]]:
    """Accept lengths of the arm by budget and text type, for the record."""

    def means(acceptance: dict[str, Acceptance]) -> dict[str, float]:
        return {text_type: known.mean for text_type, known in acceptance.items()}

    arm = profile.arm(COMPACT)
    return {"1": means(arm.acceptance), **{f"{o.value:g}": means(o.acceptance) for o in arm.other_settings}}
