"""What a policy sees and what it says. Facts only: frozen, slotted, no behaviour beyond lookups.

Nothing here holds a request's true output length: a policy cannot see the future because its views do not contain it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import overload

from selector.core.quickinit import quick_init, quick_maker

TEXT_TYPES: tuple[str, ...] = (
    "code",
    "math",
    "conversation",
    "news",
    "romansh",
    "multilingual",
    "long_document",
    "structured_output",
    "tool_call",
    "agentic",
)
"""The text types, in the order used by every probability vector of this package."""

UNKNOWN_TEXT_TYPE = "unknown"
"""The text type of an empty input, and of a request nobody classified."""

_NO_SETTINGS: Mapping[str, float] = MappingProxyType({})


class Capability(StrEnum):
    """What a request may need and an arm may be unable to serve."""

    JSON_SCHEMA = "json_schema"
    TOOLS = "tools"
    LOGPROBS = "logprobs"
    HIDDEN_STATES = "hidden_states"
    PENALTIES = "penalties"


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """One request as a policy may know it before the first token."""

    request_id: str
    arrival_s: float
    """When the request arrived, seconds on the clock of `FleetView.now_s`."""
    prompt_tokens: int
    """Length of the prompt: exact in a trace, an estimate from the text in the router."""
    expected_output_tokens: float
    """Expected length of the answer, from what was seen so far; never the true one."""
    max_output_tokens: int | None = None
    """The bound the client set, if it set one."""
    text_type: str = UNKNOWN_TEXT_TYPE
    text_probabilities: tuple[float, ...] | None = None
    """Probabilities over `TEXT_TYPES`, summing to 1; `None` means that `text_type` is certain (or unknown)."""
    text_reasons: tuple[str, ...] = ()
    """What spoke for `text_type`, in words, for logs and explanations; nothing of the text itself."""
    slo_class: str = "default"
    tbt_target_ms: float | None = None
    """The bound on this request's time between tokens, `None` if it asked for none."""
    needs: frozenset[Capability] = frozenset()
    session_key: str | None = None
    """Equal keys share a prompt prefix (a chat, a tenant's system prompt)."""
    temperature: float | None = None
    """Sampling temperature, `None` if the client left it to the server."""
    refine_key: str | None = None
    """Requests of equal keys are taken to accept alike, beyond their text type; `None` unless the fleet file asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadGroup:
    """Requests in flight on one backend that a policy may treat alike."""

    text_type: str
    tbt_target_ms: float | None
    requests: int


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSignal:
    """What one poll of `/v1/loads` said, summed over a backend's ranks."""

    running: int
    waiting: int
    kv_tokens: float | None = None
    max_running_requests: int | None = None
    max_kv_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Factors on what a profile says of a backend's steps, from what was observed; 1 leaves it as it is."""

    step_time_frac: float = 1.0
    step_energy_frac: float = 1.0


NO_CORRECTION = Correction()


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class BackendView:
    """One backend as the tracker knows it now.

    Counts include what the router itself has dispatched since the last poll, so two requests in the same millisecond
    see each other; what only polls tell is as old as the last poll.
    """

    name: str
    arm: str
    gpus: tuple[str, ...]
    available: bool
    """Healthy, not draining and not quarantined."""
    unavailable_reason: str | None
    batch: int
    """Requests on the backend, running or waiting: own in flight plus foreign ones seen by polls."""
    waiting: int
    """Requests waiting for a place at the last poll."""
    kv_tokens: float
    """Estimated tokens in the KV cache: prompts and the answers generated so far."""
    groups: tuple[LoadGroup, ...]
    """The requests that this router has in flight there, grouped."""
    max_running_requests: int
    max_kv_tokens: int
    max_context_tokens: int
    settings: Mapping[str, float] = field(default_factory=lambda: _NO_SETTINGS)
    """Live settings of the arm (such as a verify budget) in force."""
    settings_fixed: bool = False
    """Its server refused to change them."""
    correction: Correction = NO_CORRECTION
    """In force in the costs of the backend's spec already: for showing, not for applying."""

    @property
    def mean_context_tokens(self) -> float:
        """Mean context per request, 0 when idle."""
        return self.kv_tokens / self.batch if self.batch else 0.0


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """All backends that serve one target, at one instant."""

    now_s: float
    backends: tuple[BackendView, ...]


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What a policy predicted for one backend, had the request gone there."""

    backend: str
    arm: str
    feasible: bool
    tbt_ms: float | None = None
    """Predicted time between tokens of this request at the policy's quantile."""
    marginal_j_per_accepted_token: float | None = None
    note: str = ""
    """Why it is not feasible or not chosen, in words; may be empty."""
    accept_length: float | None = None
    """Accept length that was expected of this request there."""
    acceptance_samples: float | None = None
    """Finished requests behind that estimate, faded ones by what is left of them; 0 is the profile alone."""


class LazyCandidates(Sequence[Candidate]):
    """Candidates that are worked out when they are first looked at, since most decisions are never explained.

    They tell what is known by then: whoever keeps a decision asks for `Decision.explained` before anything else
    happens.
    """

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], tuple[Candidate, ...]]) -> None:
        self._make = make
        self._made: tuple[Candidate, ...] | None = None

    def _all(self) -> tuple[Candidate, ...]:
        if self._made is None:
            self._made = self._make()
        return self._made

    @overload
    def __getitem__(self, index: int) -> Candidate: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Candidate]: ...

    def __getitem__(self, index: int | slice) -> Candidate | Sequence[Candidate]:
        return self._all()[index]

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __eq__(self, other: object) -> bool:
        return self._all() == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._all())

    def __repr__(self) -> str:
        return repr(self._all())


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Where a request goes, and why."""

    backend: str | None
    """Name of the backend; `None` refuses the request (the router answers 503)."""
    reason: str
    candidates: Sequence[Candidate] = ()
    settings: Mapping[str, float] = field(default_factory=lambda: _NO_SETTINGS)
    """Live settings the policy wants in force on that backend; empty leaves them as they are."""

    @property
    def chosen(self) -> Candidate | None:
        """What was predicted of the backend decided on; policies that do not predict say nothing."""
        for candidate in self.candidates:
            if candidate.backend == self.backend:
                return candidate
        return None

    def explained(self) -> Decision:
        """The decision with its candidates worked out: what is logged or kept."""
        if isinstance(self.candidates, tuple):
            return self
        return make_decision(
            backend=self.backend, reason=self.reason, candidates=tuple(self.candidates), settings=self.settings
        )


class Finish(StrEnum):
    """How a request ended."""

    DONE = "done"
    FAILED = "failed"
    """The backend failed it; a target is counted as missed."""
    CANCELLED = "cancelled"
    """The client went away; it counts neither as met nor as missed."""


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a request turned out to be, once it ended."""

    request_id: str
    backend: str
    arm: str
    text_type: str
    finish: Finish
    prompt_tokens: int
    accepted_tokens: int
    """Tokens delivered to the client."""
    dispatched_s: float
    finished_s: float
    ttft_ms: float | None = None
    tbt_ms: float | None = None
    """(t_last − t_first) / (tokens − 1); `None` under two tokens or when the stream did not tell."""
    verify_passes: int | None = None
    accepted_drafts: int | None = None
    tbt_target_ms: float | None = None

    @property
    def within_target(self) -> bool | None:
        """Whether the TBT met the target; `None` without either."""
        if self.tbt_ms is None or self.tbt_target_ms is None:
            return None
        return self.tbt_ms <= self.tbt_target_ms

    @property
    def accept_length(self) -> float | None:
        """1 + accepted drafts / verify passes; `None` when the backend did not report them."""
        if self.verify_passes is None or self.accepted_drafts is None or self.verify_passes <= 0:
            return None
        return 1.0 + self.accepted_drafts / self.verify_passes


# For who makes one for every request.
make_request_view = quick_maker(RequestView)
make_candidate = quick_maker(Candidate)
make_decision = quick_maker(Decision)
make_backend_view = quick_maker(BackendView)
make_fleet_view = quick_maker(FleetView)
make_outcome = quick_maker(Outcome)
