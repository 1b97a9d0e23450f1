"""What goes into a simulation and what comes out of it.

    requests that arrived = done + rejected + unfinished + dropped + outside the window

Energy, tokens and retractions are those between the two ends of the window; records are the requests that arrived in
it, each followed to its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from selector.core.types import Outcome
from selector.errors import DomainError
from selector.files.trace import TraceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRequest:
    """A trace request with what the run adds to it."""

    trace: TraceRequest
    text_type: str
    """The true one: it decides what is accepted."""
    slo_class: str
    tbt_target_ms: float | None
    seen_text_type: str | None = None
    """What the policy is told; `None` tells it the truth."""
    seen_text_probabilities: tuple[float, ...] | None = None
    temperature: float | None = None
    refine_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The part of a run that is measured: leave out the warm-up to see the steady state.

    Raises `DomainError` when it is empty.
    """

    from_s: float = 0.0
    to_s: float = inf

    def __post_init__(self) -> None:
        if not 0.0 <= self.from_s < self.to_s:
            raise DomainError(f"no time lies between {self.from_s} and {self.to_s} s")


WHOLE_RUN = Window()


class Fate(StrEnum):
    """How a simulated request ended."""

    DONE = "done"
    REJECTED = "rejected"
    """By the policy."""
    UNFINISHED = "unfinished"
    """Still waiting or running when the run ended; a target is counted as missed."""


@dataclass(slots=True)
class RequestRecord:
    """How one request went. Only one that is done has an `outcome`."""

    request: SimulatedRequest
    arrived_s: float
    fate: Fate = Fate.UNFINISHED
    outcome: Outcome | None = None
    energy_j: float = 0.0
    """Its share of decode and prefill energy; idle power belongs to nobody."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""


@dataclass(slots=True, kw_only=True)
class Run:
    """A finished simulation."""

    records: list[RequestRecord] = field(default_factory=list)
    """In the order in which they ended, the unfinished ones last."""
    rejected: int = 0
    unfinished: int = 0
    dropped: int = 0
    """Requests over every backend's context, which no policy saw."""
    outside: int = 0
    """Requests that arrived before or after the window."""
    decisions_by_arm: dict[str, int] = field(default_factory=dict)
    decode_j: float = 0.0
    prefill_j: float = 0.0
    idle_j: float = 0.0
    extrapolated_j: float = 0.0
    accepted_tokens: int = 0
    """Tokens delivered, those of unfinished requests too."""
    duration_s: float = 0.0
    """Of the window, as far as the run got."""
    retractions: int = 0
