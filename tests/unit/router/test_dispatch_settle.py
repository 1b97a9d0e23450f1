"""What waits for a request to be on its way is told in the order of what happened, and never twice."""

from __future__ import annotations

from itertools import count

from selector.core.controller import Controller
from selector.core.types import Finish, Outcome
from selector.files.faults import Faults
from selector.files.policy import load_policy_file
from selector.router.books import Books
from selector.router.dispatch import Dispatcher
from selector.router.metrics import RouterMetrics
from selector.router.outliers import Outliers
from selector.router.request import ClientRequest
from selector.router.routes import Route
from tests.fleets import policy_context, request_view, specs_of


def dispatcher() -> Dispatcher:
    specs = specs_of("none", "dspark-8")
    context, metrics, ticks = policy_context(specs), RouterMetrics(), count()
    controller = Controller(context, load_policy_file("min_energy").make({}, context), explains=False)
    outliers = Outliers([spec.name for spec in specs], Faults())
    books = Books(specs, context.acceptance, metrics, metered=False, outliers=outliers)
    return Dispatcher(controller, metrics, lambda: float(next(ticks)), books)


def request(name: str, *, tbt_target_ms: float | None = None) -> ClientRequest:
    view = request_view(name, tbt_target_ms=tbt_target_ms)
    return ClientRequest(
        id=name, route=Route(path="/v1/completions"), body=b"{}", arrival_s=0.0, fields={}, view=view, streams=True
    )


def told(router: Dispatcher) -> list[tuple[str, float]]:
    return [(str(event["event"]), float(str(event["t_s"]))) for event in router.journal.recent]


def test_a_decision_is_told_once_settled_and_only_once() -> None:
    router = dispatcher()
    flight = router.place(request("a"))
    assert told(router) == []
    assert flight.predicted_tbt_ms is None
    router.settle()
    router.settle()
    assert [event for event, _ in told(router)] == ["decision"]
    assert flight.predicted_tbt_ms is not None
    candidates = router.journal.recent[0]["candidates"]
    assert isinstance(candidates, tuple), "worked out"
    assert len(candidates) == 2


def test_whatever_happens_next_is_told_after_the_decision() -> None:
    router = dispatcher()
    first = router.place(request("a"))
    second = router.place(request("b"))
    router.end(first, Finish.DONE)
    router.retract(second, "it refused")
    third = router.place(request("c"))
    router.health_changed("b0", available=False, reason="gone")
    router.end(third, Finish.CANCELLED)
    events = told(router)
    assert [event for event, _ in events[:3]] == ["decision", "decision", "end"]
    decisions = [event for event, _ in events].count("decision")
    assert decisions == 3
    times = [t_s for _, t_s in events]
    assert times == sorted(times), "in the order in which it happened"


def test_an_outcome_tells_the_target_that_the_request_had() -> None:
    router = dispatcher()
    for name, target_ms in (("a", None), ("b", 12.5)):
        router.end(router.place(request(name, tbt_target_ms=target_ms)), Finish.DONE)
    outcomes = [event["outcome"] for event in router.journal.recent if event["event"] == "end"]
    assert [outcome.tbt_target_ms for outcome in outcomes if isinstance(outcome, Outcome)] == [None, 12.5]
