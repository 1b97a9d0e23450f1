"""A backend of a pool over its batch, and read backwards from its rate."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selector.core.capacity import most_tokens_per_s
from selector.core.poolload import Demand, PoolCurve, PoolLoad
from tests.fleets import ARMS, acceptance_model, backend_spec, with_graphs

ACCEPTANCE = acceptance_model()


def demand(text_type: str = "code", target_ms: float | None = None) -> Demand:
    return Demand(
        text_type=text_type,
        tbt_target_ms=target_ms,
        requests_per_s=1.0,
        prompt_tokens=500.0,
        output_tokens=250.0,
    )


def pool(arm: str = "dspark-8", *mix: tuple[Demand, float], slowdown: float = 1.0) -> PoolLoad:
    return PoolLoad(backend_spec("b", arm), mix or ((demand(), 1.0),), ACCEPTANCE, 0.9, slowdown)


def test_a_point_is_rate_and_power_of_step_costs_with_prefill_in_between() -> None:
    point = pool("none", (demand(), 1.0)).point(8)
    context = 500 + 125
    step_ms, step_j = backend_spec("b", "none").cost.step.step(8, context)
    decoding = 8 / (step_ms / 1e3)
    prefill_s = 0.012 / 250
    assert point.tokens_per_s == pytest.approx(decoding / (1 + decoding * prefill_s))
    active_w = (step_j - 95.0 * step_ms / 1e3) / (step_ms / 1e3)
    prefill_w = point.tokens_per_s * (500 * 0.016 / 250 - 95.0 * prefill_s)
    assert point.power_w == pytest.approx(active_w * (1 - point.tokens_per_s * prefill_s) + prefill_w)
    assert point.tbt_ms == pytest.approx(8e3 / point.tokens_per_s)


def test_of_prompts_with_a_mean_length_some_are_padded_to_a_graph() -> None:
    """500 tokens lie between graphs of 64 and 512: of 65 to 512 those from 256 on are padded, by 128 in the mean."""
    spec = with_graphs(backend_spec("b", "none"))
    load = PoolLoad(spec, ((demand(), 1.0),), ACCEPTANCE, 0.9)
    decoding = 8 / (spec.cost.step.step(8, 625.0)[0] / 1e3)
    prefill_s = (3e-3 + 0.024e-3 * (500 + 128 * 256 / 448)) / 250
    assert load.point(8).tokens_per_s == pytest.approx(decoding / (1 + decoding * prefill_s))


def test_two_servers_that_take_turns_do_half_as_much_each() -> None:
    alone, shared = pool().point(16), pool(slowdown=2.0).point(16)
    assert shared.tokens_per_s == pytest.approx(0.5 * alone.tokens_per_s)
    assert shared.power_w == pytest.approx(0.5 * alone.power_w)


@given(st.sampled_from(ARMS), st.sampled_from([None, 25.0, 8.0]), st.floats(0.01, 1.0))
@settings(max_examples=40)
def test_the_curve_gives_back_what_a_batch_does(arm: str, target_ms: float | None, frac: float) -> None:
    load = pool(arm, (demand("romansh", target_ms), 1.0))
    full = load.full()
    curve = PoolCurve(load, full)
    batch = max(1, int(frac * full.batch))
    if full.batch < 1:
        return
    point = load.point(batch)
    found_batch, found_w = curve.at(point.tokens_per_s)
    assert load.point(max(1.0, found_batch)).tokens_per_s == pytest.approx(point.tokens_per_s, rel=0.02)
    assert found_w == pytest.approx(point.power_w, rel=0.03)
    assert curve.rate_at(found_batch) == pytest.approx(point.tokens_per_s, rel=1e-6)


def test_beyond_full_the_curve_goes_on_in_proportion() -> None:
    load = pool()
    curve = PoolCurve(load, load.full())
    batch, power_w = curve.at(2.0 * curve.most_tokens_per_s)
    assert (batch, power_w) == (pytest.approx(2 * 64), pytest.approx(2 * load.full().power_w))


def test_random_arrivals_average_over_batches() -> None:
    """Little rate: as many backends' time as b = 1 takes. Near the full rate: less than full, more than half."""
    load = pool()
    curve = PoolCurve(load, load.full())
    one = load.point(1)
    batch, power_w = curve.partial(1e-3 * one.tokens_per_s)
    assert batch == pytest.approx(1e-3, rel=0.01)
    assert power_w == pytest.approx(1e-3 * one.power_w, rel=0.01)
    batch, _ = curve.partial(0.9 * curve.most_tokens_per_s)
    assert 20 < batch < 64


def test_a_target_bounds_the_batch_and_the_capacity() -> None:
    spec = backend_spec("b", "none")
    free = most_tokens_per_s(spec, "romansh", 500.0, 250.0, ACCEPTANCE)
    bound = most_tokens_per_s(spec, "romansh", 500.0, 250.0, ACCEPTANCE, tbt_target_ms=7.5)
    assert 0.0 < bound < free == pool("none", (demand("romansh"), 1.0)).point(64).tokens_per_s
    assert most_tokens_per_s(spec, "romansh", 500.0, 250.0, ACCEPTANCE, tbt_target_ms=1.0) == 0.0


def test_what_overruns_is_what_misses_at_the_batch_that_serves_it_and_what_none_serves() -> None:
    free, tight = pool(), pool("dspark-8", (demand("romansh", target_ms=9.0), 1.0))
    room, most = tight.full().tokens_per_s, free.point(free.largest_batch).tokens_per_s
    assert free.overrun(most) == 0.0
    assert free.overrun(most + 500.0) == pytest.approx(500.0)
    assert tight.overrun(0.99 * room) == 0.0
    beyond = [tight.overrun(times * room) / (times * room) for times in (1.02, 1.1, 1.5)]
    assert 0.1 < beyond[0] < 0.2, "most are in time at a batch that is too large for nine in ten"
    assert sorted(beyond) == beyond and beyond[-1] > 0.9


def test_where_no_batch_is_within_the_target_the_misses_are_counted() -> None:
    hopeless = pool("none", (demand("romansh", 1.0), 1.0)).full()
    likely = pool("dspark-8", (demand("romansh", 4.9), 1.0)).full()
    assert (hopeless.batch, hopeless.missed_frac) == (1.0, 1.0)
    assert not hopeless.within_targets
    assert 0.0 < likely.missed_frac < 1.0 or likely.within_targets
