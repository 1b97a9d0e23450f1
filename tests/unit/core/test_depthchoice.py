"""The choice of depth: cheapest within the target, steady, and curious enough to notice better text."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from selector.core.depthbatch import DepthBatch, DepthRequest
from selector.core.depthchoice import ChoiceOptions, DepthChoice
from selector.core.depthsurvival import SlowRequests, geometric_survivals
from selector.core.depthtable import DepthTable
from selector.core.depthtexts import DepthAcceptances
from selector.core.prefillcost import PrefillCost
from selector.core.prefillshare import EnginePrefillShare
from selector.errors import DomainError
from tests.depthtables import straight_table

SLOW = SlowRequests.at(0.5)
"""Targets judged by the mean: what is predicted can be worked out by hand."""
NO_TRIALS = ChoiceOptions(trial_every_steps=0)


def choice_of(
    survival: float,
    table: DepthTable | None = None,
    options: ChoiceOptions = NO_TRIALS,
    *,
    start_depth: int = 1,
    prior_requests: float = 64.0,
) -> DepthChoice:
    acceptance = DepthAcceptances(geometric_survivals(survival, 3), SLOW, prior_requests=prior_requests)
    return DepthChoice(table or straight_table(), acceptance, options, start_depth=start_depth)


def settle(choice: DepthChoice, batch: int, target_ms: float | None = None) -> int:
    """The depth after enough steps for every change that is wanted."""
    for _ in range(100):
        depth = choice.choose(DepthBatch.alike(batch, target_ms), 0.0)
    return depth


def test_without_a_target_the_cheapest_depth_is_taken() -> None:
    for batch in (1, 16, 64):
        choice = choice_of(0.7)
        best = min(choice.points(batch, 0.0), key=lambda point: point.j_per_accepted_token)
        assert settle(choice, batch) == best.depth


def test_good_text_is_drafted_deep_and_bad_text_not_at_all() -> None:
    dear = straight_table(j_per_request=0.1)
    assert settle(choice_of(0.95, dear), 32) == 3
    assert settle(choice_of(0.05, dear), 32) == 0


def test_a_target_rules_out_cheaper_depths() -> None:
    # Drafting costs so much energy that depth 0 is cheapest, and so little time that it is slowest.
    table = straight_table(j_per_depth=6.0, ms_per_depth=0.1)
    assert settle(choice_of(0.7, table), 8) == 0
    points = {point.depth: point.tbt_ms for point in choice_of(0.7, table).points(8, 0.0)}
    assert points[3] < points[1] < points[0]
    assert settle(choice_of(0.7, table), 8, (points[1] + points[0]) / 2) == 1
    assert settle(choice_of(0.7, table), 8, (points[3] + points[1]) / 2) == 3


def test_where_no_depth_meets_the_target_the_fastest_is_taken() -> None:
    table = straight_table(j_per_depth=6.0, ms_per_depth=0.1)
    assert settle(choice_of(0.7, table), 8, 0.001) == 3


def test_a_target_that_some_requests_can_meet_is_preferred_to_one_that_none_can() -> None:
    # Depth 0 takes 6.1 ms whatever comes; at depth 1 the mean request takes 5.5 ms and the slow one 6.2 ms.
    row = [[(0.0, 6.1, 0.0, 1.0, 0.0)]], [[(0.0, 5.5 * 1.5, 0.0, 9.0, 0.0)]]
    table = DepthTable({0: row[0], 1: row[1]})
    slow = SlowRequests.at(0.9, spread_frac=0.087, output_tokens=1e9)
    acceptance = DepthAcceptances((0.5,), slow)
    choice = DepthChoice(table, acceptance, NO_TRIALS, start_depth=0)
    tbt_ms = {point.depth: point.tbt_ms for point in choice.points(1, 0.0)}
    assert tbt_ms[1] > tbt_ms[0] > 6.0
    assert settle(choice, 1, 6.0) == 1
    assert settle(choice, 1, 6.15) == 0  # where depth 0 meets it, it does so for all


def test_a_depth_that_misses_the_target_is_left_at_once() -> None:
    table = straight_table(j_per_depth=6.0, ms_per_depth=0.1)
    choice = choice_of(0.7, table, ChoiceOptions(trial_every_steps=0, dwell_steps=1_000), start_depth=0)
    assert choice.choose(DepthBatch.alike(8, 100.0), 0.0) == 0
    assert choice.choose(DepthBatch.alike(8, min(point.tbt_ms for point in choice.points(8, 0.0)) + 1e-6), 0.0) == 3


def test_headroom_makes_a_target_tighter() -> None:
    table = straight_table(j_per_depth=6.0, ms_per_depth=0.1)
    points = {point.depth: point.tbt_ms for point in choice_of(0.7, table).points(8, 0.0)}
    options = ChoiceOptions(trial_every_steps=0, headroom_frac=0.2)
    assert settle(choice_of(0.7, table, options), 8, points[0] * 1.1) == 1


def test_a_saving_below_the_margin_changes_nothing() -> None:
    even = straight_table((0, 1), j=2.5, j_per_depth=2.5 * 0.7 - 0.01, j_per_request=0.0)
    choice = choice_of(0.7, even, ChoiceOptions(trial_every_steps=0, margin_frac=0.05), start_depth=0)
    points = choice.points(1, 0.0)
    assert points[1].j_per_accepted_token < points[0].j_per_accepted_token
    assert settle(choice, 1) == 0


def test_changes_that_no_target_asks_for_wait() -> None:
    choice = choice_of(0.7, options=ChoiceOptions(trial_every_steps=0, dwell_steps=20))
    depths = []
    for step in range(400):
        # The load jumps at every step between one where 3 is best and one where 0 is.
        depths.append(choice.choose(DepthBatch.alike(1 if step % 2 else 64), 0.0))
    changes = sum(one != other for one, other in pairwise(depths))
    assert changes == choice.changes <= 400 // 20


def test_text_that_is_known_only_deeper_is_found_by_a_trial() -> None:
    table = straight_table((0, 3), j_per_request=0.0, j_per_depth=0.2)
    tried = choice_of(0.02, table, ChoiceOptions(trial_every_steps=50), start_depth=0, prior_requests=8.0)
    never = choice_of(0.02, table, NO_TRIALS, start_depth=0, prior_requests=8.0)
    for choice in (tried, never):
        for _ in range(2_000):
            depth = choice.choose(DepthBatch.alike(8), 0.0)
            choice.acceptance.observe(depth, [depth] * 8, DepthBatch.alike(8))  # every draft is right, whoever tries
    assert never.depth == 0
    assert tried.depth == 3


def test_depth_0_is_left_for_text_that_meets_the_target_after_text_that_did_not() -> None:
    # A step without drafts takes 5.0 ms, one with three 7.0 ms: more than the target at what bad text has accepted.
    table = straight_table((0, 3), ms=5.0, ms_per_depth=2.0 / 3, ms_per_request=0.0, j_per_request=0.0, j_per_depth=0.2)
    choice = choice_of(0.5, table, ChoiceOptions(trial_every_steps=50), start_depth=3, prior_requests=8.0)
    for accepted, settled in ((0, 0), (3, 3)):
        for _ in range(2_000):
            depth = choice.choose(DepthBatch.alike(8, 6.0), 0.0)
            choice.acceptance.observe(depth, [min(accepted, depth)] * 8, DepthBatch.alike(8))
        assert choice.depth == settled
    # 35 ms for four tokens at best: no text is worth a trial.
    slow = straight_table((0, 3), ms=5.0, ms_per_depth=10.0, ms_per_request=0.0, j_per_request=0.0, j_per_depth=0.2)
    hopeless = choice_of(0.5, slow, ChoiceOptions(trial_every_steps=50), start_depth=0)
    assert {hopeless.choose(DepthBatch.alike(8, 6.0), 0.0) for _ in range(200)} == {0}


def test_trials_in_vain_become_rare() -> None:
    table = straight_table((0, 3), j_per_request=0.0, j_per_depth=0.2)
    choice = choice_of(0.02, table, ChoiceOptions(trial_every_steps=50, most_trial_steps=800), start_depth=0)
    tried = [0, 0]
    for step in range(8_000):
        depth = choice.choose(DepthBatch.alike(8), 0.0)
        choice.acceptance.observe(depth, [0] * 8, DepthBatch.alike(8))
        tried[step >= 4_000] += depth > 0
    assert tried[0] > tried[1] > 0
    assert sum(tried) < 8_000 * 0.02
    assert choice.changes == 0


def test_no_trial_where_even_full_acceptance_would_not_pay() -> None:
    table = straight_table((0, 1), j=1.0, j_per_depth=10.0, j_per_request=0.0)
    choice = choice_of(0.5, table, ChoiceOptions(trial_every_steps=10), start_depth=0)
    assert {choice.choose(DepthBatch.alike(8), 0.0) for _ in range(200)} == {0}


def test_ranks_that_see_the_same_choose_alike() -> None:
    options = ChoiceOptions(trial_every_steps=20)
    ranks = [choice_of(0.6, options=options), choice_of(0.6, options=options)]
    draw = Random(3)
    for _ in range(500):
        batch, chance = draw.randint(1, 64), draw.random()
        depths = {rank.choose(DepthBatch.alike(batch, 6.0), 100.0) for rank in ranks}
        assert len(depths) == 1
        depth = depths.pop()
        for rank in ranks:
            rank.acceptance.observe(depth, [round(chance * depth)] * batch, DepthBatch.alike(batch))


def test_a_start_or_a_curve_that_does_not_fit_is_refused() -> None:
    with pytest.raises(DomainError):
        choice_of(0.5, start_depth=2)
    with pytest.raises(DomainError):
        choice_of(0.5, straight_table((0, 5)), start_depth=0)


@pytest.mark.parametrize(
    "options", [{"margin_frac": -0.1}, {"headroom_frac": 1.0}, {"dwell_steps": -1}, {"most_trial_steps": 3}]
)
def test_options_that_cannot_be_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(DomainError):
        ChoiceOptions(**options)  # type: ignore[arg-type]  # some of them are whole numbers


MIXED = DepthBatch([DepthRequest("code", 7.0)] * 4 + [DepthRequest("romansh", 7.0)] * 4)


def mixed_choice(ms_per_depth: float, **curves: float) -> DepthChoice:
    """Drafting saves energy; of each text type another share of the drafts is accepted."""
    table = straight_table((0, 3), ms=6.0, ms_per_depth=ms_per_depth, ms_per_request=0.0, j_per_depth=0.1)
    priors = {text: geometric_survivals(survival, 3) for text, survival in curves.items()}
    acceptance = DepthAcceptances(geometric_survivals(0.5, 3), SLOW, priors=priors)
    return DepthChoice(table, acceptance, NO_TRIALS, start_depth=3)


def test_a_text_type_of_the_batch_that_would_miss_its_target_rules_a_depth_out() -> None:
    # 9 ms a step: 3 ms a token of code, 9 of Romansh, 4.5 in the mean; not drafting gives everyone 6.
    choice = mixed_choice(1.0, code=0.9, romansh=0.01)
    assert settle(choice, 8, 7.0) == 3  # of texts that nobody told apart
    assert {choice.choose(MIXED, 0.0) for _ in range(20)} == {0}
    other_way = DepthBatch([DepthRequest("romansh", 7.0), DepthRequest("code", 7.0)])
    assert choice.choose(other_way, 0.0) == 0


def test_where_one_text_type_cannot_meet_its_target_the_others_do() -> None:
    # 7.5 ms without drafts: too slow for all. 12 ms with three: 3.5 a token of code.
    table = straight_table((0, 3), ms=7.5, ms_per_depth=1.5, ms_per_request=0.0, j_per_depth=3.0)
    priors = {"code": geometric_survivals(0.9, 3), "romansh": geometric_survivals(0.01, 3)}
    choice = DepthChoice(table, DepthAcceptances((0.5, 0.25, 0.1), SLOW, priors=priors), NO_TRIALS, start_depth=0)
    assert [choice.choose(MIXED, 0.0) for _ in range(40)][-1] == 3


def test_what_nobody_can_meet_is_missed_at_little_energy() -> None:
    # No depth is near the target; depth 3 is a little slower than depth 1 and much cheaper.
    table = straight_table((1, 3), ms=20.0, ms_per_depth=4.2, ms_per_request=0.0, j_per_depth=-0.5)
    choice = choice_of(0.5, table, start_depth=1)
    points = {point.depth: point for point in choice.points(8, 0.0)}
    assert points[1].tbt_ms < points[3].tbt_ms < 1.1 * points[1].tbt_ms
    assert points[3].j_per_accepted_token < points[1].j_per_accepted_token
    assert settle(choice, 8, 2.0) == 3


def test_prompts_that_take_half_of_the_time_leave_half_of_a_target() -> None:
    table = straight_table(j_per_depth=6.0, ms_per_depth=0.1)
    share = EnginePrefillShare(PrefillCost([(100.0, 10.0, 0.0)]))
    acceptance = DepthAcceptances(geometric_survivals(0.7, 3), SLOW)
    choice = DepthChoice(table, acceptance, NO_TRIALS, start_depth=0, prefill=share)
    tbt_ms = choice.points(8, 0.0)[0].tbt_ms
    assert settle(choice, 8, 1.5 * tbt_ms) == 0
    share.frac = 0.5
    assert choice.choose(DepthBatch.alike(8, 1.5 * tbt_ms), 0.0) > 0


def test_under_an_open_load_depths_are_compared_at_the_same_pace() -> None:
    # Twice the tokens for 1.6 times the energy of a step: cheaper at a batch, dearer at the half of it.
    rows = {depth: [[(0.0, 4.0, 0.0, j, 0.0)] for _ in range(64)] for depth, j in ((0, 2.0), (1, 3.2))}
    for open_load, wanted in ((False, 1), (True, 0)):
        options = ChoiceOptions(trial_every_steps=0, open_load=open_load)
        acceptance = DepthAcceptances((1.0,), SLOW)
        choice = DepthChoice(DepthTable(rows), acceptance, options, start_depth=1)
        assert settle(choice, 16) == wanted
        choice = DepthChoice(DepthTable(rows), acceptance, options, start_depth=0)
        assert settle(choice, 16) == wanted


def test_where_no_depth_has_room_for_the_pace_the_batch_that_is_there_counts() -> None:
    rows = {depth: [[(0.0, 4.0, 0.0, j, 0.0)] for _ in range(64)] for depth, j in ((0, 2.0), (1, 3.2))}
    options = ChoiceOptions(trial_every_steps=0, open_load=True)
    choice = DepthChoice(DepthTable(rows), DepthAcceptances((1.0,), SLOW), options, start_depth=0)
    assert settle(choice, 40) == 0, "depth 0 holds it"
    # 62 requests are more than 90 % of 64 places at depth 0; at depth 1 half of them would be there.
    assert settle(choice, 62) == 1
    dearer = {depth: [[(0.0, ms, 0.0, j, 0.0)] for _ in range(64)] for depth, ms, j in ((0, 4.0, 2.0), (1, 6.0, 5.0))}
    for start_depth in (0, 1):
        choice = DepthChoice(DepthTable(dearer), DepthAcceptances((1.0,), SLOW), options, start_depth=start_depth)
        assert settle(choice, 200) == 0, (
            "no depth holds them; drafting is faster, and dearer at the batch that is there"
        )


def test_an_idle_power_below_nothing_is_refused() -> None:
    with pytest.raises(DomainError, match="no way to choose"):
        ChoiceOptions(idle_w=-1.0)
