"""The share of an engine's time that prompts take."""

from __future__ import annotations

import pytest

from selector.core.prefillcost import PrefillCost
from selector.core.prefillshare import HALF_LIFE_MS, EnginePrefillShare
from selector.errors import DomainError

COST = PrefillCost([(100.0, 10.0, 1.0), (1_000.0, 55.0, 5.0)])


def after(
    share: EnginePrefillShare, tokens: int, *, every_steps: int = 4, step_ms: float = 10.0, steps: int = 4_000
) -> float:
    for step in range(steps):
        if step % every_steps == 0:
            share.prefilled(tokens)
        share.stepped(step_ms)
    return share.frac


@pytest.mark.parametrize(("tokens", "ms"), [(50, 8.0), (100, 10.0), (550, 32.5), (2_000, 105.0)])
def test_it_is_the_time_of_the_passes_over_all_time(tokens: int, ms: float) -> None:
    share = EnginePrefillShare(PrefillCost([(100.0, 10.0, 1.0), (1_000.0, 55.0, 5.0)], floor_ms=8.0, resume_ms=2.0))
    assert after(share, tokens) == pytest.approx((ms + 2.0) / (ms + 2.0 + 40.0), rel=0.05)


def test_it_fades_when_no_prompts_come_any_more() -> None:
    share = EnginePrefillShare(COST)
    before = after(share, 1_000)
    for _ in range(int(2 * HALF_LIFE_MS / 10.0)):
        share.stepped(10.0)
    assert share.frac == pytest.approx(before / 4, rel=0.05)


def test_the_first_prompt_alone_says_little() -> None:
    share = EnginePrefillShare(COST)
    share.prefilled(1_000)
    share.stepped(5.0)
    assert 0.0 < share.frac < 0.02


def test_without_a_cost_it_stays_nothing_and_never_is_all() -> None:
    assert after(EnginePrefillShare(), 1_000) == 0.0
    assert after(EnginePrefillShare(COST), 1_000_000) == 0.9


@pytest.mark.parametrize("points", [((100.0, 5.0), (90.0, 6.0)), ((100.0, 5.0), (200.0, 4.0)), ((0.0, 5.0),)])
def test_points_that_do_not_rise_are_refused(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(DomainError):
        EnginePrefillShare(PrefillCost([(tokens, ms, 0.0) for tokens, ms in points]))
