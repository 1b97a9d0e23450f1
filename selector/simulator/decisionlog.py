"""The decision log of a simulated run, in the router's format, so that what reads one reads the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import selector
from selector.core.controller import Controller
from selector.core.policy import Policy, PolicyContext
from selector.core.tracker import FleetTracker, LoadSignal
from selector.core.types import Decision, Outcome, RequestView
from selector.files.decision_log import BackendRecord, PolicyRecord, StartEvent, encoded
from selector.files.fleet import LoadedFleet
from selector.files.policy import LoadedPolicy, load_policy_file

Write = Callable[[bytes], object]


class LoggedController(Controller):
    """A controller that writes down, in order, everything that changes its state."""

    def __init__(self, context: PolicyContext, policy: Policy, write: Write) -> None:
        super().__init__(context, policy, learns_later=True)
        self._write = write
        self.tracker = _LoggedTracker(context, write)

    def decide(self, request: RequestView, now_s: float) -> Decision:
        """Decides, and writes it down."""
        decision = super().decide(request, now_s)
        fields: dict[str, object] = {
            "t_s": now_s,
            "request": request,
            "backend": decision.backend,
            "arm": None if decision.backend is None else self.context.spec(decision.backend).arm,
            "reason": decision.reason,
            "candidates": decision.candidates,
            "settings": decision.settings,
            "fallback": False,
        }
        self._write(encoded("decision", fields))
        return decision

    def settings_changed(self, backend: str, settings: Mapping[str, float], now_s: float) -> None:
        """Live settings came into force, which is written down."""
        fields = {"t_s": now_s, "backend": backend, "settings": settings, "result": "in force", "why": "a decision"}
        self._write(encoded("settings", fields))
        super().settings_changed(backend, settings, now_s)

    def end(self, outcome: Outcome, now_s: float) -> bool:
        """Takes note of an end, and writes it down."""
        self._write(encoded("end", {"t_s": now_s, "outcome": outcome}))
        return super().end(outcome, now_s)


class _LoggedTracker(FleetTracker):
    def __init__(self, context: PolicyContext, write: Write) -> None:
        super().__init__(context.backends)
        self.hears_every_poll = True
        self._write = write

    def polled(self, backend: str, signal: LoadSignal, now_s: float) -> None:
        self._write(encoded("poll", {"t_s": now_s, "backend": backend, "signal": signal}))
        super().polled(backend, signal, now_s)


def start_line(loaded: LoadedFleet, policy: LoadedPolicy, params: Mapping[str, object], seed: int) -> bytes:
    """The first line of a run. Raises `PolicyError` when the fleet's fallback cannot be read."""
    fallback = load_policy_file(loaded.fleet.policy.fallback)
    start = StartEvent(
        wall=datetime.now(UTC).isoformat(timespec="milliseconds"),
        version=selector.__version__,
        target=loaded.fleet.target,
        policy=PolicyRecord(label=policy.label, sha256=policy.sha256, params=dict(params)),
        fallback=PolicyRecord(label=fallback.label, sha256=fallback.sha256),
        seed=seed,
        backends=tuple(BackendRecord(name=spec.name, arm=spec.arm) for spec in loaded.specs),
    )
    return encoded("start", start.model_dump(mode="json", exclude={"v", "event"}))
