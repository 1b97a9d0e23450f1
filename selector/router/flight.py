"""A request on its way, from the decision to its outcome."""

from __future__ import annotations

from dataclasses import dataclass, field

from selector.core.speccounts import SpecCounts
from selector.core.stream import StreamObserver
from selector.core.types import Finish, Outcome, RequestView, make_outcome
from selector.router.headers import decision_headers
from selector.router.request import ClientRequest


@dataclass(slots=True, kw_only=True)
class Flight:
    """One request on one backend."""

    request: ClientRequest
    backend: str
    arm: str
    reason: str
    dispatched_s: float
    predicted_tbt_ms: float | None = None
    """Known once the decision is settled."""
    observer: StreamObserver = field(default_factory=StreamObserver)
    over: bool = False
    """Ended or retracted."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """What the client is told about the decision."""
        return decision_headers(self.request.id, self.arm, self.backend, self.reason, self.predicted_tbt_ms)

    def outcome(self, view: RequestView, finish: Finish, now_s: float, spec: SpecCounts | None) -> Outcome:
        """How the request went that the policy saw as `view`; `spec` is what of its speculation can be believed."""
        seen = self.observer
        return make_outcome(
            request_id=view.request_id,
            backend=self.backend,
            arm=self.arm,
            text_type=view.text_type,
            finish=finish,
            prompt_tokens=seen.prompt_tokens if seen.prompt_tokens is not None else view.prompt_tokens,
            # A stream that ended early did not say; every chunk has at least one token.
            accepted_tokens=seen.completion_tokens if seen.completion_tokens is not None else seen.chunks,
            dispatched_s=self.dispatched_s,
            finished_s=now_s,
            ttft_ms=None if seen.first_s is None else 1e3 * (seen.first_s - view.arrival_s),
            # Several answers in one stream interleave: the time between any two of its tokens is no reader's.
            tbt_ms=seen.tbt_ms if self.request.samples == 1 else None,
            verify_passes=None if spec is None else spec.verify_passes,
            accepted_drafts=None if spec is None else spec.accepted_drafts,
            tbt_target_ms=view.tbt_target_ms,
        )
