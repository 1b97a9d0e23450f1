"""A forecast predicts for the whole fleet, with the prefill it caused itself, and picks the least harm."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from selector.core.forecast import Forecast, PrefillShare, least_violation
from selector.core.prediction import Prediction, predict
from selector.core.types import FleetView, LoadGroup
from tests.fleets import ARMS, backend_view, figures, fleet_view, policy_context, request_view, specs_of, without


def test_the_prefill_share_settles_at_rate_times_prefill_time() -> None:
    share = PrefillShare(window_s=10.0)
    for number in range(1_000):  # 100 s of 10 requests a second, 20 ms of prefill each
        share.sent("b0", 20.0, 0.1 * number)
    assert share.frac("b0", 100.0) == pytest.approx(10 * 0.020, rel=0.01)
    assert share.frac("b1", 100.0) == 0.0


def test_the_prefill_share_fades_and_never_reaches_one() -> None:
    share = PrefillShare(window_s=10.0)
    share.sent("b0", 1_000.0, 5.0)
    assert share.frac("b0", 5.0) == pytest.approx(0.1)
    assert share.frac("b0", 15.0) == pytest.approx(0.1 / math.e)
    share.sent("b0", 60_000.0, 15.0)
    assert share.frac("b0", 15.0) == 0.9


def test_predictions_are_those_of_each_eligible_backend_in_order() -> None:
    context = policy_context(specs_of(*ARMS))
    request = request_view(tbt_target_ms=20.0)
    fleet = without(fleet_view(context.backends, [3, 9, 0, 70]), "b2")
    expected = [
        predict(request, view, spec, context.acceptance, quantile=context.tbt_quantile)
        for view, spec in zip(fleet.backends, context.backends, strict=True)
        if view.available
    ]
    forecast = Forecast(context)
    assert [*map(figures, forecast.predictions(request, fleet))] == [*map(figures, expected)]
    of_arm = forecast.predictions(request, fleet, arm="dflash-16")
    assert [*map(figures, of_arm)] == [*map(figures, expected[2:])]


def test_the_busiest_of_an_arm_are_those_with_most_company_and_a_place_left() -> None:
    context = policy_context(specs_of("none", "none", "none", "none", "dspark-8"))
    full = context.backends[1].max_running_requests
    look = Forecast(context).look(request_view(), fleet_view(context.backends, [3, full, 0, 9, 20]))
    assert [found.backend for found in look.busiest_of_arm("none", 2)] == ["b0", "b3"]
    assert [found.backend for found in look.busiest_of_arm("none", 8)] == ["b0", "b2", "b3"]
    assert look.busiest_of_arm("ngram-8", 8) == []


def test_a_request_sent_adds_its_prefill_to_that_backend_alone() -> None:
    context = policy_context(specs_of("none", "none"))
    forecast = Forecast(context)
    request = request_view(prompt_tokens=8_000, max_output_tokens=1)
    fleet = fleet_view(context.backends)
    before = forecast.predictions(request, fleet)
    decision = forecast.decision(request, fleet, before[1], lambda: before, "because")
    after = forecast.predictions(request, fleet)
    assert (decision.backend, decision.reason) == ("b1", "because")
    assert decision.candidates == tuple(found.candidate() for found in before)
    assert figures(after[0]) == figures(before[0])
    # 200 ms of prefill over a window of 30 s.
    assert after[1].tbt_ms == pytest.approx(before[1].tbt_ms / (1.0 - 0.2 / 30.0))


def test_what_is_learnt_and_what_changes_shows_in_the_next_predictions() -> None:
    context = policy_context(specs_of("dspark-8"))
    forecast, request = Forecast(context), request_view()
    idle, busy = fleet_view(context.backends), fleet_view(context.backends, [30])
    first = forecast.predictions(request, idle)[0]
    assert forecast.predictions(request, busy)[0].tbt_ms > first.tbt_ms
    context.acceptance.observe("dspark-8", "code", 10_000, 0)
    learnt = forecast.predictions(request, idle)[0]
    assert learnt.accept_length < first.accept_length
    assert learnt.tbt_ms > first.tbt_ms


def test_without_a_feasible_place_it_is_where_the_target_is_likeliest_met() -> None:
    """A plain step of 5.1 ms always misses 5 ms; with drafts many requests meet it, though not nine in ten."""
    context = policy_context(specs_of("none", "dspark-8"))
    request = request_view(text_type="romansh", tbt_target_ms=5.0, prompt_tokens=670, expected_output_tokens=60.0)
    plain, drafting = Forecast(context).predictions(request, fleet_view(context.backends))
    assert drafting.mean_tbt_ms < 5.0 < plain.mean_tbt_ms == plain.tbt_ms < drafting.tbt_ms
    best, words = least_violation(request, [plain, drafting])
    assert best is drafting
    assert words.startswith("no place within target, least violation: ")


def shared_gpu(
    batches: tuple[int, int], target_ms: float | None, *, draining: frozenset[int] = frozenset()
) -> list[Prediction]:
    """Predictions of a request of code on two servers of one GPU; what runs on the first has a target."""
    specs = [replace(spec, gpus=("g",)) for spec in specs_of("none", "dspark-8")]
    context = policy_context(specs)
    groups = [LoadGroup(text_type="code", tbt_target_ms=target_ms, requests=batches[0])] if batches[0] else []
    views = [backend_view(specs[0], batch=batches[0], groups=groups), backend_view(specs[1], batch=batches[1])]
    forecast = Forecast(context)
    forecast.draining = draining
    return forecast.predictions(request_view(), FleetView(now_s=0.0, backends=tuple(views)))


def test_servers_of_one_gpu_take_turns() -> None:
    (_, alone), (_, beside) = shared_gpu((0, 0), None), shared_gpu((4, 0), None)
    assert beside.mean_tbt_ms == pytest.approx(2.0 * alone.mean_tbt_ms)


def test_waking_a_neighbour_must_not_break_a_running_target() -> None:
    assert shared_gpu((4, 0), 15.0)[1].feasible
    asleep = shared_gpu((4, 0), 8.0)[1]
    assert (asleep.keeps_others, asleep.feasible) == (False, False), "steps of 5.3 ms would take 10.6 ms"
    assert shared_gpu((4, 1), 8.0)[1].feasible, "it is awake already"


def test_a_server_that_drains_takes_turns_for_a_while_and_stands_in_no_ones_way() -> None:
    (_, alone), (_, beside) = shared_gpu((0, 0), None), shared_gpu((4, 0), None, draining=frozenset({0}))
    assert beside.mean_tbt_ms == pytest.approx(1.5 * alone.mean_tbt_ms)
    woken = shared_gpu((4, 0), 8.0, draining=frozenset({0}))[1]
    assert woken.feasible and not woken.disturbed, "its target was weighed when it was decided to leave it"


def test_who_would_wake_a_neighbour_is_charged_with_the_targets_it_breaks_there() -> None:
    alone, asleep, awake = [shared_gpu(batches, 8.0)[1] for batches in ((0, 0), (4, 0), (4, 1))]
    assert not alone.disturbed and not awake.disturbed
    (disturbed,) = asleep.disturbed
    assert (disturbed.load.view.batch, disturbed.turns) == (4, 1)
    own = asleep._replace(disturbed=()).missed
    assert asleep.missed > own + 2.0, "most of the four miss 8 ms at half of the pace"
    loose = shared_gpu((4, 0), 100.0)[1]
    assert loose.missed == pytest.approx(loose._replace(disturbed=()).missed, abs=0.01)


def test_what_turns_have_lost_a_further_neighbour_cannot_break() -> None:
    """Two servers of a GPU work, in 5.3 ms a step each: targets of 8 ms are lost, those of 14 ms by a third server."""
    specs = [replace(spec, gpus=("g",)) for spec in specs_of("none", "none", "none")]
    context = policy_context(specs)
    for target_ms, kept in ((8.0, True), (14.0, False), (20.0, True)):
        groups = [LoadGroup(text_type="code", tbt_target_ms=target_ms, requests=4)]
        views = [backend_view(spec, batch=4, groups=groups) for spec in specs[:2]]
        fleet = FleetView(now_s=0.0, backends=(*views, backend_view(specs[2])))
        assert Forecast(context).predictions(request_view(), fleet)[2].keeps_others == kept


def crowded(
    requests: tuple[int, int], target_ms: tuple[float | None, float | None], *, own_target_ms: float = 1.0
) -> list[Prediction]:
    """Predictions of a request with a target, impossible unless told, on two plain backends with romansh running."""
    context = policy_context(specs_of("none", "none"))
    views = [
        backend_view(spec, batch=count, groups=[LoadGroup(text_type="romansh", tbt_target_ms=target, requests=count)])
        for spec, count, target in zip(context.backends, requests, target_ms, strict=True)
    ]
    fleet = FleetView(now_s=0.0, backends=tuple(views))
    return Forecast(context).predictions(request_view(tbt_target_ms=own_target_ms), fleet)


@pytest.mark.parametrize(
    ("requests", "target_ms", "backend", "reason"),
    [
        ((30, 20), (None, None), "b1", "no place within target, least violation: 5.8 of 1 ms"),
        # One broken promise rather than several, although it is slower there: 20 step in 5.75 ms, 21 in 5.77.
        ((30, 20), (None, 5.76), "b0", "no place within target, least violation: 6.1 of 1 ms"),
        # Those who miss their targets anyway lose nothing.
        ((30, 20), (None, 2.0), "b1", "no place within target, least violation: 5.8 of 1 ms"),
        ((30, 20), (2.0, 2.0), "b1", "no place within target, least violation: 5.8 of 1 ms"),
        ((30, 64), (None, None), "b0", "no place within target, least violation: 6.1 of 1 ms"),
        ((66, 65), (None, None), "b1", "no free place, soonest through: 65 requests"),
        ((64, 65), (None, None), "b0", "no free place, soonest through: 64 requests"),
    ],
)
def test_the_least_violation(
    requests: tuple[int, int], target_ms: tuple[float | None, float | None], backend: str, reason: str
) -> None:
    best, words = least_violation(request_view(tbt_target_ms=1.0), crowded(requests, target_ms))
    assert (best.backend, words) == (backend, reason)


def test_fewer_expected_misses_come_before_a_faster_place() -> None:
    """Both places break targets: of 2 of 30 that run on the slower one, of 12 of 20 on the other."""
    context = policy_context(specs_of("none", "none"))
    views = [
        backend_view(spec, batch=batch, groups=[LoadGroup(text_type="code", tbt_target_ms=target, requests=requests)])
        for spec, batch, requests, target in zip(context.backends, (30, 20), (2, 12), (6.075, 5.76), strict=True)
    ]
    predictions = Forecast(context).predictions(request_view(), FleetView(now_s=0.0, backends=tuple(views)))
    assert [found.keeps_others for found in predictions] == [False, False]
    assert [found.missed for found in predictions] == [2.0, 12.0]
    best, _ = least_violation(request_view(), predictions)
    assert best is predictions[0]
    assert best.tbt_ms > predictions[1].tbt_ms


@pytest.mark.parametrize(
    ("quantile_ms", "more_missed", "options", "taken"),
    [
        (6.5, 0.063, {}, "b1"),  # six in a hundred more: about alike, and how slow the slowest would be decides nothing
        (6.8, 0.110, {}, "b0"),
        (6.5, 0.063, {"alike_misses": 0.03}, "b0"),
        (6.3, 0.023, {"alike_misses": 0.03}, "b1"),
    ],
)
def test_of_places_about_alike_in_misses_the_one_that_is_faster_in_the_mean_is_taken(
    quantile_ms: float, more_missed: float, options: dict[str, float], taken: str
) -> None:
    one, other = crowded((30, 20), (None, None), own_target_ms=6.0)
    steady = one._replace(mean_tbt_ms=5.6, tbt_ms=6.1)
    uneven = other._replace(mean_tbt_ms=5.2, tbt_ms=quantile_ms)
    assert uneven.missed - steady.missed == pytest.approx(more_missed, abs=2e-3)
    assert least_violation(request_view(tbt_target_ms=6.0), [steady, uneven], **options)[0].backend == taken


def test_a_request_without_a_target_can_only_break_those_of_others() -> None:
    predictions = [found._replace(meets_target=True) for found in crowded((30, 20), (2.0, 2.0))]
    best, words = least_violation(request_view(), predictions)
    assert (best.backend, words) == ("b1", "every place breaks a running target, least violation: 5.8 ms")


def test_a_view_that_is_another_object_is_looked_at_again() -> None:
    context = policy_context(specs_of("none"))
    forecast = Forecast(context)
    fleet = fleet_view(context.backends, [10])
    (view,) = fleet.backends
    longer = FleetView(now_s=0.0, backends=(replace(view, kv_tokens=80_000.0),))
    short = forecast.predictions(request_view(), fleet)
    assert forecast.predictions(request_view(), longer)[0].tbt_ms > short[0].tbt_ms
    assert figures(forecast.predictions(request_view(), fleet)[0]) == figures(short[0])


def test_where_all_places_are_taken_texts_still_go_to_the_arm_that_is_soonest_through_with_them() -> None:
    """The shorter queue alone would mix the texts: code drafts well, Romansh does not, and the drafter steps slower."""
    context = policy_context(specs_of("none", "dspark-8"))
    fleet = FleetView(
        now_s=0.0, backends=(backend_view(context.backends[0], batch=80), backend_view(context.backends[1], batch=90))
    )
    chosen = {}
    for text_type in ("code", "romansh"):
        request = request_view(text_type=text_type)
        best, words = least_violation(request, Forecast(context).predictions(request, fleet))
        chosen[text_type] = best.backend
        assert words.startswith("no free place, soonest through: ")
    assert chosen == {"code": "b1", "romansh": "b0"}
