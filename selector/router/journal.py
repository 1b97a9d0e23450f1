"""What happened, event by event: all of it to the decision log, decisions and how they ended to whoever looks now."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from selector.core.types import Decision, Outcome, RequestView
from selector.files.decision_log_writer import LogSection

_KEPT_EVENTS = 200


class Journal:
    """Of one dispatcher; `log` is its part of the decision log, if there is one."""

    def __init__(self, log: LogSection | None) -> None:
        self.recent: deque[Mapping[str, object]] = deque(maxlen=_KEPT_EVENTS)
        """The last decisions, outcomes and changes of settings, oldest first."""
        self._log = log

    def write(self, event: str, fields: Mapping[str, object]) -> None:
        """To the log alone. `fields` are kept: nobody may change them afterwards."""
        if self._log is not None:
            self._log.write(event, fields)

    def decided(self, view: RequestView, decision: Decision, arm: str | None, now_s: float, *, fallback: bool) -> None:
        """A policy, or the `fallback` in its place, decided; `arm` is that of the backend, if it named one."""
        self._keep(
            "decision",
            {
                "t_s": now_s,
                "request": view,
                "backend": decision.backend,
                "arm": arm,
                "reason": decision.reason,
                "candidates": decision.candidates,
                "settings": dict(decision.settings),
                "fallback": fallback,
            },
        )

    def ended(self, outcome: Outcome, now_s: float) -> None:
        """A request ended."""
        self._keep("end", {"t_s": now_s, "outcome": outcome})

    def settings(self, backend: str, settings: Mapping[str, float], result: str, why: str, now_s: float) -> None:
        """A backend was asked for live settings, or lost them."""
        self._keep("settings", {"t_s": now_s, "backend": backend, "settings": settings, "result": result, "why": why})

    def _keep(self, event: str, fields: Mapping[str, object]) -> None:
        self.write(event, fields)
        self.recent.append({"event": event, **fields})
