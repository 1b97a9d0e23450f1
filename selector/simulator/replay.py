"""Makes every decision of a decision log again.

The log holds everything that changed the controller's state, in order, so a controller built from the same fleet file,
policy and seed sees at each decision what the router's saw, and must decide the same. Another policy can be asked the
same questions: what it decides is compared, but what happened stays what the log says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from selector.core.controller import Controller
from selector.core.types import Decision
from selector.errors import TraceError
from selector.files.decision_log import (
    CorrectionEvent,
    DecisionEvent,
    EndEvent,
    EnergyEvent,
    HealthEvent,
    HeardEvent,
    LogEvent,
    PollEvent,
    RestoredEvent,
    RetractEvent,
    SettingsEvent,
    StartEvent,
)


def replay(events: Iterable[LogEvent], controller: Controller) -> Iterator[tuple[Decision, Decision]]:
    """(logged, replayed) for every decision of one run; `controller` must be fresh.

    Where they differ, the request is counted on the backend that the log names, so that one difference does not make
    others. Raises `TraceError` when a second run begins.
    """
    starts = 0
    for event in events:
        match event:
            case StartEvent():
                starts += 1
                if starts > 1:
                    raise TraceError("decision log", "holds a second run", "replay one run at a time")
            case DecisionEvent():
                yield event.decision, _decided_again(event, controller)
            case RetractEvent():
                controller.retract(event.id, event.t_s)
            case EndEvent():
                controller.end(event.outcome, event.t_s)
            case PollEvent():
                controller.tracker.polled(event.backend, event.signal, event.t_s)
            case HealthEvent():
                controller.tracker.health_changed(event.backend, event.available, event.reason, event.t_s)
            case RestoredEvent():
                controller.restored(event.state)
            case HeardEvent():
                controller.heard(event.others)
            case SettingsEvent(result="in force"):
                controller.settings_changed(event.backend, event.settings, event.t_s)
            case SettingsEvent(result="refused"):
                controller.settings_refused(event.backend, event.t_s)
            case SettingsEvent():
                pass  # nothing changed
            case CorrectionEvent():
                controller.corrected(event.backend, event.correction)
            case EnergyEvent():
                pass  # for people


def _decided_again(event: DecisionEvent, controller: Controller) -> Decision:
    replayed = controller.decide(event.request, event.t_s)
    if replayed.backend != event.backend:
        controller.retract(event.request.request_id, event.t_s)
        if event.backend is not None:
            controller.tracker.dispatched(event.request, event.backend, event.t_s)
    return replayed
