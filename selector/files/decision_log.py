"""The decision log: one JSON object a line, everything that changed the controller's state, in order.

    start      what ran: version, target, policy and fallback with their sha256, seed, backends
    decision   a request as the policy saw it, and what it decided
    retract    the decided backend failed before the first byte; another decision on the same request may follow
    end        how the request turned out
    poll       a backend's load, as polled
    health     a backend became available or not
    settings   live settings of a backend came into force, or were not changed, and why
    correct    the step costs of a backend were corrected by what was observed, as policies see them from here on
    energy     what a request drew on one backend; no policy sees it

Version 1. Because it is complete and in order, `selector.simulator.replay` can make every decision again from it. Times
`t_s` are seconds since the router started; `wall` is provenance. Prompts are never in it.

A file may hold several runs, one after the other: each begins with its `start`. So does what a router decides after it
took over a changed configuration; requests that were decided before may then still end, at the same clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from selector.core.acceptancestate import AcceptanceState, CellState
from selector.core.types import Candidate, Correction, Decision, LoadSignal, Outcome, RequestView
from selector.errors import TraceError
from selector.files.plainjson import plain
from selector.files.validation import FileModel, read_text

VERSION = 1


class PolicyRecord(FileModel):
    """Which policy file ran."""

    label: str
    sha256: str
    params: dict[str, Any] = Field(default_factory=dict)


class BackendRecord(FileModel):
    """A backend and the arm it runs."""

    name: str
    arm: str


class _Event(FileModel):
    v: Literal[1] = 1


class StartEvent(_Event):
    """The first line of a run."""

    event: Literal["start"] = "start"
    wall: str
    """UTC, ISO 8601."""
    version: str
    target: str
    policy: PolicyRecord
    fallback: PolicyRecord
    seed: int
    backends: tuple[BackendRecord, ...]
    reloaded: bool = False
    """The router of the run before goes on with another configuration: `t_s` goes on, and so do its requests."""


class DecisionEvent(_Event):
    """A decision; `backend` and `arm` are `None` when the policy refused the request."""

    event: Literal["decision"] = "decision"
    t_s: float
    request: RequestView
    backend: str | None
    arm: str | None
    reason: str
    candidates: tuple[Candidate, ...]
    settings: dict[str, float] = Field(default_factory=dict)
    fallback: bool
    """Whether the policy failed and the fallback decided."""

    @property
    def decision(self) -> Decision:
        """As the policy returned it."""
        return Decision(backend=self.backend, reason=self.reason, candidates=self.candidates, settings=self.settings)


class RetractEvent(_Event):
    """A dispatch that produced nothing was taken back."""

    event: Literal["retract"] = "retract"
    t_s: float
    id: str
    backend: str
    why: str


class EndEvent(_Event):
    """A request ended."""

    event: Literal["end"] = "end"
    t_s: float
    outcome: Outcome


class PollEvent(_Event):
    """A backend answered a poll."""

    event: Literal["poll"] = "poll"
    t_s: float
    backend: str
    signal: LoadSignal


class HealthEvent(_Event):
    """A backend's availability, as policies see it from here on."""

    event: Literal["health"] = "health"
    t_s: float
    backend: str
    available: bool
    reason: str | None


class RestoredEvent(_Event):
    """What an earlier run had learnt of acceptance was taken over."""

    event: Literal["restored"] = "restored"
    t_s: float
    state: AcceptanceState


class HeardEvent(_Event):
    """What other routers had learnt of acceptance was added."""

    event: Literal["heard"] = "heard"
    t_s: float
    others: dict[str, dict[str, dict[str, CellState]]]
    """By router, arm and text type."""


class SettingsEvent(_Event):
    """A backend was asked for live settings, or fell back to those that it is launched with."""

    event: Literal["settings"] = "settings"
    t_s: float
    backend: str
    settings: dict[str, float]
    result: Literal["in force", "refused", "failed"]
    why: str


class CorrectionEvent(_Event):
    """The step costs of a backend are its profile's times these factors from here on."""

    event: Literal["correct"] = "correct"
    t_s: float
    backend: str
    correction: Correction


class EnergyEvent(_Event):
    """What the boards counted for a request on one backend; `joules` is `None` when they were not read all the time."""

    event: Literal["energy"] = "energy"
    t_s: float
    id: str
    backend: str
    joules: float | None
    modelled_j: float
    """By the profile, for the load that there was."""


LogEvent = (
    StartEvent
    | DecisionEvent
    | RetractEvent
    | EndEvent
    | PollEvent
    | HealthEvent
    | RestoredEvent
    | HeardEvent
    | SettingsEvent
    | CorrectionEvent
    | EnergyEvent
)

_OF_ACCEPTANCE = frozenset({"restored", "heard"})
"""Events that hold what the learning modules made; others hold what `core/types.py` has, which is never compiled."""
_EVENTS: TypeAdapter[LogEvent] = TypeAdapter(Annotated[LogEvent, Field(discriminator="event")])


def encoded(event: str, fields: Mapping[str, object]) -> bytes:
    """One line of the log, its newline included, from the fields of the event model of that name.

    The router writes by this and not through the models: validating what it has just computed would cost more than
    the decision.
    """
    line = {"v": VERSION, "event": event, **fields}
    option = orjson.OPT_APPEND_NEWLINE
    if event in _OF_ACCEPTANCE:
        option |= orjson.OPT_PASSTHROUGH_DATACLASS
    return orjson.dumps(line, default=plain, option=option)


def read_decision_log(path: Path) -> list[LogEvent]:
    """Every event of the file. Raises `TraceError` for the first line that is none, with its number."""
    return list(parse_decision_log(read_text(path, "decision log", TraceError), str(path)))


def parse_decision_log(text: str, where: str) -> Iterator[LogEvent]:
    """The events of a log's text; `where` names it in errors. Raises `TraceError` at the first bad line."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line:
            yield parse_event(line, f"{where}:{number}")


def runs(events: Iterable[LogEvent]) -> Iterator[list[LogEvent]]:
    """The runs of a log, each from its `start` on; the first lacks it if the beginning of the file is gone."""
    run: list[LogEvent] = []
    for event in events:
        if isinstance(event, StartEvent) and run:
            yield run
            run = []
        run.append(event)
    if run:
        yield run


def parse_event(line: str | bytes, where: str) -> LogEvent:
    """The event of one line; `where` names the line in errors. Raises `TraceError`."""
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError as bad:
        raise TraceError(where, f"is not JSON ({bad})", "delete that line; a crash can cut the last one") from None
    if not isinstance(data, dict):
        raise TraceError(where, "is not a JSON object", "delete that line")
    if data.get("v") != VERSION:
        raise TraceError(f"{where}: v", f"is {data.get('v')!r}", f"this release reads version {VERSION}")
    try:
        return _EVENTS.validate_python(data)
    except ValidationError as invalid:
        first = invalid.errors(include_url=False)[0]
        # The location begins with the name of the event, which tells the models apart.
        field = ".".join(str(part) for part in first["loc"][1:] or ("event",))
        found = "is missing" if first["type"] == "missing" else f"is {first.get('input')!r:.60}: {first['msg']}"
        raise TraceError(f"{where}: {field}", found, "restore the log; its lines are not made by hand") from None
