"""The profile of `live_settings_table.py`: dspark-8 with a verify budget, whose costs nobody has measured.

Until a sweep of `bench/h200/dspark-compact.toml` is there, a step of b requests at the budget f is assumed to take

    T(b, f) = T_none(b) + d + f (T_dspark-8(b) − T_none(b) − d)           and likewise its energy

with d what drafting costs at every batch: k times what dspark-8 takes at batch 1 beyond a plain step of as many tokens.
The rest is linear in the tokens verified, between one token a request and the whole block. Compact verification at the
whole budget is assumed to cost what static verification does, and no graph is padded.
"""

from __future__ import annotations

from selector.core.cost import StepCost
from selector.files.arm import VERIFY_BUDGET
from selector.files.profile import Acceptance, Arm, LiveSetting, Profile, Provenance, SettingValue, StepCell
from selector.profiler.settingacceptance import with_setting_acceptance

COMPACT = "dspark-8-compact"
BUDGETS = (0.5, 0.25, 0.125)
"""Besides the whole one."""


def with_assumed_budgets(profile: Profile, drafting_factor: float) -> Profile:
    """The profile with the arm `dspark-8-compact` (and `…-0.5` and so on, launched at one budget): k is the factor."""
    block = profile.arm("dspark-8")
    plain, whole = profile.cost("none").step, profile.cost("dspark-8").step
    drafting = [
        drafting_factor * (one - other)
        for one, other in zip(whole.step(1, 2_000.0), plain.step(block.verify_tokens, 250.0), strict=True)
    ]
    provenance = {
        **profile.provenance,
        "assumed-budget": Provenance(
            kind="assumed",
            source=(
                f"a step at a verify budget: linear in the tokens verified between none and dspark-8, of which "
                f"{drafting[0]:.2f} ms and {drafting[1]:.2f} J are drafting at every batch; not measured"
            ),
        ),
    }
    others = tuple(
        SettingValue(value=value, cells=_cells(block, plain, (drafting[0], drafting[1]), value)) for value in BUDGETS
    )
    whole_cells = _cells(block, plain, (drafting[0], drafting[1]), 1.0)
    compact = block.model_copy(
        update={"cells": whole_cells, "live_setting": LiveSetting(name=VERIFY_BUDGET, launched=1.0, others=others)}
    )
    made = profile.model_copy(update={"arms": {**profile.arms, COMPACT: compact}, "provenance": provenance})
    made = with_setting_acceptance(made)
    fixed = {
        f"{COMPACT}-{other.value:g}": block.model_copy(update={"cells": other.cells, "acceptance": other.acceptance})
        for other in made.arm(COMPACT).other_settings
    }
    return made.model_copy(update={"arms": {**made.arms, **fixed}})


def _cells(block: Arm, plain: StepCost, drafting: tuple[float, float], budget_frac: float) -> tuple[StepCell, ...]:
    cells = []
    for cell in block.cells:
        ms, j = plain.step(cell.batch, cell.context_tokens)
        cells.append(
            StepCell(
                batch=cell.batch,
                context_tokens=cell.context_tokens,
                step_ms=_at(budget_frac, ms, drafting[0], cell.step_ms),
                step_j=_at(budget_frac, j, drafting[1], cell.step_j),
                provenance="assumed-budget",
            )
        )
    return tuple(cells)


def _at(budget_frac: float, plain: float, drafting: float, whole: float) -> float:
    least = min(plain + drafting, whole)
    return least + budget_frac * (whole - least)


def accept_lengths(profile: Profile) -> dict[str, dict[str, float]]:
    """Accept lengths of the arm by budget and text type, for the record."""

    def means(acceptance: dict[str, Acceptance]) -> dict[str, float]:
        return {text_type: known.mean for text_type, known in acceptance.items()}

    arm = profile.arm(COMPACT)
    return {"1": means(arm.acceptance), **{f"{o.value:g}": means(o.acceptance) for o in arm.other_settings}}
