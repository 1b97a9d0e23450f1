"""Probing keeps to its budget of requests and energy, and stops once enough is known."""

from __future__ import annotations

import pytest

from selector.core.exploration import ENOUGH_SAMPLES, Exploration
from selector.core.types import Finish, Outcome


def outcome(arm: str = "dspark-8", text_type: str = "code", verify_passes: int | None = 50) -> Outcome:
    return Outcome(
        request_id="r",
        backend="b0",
        arm=arm,
        text_type=text_type,
        finish=Finish.DONE,
        prompt_tokens=500,
        accepted_tokens=100,
        dispatched_s=0.0,
        finished_s=1.0,
        verify_passes=verify_passes,
        accepted_drafts=50 if verify_passes else None,
    )


def exploration(budget_frac: float = 0.01) -> Exploration:
    return Exploration([("dspark-8", "code")], budget_frac=budget_frac, stale_s=100.0)


def test_an_unknown_pair_is_due_until_enough_was_seen() -> None:
    probing = exploration()
    for number in range(ENOUGH_SAMPLES):
        assert probing.due("dspark-8", "code", float(number))
        probing.observe(outcome(), float(number))
    assert not probing.due("dspark-8", "code", float(ENOUGH_SAMPLES))


def test_a_known_pair_is_due_when_it_is_stale() -> None:
    probing = exploration()
    assert not probing.due("eagle3-k1", "code", 0.0)
    assert not probing.due("eagle3-k1", "code", 100.0)
    assert probing.due("eagle3-k1", "code", 100.1)
    probing.observe(outcome("eagle3-k1"), 110.0)
    assert not probing.due("eagle3-k1", "code", 200.0)
    probing.observe(outcome("eagle3-k1", verify_passes=None), 205.0)
    assert probing.due("eagle3-k1", "code", 211.0), "an outcome without counts tells nothing"


@pytest.mark.parametrize("extra_j", [0.0, 30.0, 1_000.0])
def test_probes_stay_within_the_share_of_requests_and_of_energy(extra_j: float) -> None:
    probing, probes = exploration(), 0
    for _ in range(50_000):
        if probing.may_probe() and probing.affords(extra_j):
            probing.probed(extra_j)
            probes += 1
        else:
            probing.sent(100.0)
    assert probes <= 0.01 * 50_000
    assert probes * extra_j <= 0.01 * 50_000 * 100.0
    assert probes > 0.8 * 0.01 * 50_000 * min(1.0, 100.0 / max(extra_j, 1.0)), "the budget is used"


def test_without_a_budget_nothing_is_probed() -> None:
    probing = exploration(0.0)
    for _ in range(1_000):
        probing.sent(100.0)
    assert not probing.may_probe()
