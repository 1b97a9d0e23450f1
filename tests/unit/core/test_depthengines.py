"""Rules of engines that choose their depth: asked when they may move, they do what they do when asked at every step."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selector.core.depthbatch import UNTOLD, UNTOLD_TEXT, DepthBatch, DepthRequest
from selector.core.depthchoice import ChoiceOptions, DepthChoice
from selector.core.depthengines import DepthEngine, OwnDepth, PluginDepths, ScheduledDepths, tiers_by_batch
from selector.core.depthsurvival import SlowRequests, geometric_survivals
from selector.core.depthtexts import DepthAcceptances
from selector.core.prefillcost import PrefillCost
from selector.core.prefillshare import EnginePrefillShare
from selector.core.sglangadaptive import DEFAULT_SCHEDULES, DepthRule, Tier
from selector.errors import DomainError
from tests.depthtables import straight_table
from tests.owndepths import DEPTHS, RESTLESS, own_depth, plugin_choice, table


def accepted(draw: Random, depth: int, batch: int, survival_rate: float) -> list[int]:
    """Drafts of each request of a pass, the same for the same state of `draw`."""
    counts = []
    for _ in range(batch):
        chance, count = draw.random(), 0
        while count < depth and chance < survival_rate ** (count + 1):
            count += 1
        counts.append(count)
    return counts


def depths_by_step(
    engine: DepthEngine, batches: list[int], steps: int, *, at_stretches: bool, survival_rate: float = 0.6
) -> list[int]:
    """The depth of every step of each batch in turn, asked step by step or for as long as it says."""
    draw, found = Random(7), []
    for batch in batches:
        left = steps
        while left:
            depth, holds = engine.choose(DepthBatch.alike(batch), 500.0)
            count = min(left, holds or left) if at_stretches else 1
            passes = [accepted(draw, depth, batch, survival_rate) for _ in range(count)]
            engine.verified(depth, passes)
            found.extend([depth] * count)
            left -= count
    return found


@given(st.lists(st.sampled_from([1, 2, 3, 5, 8, 20]), min_size=1, max_size=12), st.integers(1, 40))
@settings(max_examples=60)
def test_a_schedule_asked_when_it_may_move_is_the_schedule_asked_at_every_step(batches: list[int], steps: int) -> None:
    one, other = (ScheduledDepths(RESTLESS, table(), start_depth=7) for _ in range(2))
    by_step = depths_by_step(one, batches, steps, at_stretches=False)
    assert depths_by_step(other, batches, steps, at_stretches=True) == by_step


@given(st.integers(1, 7), st.integers(0, 12), st.lists(st.floats(0.0, 3.0), max_size=60))
def test_a_rule_moves_when_it_says_and_at_no_other_time(interval: int, warmup: int, means: list[float]) -> None:
    rule = DepthRule(Tier(candidate_steps=(0, 1, 3), update_interval=interval, warmup_batches=warmup), 1)
    for mean in means:
        to_go, before = rule.batches_to_go, rule.depth
        assert to_go is not None and to_go >= 1
        rule.update(mean)
        assert to_go == 1 or (rule.depth == before and rule.batches_to_go == to_go - 1)


def test_a_rule_of_one_depth_never_moves() -> None:
    assert DepthRule(Tier(candidate_steps=(3,)), 3).batches_to_go is None
    assert ScheduledDepths({1: Tier(candidate_steps=(7,))}, table(), start_depth=7).choose(
        DepthBatch.alike(4, 5.0), 0.0
    ) == (7, None)


def test_depths_without_a_cost_are_left_out_and_a_tier_of_none_is_refused() -> None:
    engine = ScheduledDepths({1: Tier(candidate_steps=(1, 5))}, table(), start_depth=5)
    assert engine.choose(DepthBatch.alike(1), 0.0) == (1, None)
    with pytest.raises(DomainError, match="tier 8"):
        ScheduledDepths({1: Tier(candidate_steps=(1,)), 8: Tier(candidate_steps=(2, 5))}, table(), start_depth=1)


def test_the_plugin_settles_at_the_same_depth_however_often_it_is_asked() -> None:
    for batch in (1, 16, 64):
        found = []
        for at_stretches in (False, True):
            engine = PluginDepths(plugin_choice(0.3, ChoiceOptions(trial_every_steps=0)))
            found.append(depths_by_step(engine, [batch], 400, at_stretches=at_stretches)[-1])
        assert found[0] == found[1]


class Recording(DepthAcceptances):
    """Remembers what it is told."""

    def __init__(self, survival_rate: float) -> None:
        super().__init__(geometric_survivals(survival_rate, 7), SlowRequests.at())
        self.told: list[tuple[int, Sequence[int]]] = []

    def observe(self, depth: int, accepted: Sequence[int], batch: DepthBatch) -> bool:
        self.told.append((depth, accepted))
        return super().observe(depth, accepted, batch)


def test_the_plugin_learns_of_a_pass_one_step_late() -> None:
    acceptance = Recording(0.6)
    engine = PluginDepths(DepthChoice(table(), acceptance, ChoiceOptions(), start_depth=7))
    engine.verified(7, [[1], [2], [3]])
    assert acceptance.told == [(7, [1]), (7, [2])]
    engine.verified(1, [[0]])
    assert acceptance.told[-1] == (7, [3])


def test_what_was_accepted_teaches_the_text_it_was_accepted_of() -> None:
    acceptance = DepthAcceptances(geometric_survivals(0.5, 7), SlowRequests.at())
    engine = PluginDepths(DepthChoice(table(), acceptance, ChoiceOptions(trial_every_steps=0), start_depth=7))
    for _ in range(40):
        depth, _ = engine.choose(DepthBatch([DepthRequest("code"), DepthRequest("romansh")] * 4), 100.0)
        engine.verified(depth, [[depth, 0] * 4])
    before, code, romansh = (acceptance.of(text).lengths[7] for text in ("news", "code", "romansh"))
    assert romansh < before < code


def test_prompts_take_from_every_target() -> None:
    """6 ms a step without drafts, 5 ms a token at depth 1: for the half of the time nobody decodes."""
    costs = straight_table((0, 1), ms=6.0, ms_per_depth=1.5, ms_per_request=0.0, j_per_depth=6.0)
    acceptance = DepthAcceptances((0.5,), SlowRequests.at(0.5))
    options = ChoiceOptions(trial_every_steps=0)
    choice = DepthChoice(
        costs, acceptance, options, start_depth=0, prefill=EnginePrefillShare(PrefillCost([(100.0, 6.0, 0.0)]))
    )
    engine = PluginDepths(choice)
    depths = []
    for _ in range(4_000):
        depths.append(engine.choose(DepthBatch.alike(4, 10.0), 100.0).depth)
        engine.prefilled(100)
    assert depths[0] == 0 and depths[-1] == 1
    assert choice.prefill.frac > 0.4


@pytest.mark.parametrize("batch", [1, 4, 64])
def test_a_trial_lasts_as_many_requests_as_when_every_step_asks(batch: int) -> None:
    """Depth 0 is best unless all drafts are accepted, so that depth 1 is only tried."""
    dear = straight_table((0, 1), j_per_depth=0.3, j_per_request=0.001)
    options = ChoiceOptions(dwell_steps=8, trial_every_steps=50, most_trial_steps=50)
    shares = []
    for at_stretches in (False, True):
        choice = DepthChoice(dear, Recording(0.01), options, start_depth=0)
        depths = depths_by_step(PluginDepths(choice), [batch], 600, at_stretches=at_stretches, survival_rate=0.01)
        assert (choice.changes, choice.depth) == (0, 0)
        shares.append((depths.count(1) / choice.trials, choice.trials))
    steps, trials = shares[0]
    assert steps == shares[1][0] == max(1, 16 // batch)
    assert trials > 6
    assert shares[1][1] == pytest.approx(trials, rel=0.2)


def test_a_tier_serves_the_batches_that_are_padded_up_to_it() -> None:
    tiers = tiers_by_batch(DEFAULT_SCHEDULES["0.5.23"], (1, 8, 32, 64), 64)
    assert tiers == ((1, (1, 3, 5, 7)), (2, (0, 1, 3)), (9, (0, 1)), (33, (0,)))
    own = OwnDepth(start=own_depth("schedule").start, tiers=tiers)
    assert [own.candidates(batch) for batch in (1, 2, 8, 9, 64, 200)] == [
        (1, 3, 5, 7), (0, 1, 3), (0, 1, 3), (0, 1), (0,), (0,),
    ]  # fmt: skip


def test_targets_count_where_the_engine_takes_them() -> None:
    plugin, schedule = own_depth("plugin", default_target_ms=30.0), own_depth("schedule")
    assert [plugin.target_ms(target_ms) for target_ms in (10.0, None)] == [10.0, 30.0]
    assert schedule.target_ms(10.0) is None
    assert plugin.told("code", None) == DepthRequest("code", 30.0)
    assert plugin.told("unknown", 10.0) == DepthRequest(UNTOLD_TEXT, 10.0)
    assert schedule.told("code", 10.0) == UNTOLD
    assert plugin.candidates(5) == DEPTHS
