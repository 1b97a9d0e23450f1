"""Where a request goes under a plan on a GPU that several servers share."""

from __future__ import annotations

from dataclasses import replace

from selector.core.forecast import Forecast
from selector.core.placing import Placing
from selector.core.plan import Plan
from selector.core.types import FleetView, LoadGroup
from tests.fleets import backend_view, policy_context, request_view, specs_of

TARGET_MS = 7.0
PLAN = Plan(
    arms_of={(text_type, TARGET_MS): ("eagle3-k1",) for text_type in ("code", "romansh")},
    batch_of={"eagle3-k1": 4},
    power_w=100.0,
    score=100.0,
)


def place(batches: tuple[int, int], *, draining: frozenset[int], text_type: str = "romansh") -> str:
    """The backend of one more request; `batches` of Romansh run there already, all with the same target."""
    specs = [replace(spec, gpus=("g",)) for spec in specs_of("eagle3-k1", "dspark-8")]
    context = policy_context(specs)
    forecast = Forecast(context)
    forecast.draining = draining
    views = []
    for spec, batch in zip(specs, batches, strict=True):
        groups = [LoadGroup(text_type="romansh", tbt_target_ms=TARGET_MS, requests=batch)] if batch else []
        views.append(backend_view(spec, batch=batch, groups=groups))
    request = request_view(text_type=text_type, tbt_target_ms=TARGET_MS)
    look = forecast.look(request, FleetView(now_s=0.0, backends=tuple(views)))
    found = Placing(context, forecast).place(PLAN, (text_type, TARGET_MS), look)
    assert found is not None
    return found[0].backend


def test_a_server_that_drains_gets_nothing_more_even_where_only_it_is_in_time() -> None:
    assert place((60, 1), draining=frozenset({1}), text_type="code") == "b0"
    assert place((60, 1), draining=frozenset(), text_type="code") == "b1"


def test_the_planned_server_is_used_while_the_other_drains() -> None:
    """Beside it those who run on the other miss their target, which was weighed when the plan came in force."""
    assert place((0, 3), draining=frozenset({1})) == "b0"
    assert place((0, 3), draining=frozenset()) == "b1"


def test_with_nobody_else_a_server_that_drains_serves_on() -> None:
    specs = [replace(spec, gpus=("g",)) for spec in specs_of("eagle3-k1", "dspark-8")]
    context = policy_context(specs)
    forecast = Forecast(context)
    forecast.draining = frozenset({1})
    views = (backend_view(specs[0], available=False), backend_view(specs[1], batch=2))
    look = forecast.look(request_view(text_type="romansh"), FleetView(now_s=0.0, backends=views))
    found = Placing(context, forecast).place(PLAN, ("romansh", TARGET_MS), look)
    assert found is not None and found[0].backend == "b1"
