"""Costs by depth from a profile's arms: which arms count, what is interpolated, what is said of it."""

from __future__ import annotations

import pytest

from selector.errors import ProfileError, UsageError
from selector.files.depthcosts import (
    depth_costs,
    survivals_of_length,
    survivals_of_text,
)
from selector.files.profile import Acceptance, Arm, Profile
from tests.profiles import sparse_profile

SPARSE = sparse_profile()


def with_arms(**changes: Arm | None) -> Profile:
    arms = {name: arm for name, arm in {**SPARSE.arms, **changes}.items() if arm is not None}
    return SPARSE.model_copy(update={"arms": arms})


def test_depths_are_the_arms_of_the_algorithm_and_none() -> None:
    costs = depth_costs(SPARSE, "sweep")
    assert costs.arms == {0: "none", 1: "eagle3-k1", 3: "eagle3-k3"}
    assert (costs.algorithm, costs.deepest_arm) == ("EAGLE3", "eagle3-k3")
    assert any("depth 0 is priced as the arm none and a pass of the draft" in note for note in costs.notes)


def test_at_depth_0_a_pass_of_the_draft_comes_on_top_unless_it_rests() -> None:
    plain, drafting = (SPARSE.cost(arm).step for arm in ("none", "eagle3-k1"))
    draft_pass = [a - b for a, b in zip(drafting.step(1, 1_024.0), plain.step(1, 1_024.0), strict=True)]
    along, resting = (depth_costs(SPARSE, "sweep", draft_rests=rests) for rests in (False, True))
    for batch, context in ((1, 300.0), (32, 2_000.0), (40, 5_000.0)):
        dearer = [a + b for a, b in zip(plain.step(batch, context), draft_pass, strict=True)]
        assert along.table.step(0, batch, context) == pytest.approx(dearer)
        assert resting.table.step(0, batch, context) == pytest.approx(plain.step(batch, context))
        assert along.table.step(1, batch, context) == resting.table.step(1, batch, context)
    assert min(draft_pass) > 0.0
    assert not any("reads along" in note for note in resting.notes)


def test_without_an_arm_that_drafts_one_token_nobody_knows_what_the_pass_costs() -> None:
    costs = depth_costs(with_arms(**{"eagle3-k1": None}), "sweep")
    assert costs.table.step(0, 8, 700.0) == pytest.approx(SPARSE.cost("none").step.step(8, 700.0))
    assert any("no arm drafts one token" in note for note in costs.notes)


def test_trees_and_adaptive_arms_have_no_depth() -> None:
    tree = SPARSE.arms["eagle3-k3"].model_copy(update={"topk": 4})
    adaptive = SPARSE.arms["eagle3-k3"].model_copy(
        update={"launch": SPARSE.arms["eagle3-k3"].launch.model_copy(update={"flags": ("--speculative-adaptive",)})}
    )
    for other in (tree, adaptive):
        assert depth_costs(with_arms(**{"eagle3-k3": other}), "sweep").arms == {0: "none", 1: "eagle3-k1"}


def test_a_depth_between_two_measured_ones_costs_between_them() -> None:
    table = depth_costs(SPARSE, "sweep", interpolate=True).table
    assert table.depths == (0, 1, 2, 3)
    for batch in (1, 8, 40):
        for context in (0.0, 900.0, 1_500.0, 5_000.0):
            one, two, three = (table.step(depth, batch, context) for depth in (1, 2, 3))
            assert two == pytest.approx([(a + b) / 2 for a, b in zip(one, three, strict=True)])


def test_nothing_is_interpolated_between_not_drafting_and_drafting() -> None:
    without_k1 = with_arms(**{"eagle3-k1": None})
    assert depth_costs(without_k1, "sweep", interpolate=True).table.depths == (0, 3)


def test_an_arm_measured_at_fewer_batches_is_said_to_be_extrapolated() -> None:
    short = SPARSE.arms["eagle3-k3"]
    short = short.model_copy(update={"cells": tuple(cell for cell in short.cells if cell.batch <= 32)})
    notes = depth_costs(with_arms(**{"eagle3-k3": short}), "sweep").notes
    assert any("eagle3-k3" in note and "up to batch 32" in note for note in notes)


def test_a_profile_without_depths_is_refused() -> None:
    with pytest.raises(ProfileError, match="eagle3-k1"):
        depth_costs(with_arms(**{"eagle3-k1": None, "eagle3-k3": None}), "sweep")
    with pytest.raises(ProfileError, match="MTP"):
        depth_costs(SPARSE, "sweep", algorithm="MTP")


def test_two_algorithms_have_to_be_chosen_from() -> None:
    mtp = SPARSE.arms["eagle3-k1"].model_copy(update={"algorithm": "NEXTN"})
    both = with_arms(**{"mtp-k1": mtp})
    with pytest.raises(UsageError, match="--algorithm"):
        depth_costs(both, "sweep")
    assert depth_costs(both, "sweep", algorithm="EAGLE").arms == {0: "none", 1: "mtp-k1"}


def test_a_measured_curve_keeps_its_shape_and_gets_the_mean() -> None:
    measured = Acceptance(mean=2.2, provenance="x", survival=(0.6, 0.35, 0.25), request_spread=0.1)
    arm = SPARSE.arms["eagle3-k3"].model_copy(update={"acceptance": {"code": measured}})
    profile = with_arms(**{"eagle3-k3": arm})
    curve, spread = survivals_of_text(profile, depth_costs(profile, "sweep"), "code")
    assert curve == pytest.approx((0.6, 0.35, 0.25), abs=1e-6)
    assert spread == 0.1


def test_without_a_curve_one_rate_gives_the_mean() -> None:
    curve, spread = survivals_of_text(SPARSE, depth_costs(SPARSE, "sweep"), "code")
    assert 1.0 + sum(curve) == pytest.approx(SPARSE.arms["eagle3-k3"].acceptance["code"].mean)
    assert curve[1] / curve[0] == pytest.approx(curve[0])
    assert spread == 0.15


def test_a_text_type_that_the_arm_lacks_is_refused() -> None:
    with pytest.raises(ProfileError, match="poetry"):
        survivals_of_text(SPARSE, depth_costs(SPARSE, "sweep"), "poetry")


def test_an_accept_length_that_the_depth_cannot_yield_is_refused() -> None:
    assert 1.0 + sum(survivals_of_length(2.5, 3, 3)) == pytest.approx(2.5)
    with pytest.raises(UsageError, match="--accept-length"):
        survivals_of_length(4.5, 3, 3)
