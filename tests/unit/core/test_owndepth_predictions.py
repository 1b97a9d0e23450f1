"""What policies are told of a backend whose engine chooses its depth: that of its best depth, wherever they look."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from selector.core.controller import Controller
from selector.core.correction import live
from selector.core.forecast import Forecast
from selector.core.policy import BackendSpec
from selector.core.poolload import Demand, PoolLoad
from selector.core.prediction import Prediction, goodput, predict
from selector.core.runningload import AcceptLengths, RunningLoad
from selector.core.types import Correction, LoadGroup, RequestView
from selector.files.policy import load_policy_file
from tests.fleets import (
    acceptance_model,
    arm_cost,
    backend_spec,
    backend_view,
    figures,
    fleet_view,
    policy_context,
    request_view,
)
from tests.owndepths import DEPTH_ARMS, choosing_spec

ACCEPTANCE = acceptance_model()
OWN = choosing_spec("b0", "plugin")
TARGETS_MS = (None, 12.0, 6.5, 5.0, 2.0)


def fixed(arm: str) -> BackendSpec:
    return replace(backend_spec("b0", arm), cost=replace(arm_cost(arm), prefill=OWN.cost.prefill))


def predicted(spec: BackendSpec, request: RequestView, batch: int, text_type: str) -> Prediction:
    groups = (LoadGroup(text_type=text_type, tbt_target_ms=request.tbt_target_ms, requests=batch),) if batch else ()
    view = backend_view(spec, batch=batch, groups=groups)
    return predict(request, view, spec, ACCEPTANCE, quantile=0.9)


def cases() -> Iterator[tuple[str, int, float | None]]:
    for text_type in ("code", "romansh"):
        for batch in (0, 7, 31, 63):
            for target_ms in TARGETS_MS:
                yield text_type, batch, target_ms


@pytest.mark.parametrize(("text_type", "batch", "target_ms"), list(cases()))
def test_a_prediction_is_that_of_the_cheapest_depth_within_the_targets(
    text_type: str, batch: int, target_ms: float | None
) -> None:
    request = request_view(text_type=text_type, tbt_target_ms=target_ms)
    by_arm = {arm: predicted(fixed(arm), request, batch, text_type) for arm in DEPTH_ARMS}
    own = predicted(OWN, request, batch, text_type)
    chosen = by_arm[own.acceptance_arm]
    assert figures(own) == figures(chosen._replace(arm="dspark-8"))
    within = [arm for arm, found in by_arm.items() if found.meets_target and found.keeps_others]
    assert own.feasible == bool(within)
    if not within:
        assert own.tbt_ms == min(found.tbt_ms for found in by_arm.values())
        return
    context = (batch * 625.0 + 625.0) / (batch + 1)
    j = {arm: fixed(arm).cost.step.step(batch + 1, context)[1] / by_arm[arm].accept_length for arm in within}
    assert j[own.acceptance_arm] == min(j.values())


def test_the_depth_follows_load_and_text() -> None:
    request = {text: request_view(text_type=text) for text in ("code", "romansh")}
    assert predicted(OWN, request["code"], 0, "code").acceptance_arm == "dspark-8"
    assert predicted(OWN, request["romansh"], 63, "romansh").acceptance_arm == "eagle3-k1"


def test_a_schedule_is_predicted_among_the_depths_of_its_tier() -> None:
    """From batch 8 on it does not draft, whatever that costs."""
    spec = choosing_spec("b0", "schedule")
    assert predicted(spec, request_view(), 0, "code").acceptance_arm == "dspark-8"
    assert predicted(spec, request_view(), 7, "code").acceptance_arm == "none"


def test_goodput_counts_at_the_depth_that_was_predicted() -> None:
    request = request_view(text_type="romansh")
    own = predicted(OWN, request, 31, "romansh")
    spec = fixed(own.acceptance_arm)
    chosen = predicted(spec, request, 31, "romansh")
    found = [
        goodput(RunningLoad(backend_view(of, batch=31), of), AcceptLengths(request, ACCEPTANCE, 0.9), prediction, 0.1)
        for of, prediction in ((OWN, own), (spec, chosen))
    ]
    assert found[0] == found[1]


def test_a_neighbour_on_its_gpu_is_kept_at_whatever_depth_keeps_it() -> None:
    """A second busy server halves the pace: 63 requests of Romansh take 15 ms a token without drafts, 27 at depth 7."""
    shared = [replace(spec, gpus=("gpu",)) for spec in (OWN, backend_spec("b1", "none"))]
    context = policy_context(shared)
    for target_ms, kept in ((20.0, True), (8.0, False)):
        running = (LoadGroup(text_type="romansh", tbt_target_ms=target_ms, requests=63),)
        views = (backend_view(shared[0], batch=63, groups=running), backend_view(shared[1]))
        found = Forecast(context).look(request_view(), replace(fleet_view(shared), backends=views)).at(1)
        assert found is not None and found.keeps_others == kept


@pytest.mark.parametrize(("target_ms", "arm"), [(None, "dspark-8"), (6.5, "eagle3-k1")])
def test_the_targets_of_those_who_run_there_count_too(target_ms: float | None, arm: str) -> None:
    """24 requests of code make depth 7 cheapest, at which 8 of Romansh take 7.7 ms a token; 5.1 ms at depth 1."""
    groups = (
        LoadGroup(text_type="code", tbt_target_ms=None, requests=24),
        LoadGroup(text_type="romansh", tbt_target_ms=target_ms, requests=8),
    )
    found = predict(request_view(), backend_view(OWN, batch=32, groups=groups), OWN, ACCEPTANCE, quantile=0.9)
    assert found.acceptance_arm == arm
    assert found.keeps_others


@pytest.mark.parametrize(("chooses", "kept"), [("plugin", False), ("schedule", True)])
def test_what_is_lost_at_every_depth_that_it_may_run_at_now_is_lost(chooses: str, kept: bool) -> None:
    """21 of Romansh take 5.8 ms a token without drafts and 4.5 ms at depth 1, which the schedule has not from 8 on."""
    spec = choosing_spec("b0", chooses)
    view = backend_view(spec, batch=21, groups=(LoadGroup(text_type="romansh", tbt_target_ms=4.6, requests=21),))
    assert predict(request_view(), view, spec, ACCEPTANCE, quantile=0.9).keeps_others == kept


def demand(text_type: str, target_ms: float | None = None) -> Demand:
    return Demand(
        text_type=text_type, tbt_target_ms=target_ms, requests_per_s=1.0, prompt_tokens=500.0, output_tokens=250.0
    )


@pytest.mark.parametrize("target_ms", TARGETS_MS)
def test_a_pool_of_such_backends_is_at_every_batch_as_good_as_the_best_of_fixed_ones(target_ms: float | None) -> None:
    mix = [(demand("code", target_ms), 2.0), (demand("romansh", target_ms), 1.0)]
    own = PoolLoad(OWN, mix, ACCEPTANCE, 0.9)
    pools = [PoolLoad(fixed(arm), mix, ACCEPTANCE, 0.9) for arm in DEPTH_ARMS]
    assert own.full().batch == max(pool.full().batch for pool in pools)
    for batch in (1, 8, 33, 64):
        within = [pool.point(batch) for pool in pools if pool.within_targets(batch)]
        assert own.within_targets(batch) == bool(within)
        found = own.point(batch)
        assert found in [pool.point(batch) for pool in pools]
        if within:
            assert found.power_w / found.tokens_per_s <= 1.03 * min(each.power_w / each.tokens_per_s for each in within)


def test_min_energy_fills_such_a_backend_before_a_fixed_one_that_costs_more() -> None:
    specs = (OWN, backend_spec("b1", "dspark-8"))
    context = policy_context(specs)
    controller = Controller(context, load_policy_file("min_energy").make({}, context))
    sent = [
        controller.decide(request_view(f"r{n}", text_type="romansh", arrival_s=0.05 * n), 0.05 * n).backend
        for n in range(40)
    ]
    assert sent.count("b0") > 35


def test_corrections_reach_every_depth() -> None:
    context = policy_context([live(OWN)])
    controller = Controller(context, load_policy_file("least_loaded").make({}, context))
    before = predict(request_view(), backend_view(OWN), context.backends[0], ACCEPTANCE, quantile=0.9)
    controller.corrected("b0", Correction(step_time_frac=1.5))
    after = predict(request_view(), backend_view(OWN), context.backends[0], ACCEPTANCE, quantile=0.9)
    assert after.mean_tbt_ms == pytest.approx(1.5 * before.mean_tbt_ms)
