"""Backends of an arm as one pool, and what it does under a mix of demands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from selector.core.poolload import PoolCurve, PoolLoad
from selector.core.pools import Pool, UsablePools, pools_of
from tests.demands import QUANTILE, demand
from tests.fleets import acceptance_model, specs_of
from tests.livearms import ARM, fleet

CODE, ROMANSH = demand("code", 1.0), demand("romansh", 1.0)


def usable(**counts: int) -> UsablePools:
    return UsablePools(pools_of(specs_of("none", "dspark-8")), counts, acceptance_model(), QUANTILE)


def test_backends_of_an_arm_are_one_pool_with_the_smallest_batch_limit() -> None:
    first, second, other = specs_of("none", "none", "dspark-8")
    pools = pools_of([first, replace(second, max_running_requests=24), other])
    assert list(pools) == ["none", "dspark-8"]
    assert (pools["none"].backends, pools["dspark-8"].backends) == (2, 1)
    assert pools["none"].spec.max_running_requests == 24


def test_pools_know_the_other_arms_on_their_gpus() -> None:
    specs = [replace(spec, gpus=(gpu,)) for spec, gpu in zip(specs_of(*["none"] * 2, "dspark-8"), "aab", strict=True)]
    shared = [*specs, replace(specs_of("eagle3-k1")[0], gpus=("a", "b"))]
    neighbours = {arm: pool.neighbours for arm, pool in pools_of(shared).items()}
    assert neighbours == {"none": ("eagle3-k1",), "dspark-8": ("eagle3-k1",), "eagle3-k1": ("dspark-8", "none")}


@pytest.mark.parametrize(("batch", "limit"), [(1.0, 2), (15.5, 20), (16.0, 20), (60.0, 64)])
def test_a_backend_is_filled_a_deviation_beyond_its_mean_up_to_its_limit(batch: float, limit: int) -> None:
    assert Pool(specs_of("none")[0], 1).limit(batch) == limit


def test_arms_without_a_usable_backend_are_not_planned_with() -> None:
    assert usable(**{"none": 2, "dspark-8": 0}).arms == ["none"]


def test_a_curve_is_that_of_the_load_and_is_worked_out_once() -> None:
    pools = usable(none=1)
    curve = pools.curve("none", [(CODE, 30.0), (ROMANSH, 10.0)], 1, None)
    load = PoolLoad(specs_of("none")[0], [(CODE, 3.0), (ROMANSH, 1.0)], acceptance_model(), QUANTILE)
    assert curve.lines == PoolCurve(load, load.full()).lines
    assert pools.curve("none", [(CODE, 3.001), (ROMANSH, 1.0)], 1, None) is curve, "alike to a hundredth"
    others = [
        pools.curve("none", [(CODE, 2.0), (ROMANSH, 1.0)], 1, None),
        pools.curve("none", [(CODE, 30.0), (ROMANSH, 10.0)], 2, None),
        pools.curve("dspark-8", [(CODE, 30.0), (ROMANSH, 10.0)], 1, None),
    ]
    assert len({id(each) for each in (curve, *others)}) == 4
    assert others[1].most_tokens_per_s == pytest.approx(curve.most_tokens_per_s / 2, rel=0.1), "two take turns"


def test_a_curve_is_told_by_its_live_setting() -> None:
    context = fleet().policy_context()
    pools = UsablePools(pools_of(context.backends), {ARM: 1}, context.acceptance, QUANTILE)
    whole, quarter = (pools.curve(ARM, [(CODE, 1.0)], 1, setting) for setting in context.backends[0].settings)
    assert whole.most_tokens_per_s < quarter.most_tokens_per_s
