"""The model of SGLang's own rule. tests/engine holds it against the engine's code; here its use and its limits."""

from __future__ import annotations

from random import Random

import pytest

from selector.core.depthsurvival import SlowRequests, accept_lengths, geometric_survivals
from selector.core.sglangadaptive import DEFAULT_SCHEDULES, DepthRule, Tier, expected, priced, tier_of
from selector.errors import DomainError
from tests.depthtables import straight_table

SLOW = SlowRequests.at(0.5)
TABLE = straight_table((0, 1, 3))


def run(rule: DepthRule, accepted: float, batches: int) -> list[int]:
    depths = []
    for _ in range(batches):
        rule.update(accepted)
        depths.append(rule.depth)
    return depths


def test_it_moves_only_after_the_warm_up_and_at_intervals() -> None:
    rule = DepthRule(Tier(candidate_steps=(1, 3), warmup_batches=10, update_interval=5), 3)
    assert run(rule, 0.0, 14) == [3] * 14
    assert run(rule, 0.0, 1) == [1]


def test_high_acceptance_goes_up_and_low_acceptance_down() -> None:
    tier = Tier(candidate_steps=(1, 3, 7))
    assert run(DepthRule(tier, 1), 1.0, 100)[-1] == 3
    assert run(DepthRule(tier, 3), 3.0, 100)[-1] == 7
    assert run(DepthRule(tier, 7), 0.2, 100)[-1] == 1


def test_depth_0_is_left_for_a_trial_after_every_interval() -> None:
    depths = run(DepthRule(Tier(candidate_steps=(0, 1), down_hysteresis=0.0), 0), 0.0, 400)[100:]
    assert 0.4 < depths.count(0) / len(depths) < 0.6


def test_a_start_that_is_no_candidate_becomes_the_middle_one() -> None:
    assert DepthRule(Tier(candidate_steps=(0, 1, 3)), 5).depth == 1


def test_a_ceiling_holds_down_what_does_not_move_up() -> None:
    tier = Tier(candidate_steps=(1, 3, 7), down_hysteresis=-9.0, up_hysteresis=9.0, ceiling_coeff=1.0)
    assert run(DepthRule(tier, 7), 2.4, 100)[-1] == 3


def test_a_batch_is_padded_before_its_tier_is_looked_up() -> None:
    schedule = {1: Tier(candidate_steps=(3,)), 8: Tier(candidate_steps=(1,)), 32: Tier(candidate_steps=(0,))}
    assert tier_of(schedule, 7).candidate_steps == (3,)
    assert tier_of(schedule, 7, (1, 8, 32)).candidate_steps == (1,)
    assert tier_of(schedule, 40, (1, 8, 32)).candidate_steps == (0,)
    assert tier_of({8: Tier(candidate_steps=(1,))}, 2).candidate_steps == (1,)


def test_what_has_no_cost_is_left_out_and_named() -> None:
    tier = DEFAULT_SCHEDULES["0.5.23"][1]
    known, left_out = priced(tier, TABLE)
    assert known is not None
    assert (known.candidate_steps, left_out) == ((1, 3), (5, 7))
    assert priced(Tier(candidate_steps=(7,)), TABLE) == (None, (7,))


def test_a_tier_of_one_depth_gives_what_that_depth_costs() -> None:
    curve = geometric_survivals(0.6, 3)
    found = expected(Tier(candidate_steps=(3,)), TABLE, curve, SLOW, batch=8, context_tokens=0.0, draws=Random(1))
    ms, j = TABLE.step(3, 8, 0.0)
    length = accept_lengths(curve)[3]
    assert found.depth_shares == {3: 1.0}
    assert found.j_per_accepted_token == pytest.approx(j / (8 * length))
    assert found.tbt_ms == pytest.approx(ms / length)
    assert found.tokens_per_ms == pytest.approx(8 * length / ms)


@pytest.mark.parametrize("batch", [1, 64])
def test_a_tier_of_two_costs_between_the_two(batch: int) -> None:
    curve = geometric_survivals(0.1, 3)
    both = expected(
        Tier(candidate_steps=(0, 1), down_hysteresis=0.0),
        TABLE,
        curve,
        SLOW,
        batch=batch,
        context_tokens=0.0,
        draws=Random(1),
    )
    alone = [
        expected(
            Tier(candidate_steps=(depth,)), TABLE, curve, SLOW, batch=batch, context_tokens=0.0, draws=Random(1)
        ).j_per_accepted_token
        for depth in (0, 1)
    ]
    assert min(alone) < both.j_per_accepted_token < max(alone)
    assert sum(both.depth_shares.values()) == pytest.approx(1.0)


def test_the_batch_mean_has_the_mean_that_survivals_say() -> None:
    # A rule with thresholds around the true mean sits where the mean says, for drawn and for normal batches alike.
    curve = geometric_survivals(0.7, 3)
    mean = accept_lengths(curve)[3] - 1.0
    for batch in (4, 64):
        for offset, depth in ((-0.4, 3), (0.4, 1)):
            tier = Tier(candidate_steps=(1, 3), ema_alpha=0.02, down_hysteresis=mean + offset - 0.5, up_hysteresis=-9.0)
            found = expected(tier, TABLE, curve, SLOW, batch=batch, context_tokens=0.0, draws=Random(2))
            # Down at once where the threshold lies above the mean, and up again by the trial of `up_hysteresis`.
            assert (found.depth_shares[3] > 0.95) == (depth == 3)


def test_nothing_is_said_of_a_tier_without_a_cost() -> None:
    with pytest.raises(DomainError):
        expected(Tier(candidate_steps=(7,)), TABLE, (0.5,) * 7, SLOW, batch=1, context_tokens=0.0, draws=Random(1))


@pytest.mark.parametrize("steps", [(), (-1, 2), (3, 1), (1, 1)])
def test_candidates_that_are_none_are_refused(steps: tuple[int, ...]) -> None:
    with pytest.raises(DomainError):
        Tier(candidate_steps=steps)
