"""Verify budgets as fixed arms, and their steps as the board of the other arms would have taken them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

from _budget_arms import COMPACT, baseline_ratios, budgets, on_one_board, with_fixed_budgets

from selector.files.profile import load_profile

PROFILE = load_profile("h200__qwen3-8b")


def test_every_budget_is_an_arm_that_stays_at_it() -> None:
    made = with_fixed_budgets(PROFILE)
    assert len(budgets(PROFILE)) == 3
    for other in PROFILE.arm(COMPACT).other_settings:
        fixed = made.arm(f"{COMPACT}-{other.value:g}")
        assert (fixed.cells, fixed.acceptance, fixed.live_setting) == (other.cells, other.acceptance, None)


def test_evened_steps_go_with_none_and_draw_no_more_than_a_board_does() -> None:
    ratios, evened = baseline_ratios(PROFILE), on_one_board(PROFILE)
    assert set(ratios) == {cell.batch for cell in PROFILE.arm(COMPACT).cells}
    others = [cell for name, arm in PROFILE.arms.items() if name != COMPACT for cell in arm.cells]
    most_w = max(cell.watts or 0.0 for cell in others)
    capped = 0
    pairs = zip(
        (PROFILE.arm(COMPACT), *PROFILE.arm(COMPACT).other_settings),
        (evened.arm(COMPACT), *evened.arm(COMPACT).other_settings),
        strict=True,
    )
    for before, after in pairs:
        for old, new in zip(before.cells, after.cells, strict=True):
            ms_ratio, j_ratio = ratios[old.batch]
            assert new.step_ms == pytest.approx(old.step_ms * ms_ratio)
            assert new.step_j <= old.step_j * j_ratio + 1e-9
            assert 1e3 * new.step_j / new.step_ms <= most_w + 1e-6
            capped += new.step_j < old.step_j * j_ratio - 1e-9
    assert 0 < capped < 16
    assert {name: arm for name, arm in evened.arms.items() if name != COMPACT} == {
        name: arm for name, arm in PROFILE.arms.items() if name != COMPACT
    }
