"""What each pool gets of an assignment, and what there is no place for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from selector.core.assignment import Assignment, Held
from selector.core.policy import BackendSpec
from selector.core.poolload import Demand
from selector.core.pools import UsablePools, pools_of
from tests.demands import QUANTILE, demand
from tests.fleets import acceptance_model, specs_of
from tests.livearms import ARM, QUARTER, fleet

LARGE, SMALL = demand("code", 60.0), demand("romansh", 30.0)


def assignment(specs: list[BackendSpec], *arms_of: tuple[Demand, tuple[str, ...]]) -> Assignment:
    pools = pools_of(specs)
    counts = {arm: pool.backends for arm, pool in pools.items()}
    usable = UsablePools(pools, counts, acceptance_model(), QUANTILE)
    return Assignment(usable, [each for each, _ in arms_of], {each.key: arms for each, arms in arms_of}, {})


def rates(held: list[Held]) -> dict[str, float]:
    return {pool.arm: pool.tokens_per_s for pool in held}


def on_a_full_arm(*others: str) -> Assignment:
    arms = ("dspark-8", *others)
    return assignment(specs_of(*arms), (LARGE, arms), (SMALL, arms))


def test_demands_that_share_a_full_arm_have_the_same_share_there() -> None:
    """The curve of an arm knows its mix: both as they are asked for, and what is left of both in the same shares."""
    asked = on_a_full_arm("none")
    held, unserved = asked.alike(1.0)
    first, second = held
    assert (first.arm, second.arm) == ("dspark-8", "none")
    both = [(LARGE, LARGE.tokens_per_s), (SMALL, SMALL.tokens_per_s)]
    assert first.curve is asked.curve("dspark-8", both)
    assert first.tokens_per_s == pytest.approx(first.curve.full.tokens_per_s)
    assert first.tokens_per_s + second.tokens_per_s + unserved == pytest.approx(sum(rate for _, rate in both))
    assert unserved > 0.0


def test_all_can_be_asked_for_on_the_planned_arms_whether_they_hold_it_or_not() -> None:
    held = on_a_full_arm("none").on_planned_arms()
    assert rates(held) == {"dspark-8": pytest.approx(LARGE.tokens_per_s + SMALL.tokens_per_s)}
    assert held[0].tokens_per_s > held[0].backends * held[0].curve.full.tokens_per_s


def test_what_overflows_is_the_share_on_other_arms_than_the_planned_ones() -> None:
    asked = on_a_full_arm("none")
    held, _ = asked.alike(1.0)
    assert asked.overflow_frac(held) == pytest.approx(held[1].tokens_per_s / sum(rates(held).values()))
    assert asked.overflow_frac(held) > 0.1
    assert asked.overflow_frac(asked.alike(0.1)[0]) == asked.overflow_frac(asked.on_planned_arms()) == 0.0


def test_an_arm_is_undisturbed_that_serves_all_that_is_planned_for_it_and_nothing_else() -> None:
    asked = assignment(
        specs_of("none", "dspark-8", "eagle3-k1"), (LARGE, ("none", "dspark-8")), (SMALL, ("eagle3-k1", "none"))
    )
    within, beyond = asked.alike(0.1)[0], asked.alike(0.45)[0]
    assert asked.undisturbed(within) == {"none", "eagle3-k1"}
    assert set(rates(beyond)) == {"none", "dspark-8", "eagle3-k1"}
    assert asked.undisturbed(beyond) == {"eagle3-k1"}, "the others have too few places, or the overflow"


def test_overflow_to_an_arm_that_others_are_planned_for_counts_too() -> None:
    asked = assignment(specs_of("none", "dspark-8"), (LARGE, ("none", "dspark-8")), (SMALL, ("dspark-8", "none")))
    held, unserved = asked.alike(0.45)
    beyond = rates(held)["dspark-8"] - 0.45 * SMALL.tokens_per_s
    assert unserved == 0.0 and beyond > 100.0
    assert asked.overflow_frac(held) == pytest.approx(beyond / sum(rates(held).values()))


def test_what_no_arm_has_a_place_for_is_told() -> None:
    asked = on_a_full_arm("none")
    held, unserved = asked.alike(10.0)
    room = sum(pool.backends * pool.curve.full.tokens_per_s for pool in held)
    assert sum(rates(held).values()) == pytest.approx(room, rel=0.01)
    assert unserved == pytest.approx(10.0 * (LARGE.tokens_per_s + SMALL.tokens_per_s) - room, rel=0.01)


def test_every_usable_backend_of_an_arm_counts() -> None:
    one, two = (assignment(specs_of(*["none"] * n), (LARGE, ("none",))).alike(5.0)[0][0] for n in (1, 2))
    assert (one.backends, two.backends) == (1, 2)
    assert two.tokens_per_s == pytest.approx(2.0 * one.tokens_per_s)


def one_gpu(*planned: str) -> Assignment:
    """Demands of code and Romansh, each on one of two arms that share a GPU; overflow may go to a third arm too."""
    specs = [replace(spec, gpus=("g",)) for spec in specs_of("none", "dspark-8")]
    order = [(arm, *({"none", "dspark-8"} - {arm}), "eagle3-k1") for arm in planned]
    return assignment([*specs, *specs_of("eagle3-k1")], *zip((LARGE, SMALL), order, strict=True))


def test_nothing_overflows_to_a_server_that_would_take_turns_with_a_planned_one() -> None:
    asked = one_gpu("none", "none")
    assert asked.resting == {"dspark-8"}
    assert not asked.takes_turns
    assert set(rates(asked.alike(1.0)[0])) == {"none", "eagle3-k1"}


def test_servers_of_one_gpu_that_are_both_planned_take_turns() -> None:
    apart, together = one_gpu("none", "none"), one_gpu("none", "dspark-8")
    assert together.takes_turns
    assert not together.resting
    mix = [(LARGE, 1.0)]
    slowed = together.curve("none", mix).most_tokens_per_s
    assert slowed == pytest.approx(apart.curve("none", mix).most_tokens_per_s / 2, rel=0.1)
    assert together.load("none", mix).full().tokens_per_s == together.curve("none", mix).full.tokens_per_s
    assert together.curve("eagle3-k1", mix).lines == apart.curve("eagle3-k1", mix).lines, "on a GPU of its own"


def test_overflow_can_be_led_to_one_arm() -> None:
    asked = assignment(
        specs_of("none", "dspark-8", "eagle3-k1", "dflash-16"),
        (LARGE, ("none", "dspark-8", "eagle3-k1")),
        (SMALL, ("eagle3-k1", "none")),
    )
    assert asked.overflowing_to("eagle3-k1").arms_of == {
        LARGE.key: ("none", "eagle3-k1", "dspark-8"),
        SMALL.key: ("eagle3-k1", "none"),
    }
    assert asked.overflowing_to("dflash-16").arms_of == asked.arms_of


def test_arms_run_at_the_given_live_settings() -> None:
    context = fleet().policy_context()
    pools = pools_of(context.backends)
    usable = UsablePools(pools, dict.fromkeys(pools, 1), context.acceptance, QUANTILE)
    whole, quarter = (
        Assignment(usable, [LARGE], {LARGE.key: (ARM, "none")}, {ARM: setting}) for setting in pools[ARM].spec.settings
    )
    mix = [(LARGE, 1.0)]
    assert whole.curve(ARM, mix).full.tokens_per_s < quarter.curve(ARM, mix).full.tokens_per_s
    assert quarter.load(ARM, mix).full() == quarter.curve(ARM, mix).full
    assert quarter.overflowing_to("none").curve(ARM, mix) is quarter.curve(ARM, mix)
    held = quarter.on_planned_arms()
    assert quarter.settings_of(held) == {ARM: QUARTER}
    assert assignment(specs_of("none"), (LARGE, ("none",))).settings_of(held) == {}
