"""What is remembered of the last requests: why each went where it did, what was predicted and what came.

    decided ──▶ retracted ──▶ decided … ──▶ ended ──▶ settled (joules, once the boards were read)

The least recently decided are forgotten first; nothing of a prompt or an answer is kept.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from selector.core.acceptance import AcceptanceModel
from selector.core.types import NO_CORRECTION, Candidate, Correction, Decision, Outcome, RequestView

_KEPT_REQUESTS = 1_000
_MOST_CANDIDATES = 64
_MOST_RID_CHARS = 256


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One decision on a request."""

    t_s: float
    decision: Decision
    """With at most a few dozen candidates, the chosen one among them."""
    candidates: int
    """How many there were."""
    arm: str | None
    fallback: bool
    acceptance_arm: str | None = None
    """The arm as the acceptance model knows it at the live settings in force then."""
    accept_length: float | None = None
    """What was expected on the chosen arm, on the mean."""
    acceptance_samples: float = 0.0
    """Finished requests behind it, faded ones by what is left of them; 0 is the profile alone."""
    correction: Correction = NO_CORRECTION
    """In force on the chosen backend."""
    retracted: str | None = None
    """Why it was taken back, if it was."""

    @property
    def chosen(self) -> Candidate | None:
        """What the policy predicted of the backend it chose, if it predicts."""
        return self.decision.chosen


@dataclass(slots=True, kw_only=True)
class Record:
    """One request."""

    view: RequestView
    rids: tuple[str, ...]
    """By which the client knows it, beside the router's own name."""
    attempts: list[Attempt] = field(default_factory=list)
    outcome: Outcome | None = None
    joules: float | None = None
    modelled_j: float | None = None
    settled: bool = False
    """Its joules are as known as they get."""

    @property
    def last(self) -> Attempt:
        """The decision that counts."""
        return self.attempts[-1]


class Records:
    """The last requests, by every name they have."""

    def __init__(self, acceptance: AcceptanceModel, *, kept: int = _KEPT_REQUESTS) -> None:
        self._acceptance = acceptance
        self._kept = kept
        self._records: OrderedDict[str, Record] = OrderedDict()
        self._ids: dict[str, str] = {}
        """The router's name by the client's; of requests that share one, the last."""
        self._ended: deque[Record] = deque(maxlen=kept)

    def __len__(self) -> int:
        return len(self._records)

    def decided(
        self,
        view: RequestView,
        rids: Sequence[str],
        decision: Decision,
        arm: str | None,
        now_s: float,
        *,
        fallback: bool,
        correction: Correction = NO_CORRECTION,
        acceptance_arm: str | None = None,
    ) -> None:
        """A policy decided; again, if the request was retracted. `acceptance_arm` is the arm unless given."""
        acceptance_arm = acceptance_arm or arm
        record = self._records.get(view.request_id)
        if record is None:
            record = self._remember(view, rids)
        attempt = Attempt(
            t_s=now_s,
            decision=_bounded(decision),
            candidates=len(decision.candidates),
            arm=arm,
            fallback=fallback,
            acceptance_arm=acceptance_arm,
            correction=correction,
        )
        chosen = attempt.chosen
        if chosen is not None and chosen.accept_length is not None and chosen.acceptance_samples is not None:
            # The policy has asked the model already.
            attempt.accept_length, attempt.acceptance_samples = chosen.accept_length, chosen.acceptance_samples
        elif acceptance_arm is not None:
            attempt.accept_length, _ = self._acceptance.of_request(acceptance_arm, view, 0.5)
            attempt.acceptance_samples = self._acceptance.samples_behind(acceptance_arm, view)
        record.attempts.append(attempt)

    def retracted(self, request_id: str, why: str) -> None:
        """The last decision was taken back."""
        record = self._records.get(request_id)
        if record is not None:
            record.last.retracted = why

    def ended(self, outcome: Outcome) -> Record | None:
        """A request ended; its record, unless it is forgotten."""
        record = self._records.get(outcome.request_id)
        if record is not None:
            record.outcome = outcome
            self._ended.append(record)
        return record

    def settled(self, request_id: str, joules: float | None, modelled_j: float) -> Record | None:
        """What one attempt of a request drew is known, `None` if it cannot be; its record, unless it is forgotten."""
        record = self._records.get(request_id)
        if record is not None:
            if joules is None or (record.settled and record.joules is None):
                record.joules = None
            else:
                record.joules = (record.joules or 0.0) + joules
            record.modelled_j = (record.modelled_j or 0.0) + modelled_j
            record.settled = True
        return record

    def find(self, rid: str) -> Record | None:
        """By the router's name or the client's."""
        return self._records.get(self._ids.get(rid, rid))

    def latest(self, count: int) -> Iterator[Record]:
        """The last decided, newest first."""
        for request_id, _ in zip(reversed(self._records), range(count), strict=False):
            yield self._records[request_id]

    def latest_ended(self) -> Iterator[Record]:
        """Those remembered that ended, newest first."""
        return reversed(self._ended)

    def _remember(self, view: RequestView, rids: Sequence[str]) -> Record:
        names = tuple(
            [rid for rid in rids if rid != view.request_id and len(rid) <= _MOST_RID_CHARS][:_MOST_CANDIDATES]
        )
        record = self._records[view.request_id] = Record(view=view, rids=names)
        for name in names:
            self._ids[name] = view.request_id
        while len(self._records) > self._kept:
            oldest, forgotten = self._records.popitem(last=False)
            for name in forgotten.rids:
                if self._ids.get(name) == oldest:
                    del self._ids[name]
        return record


def _bounded(decision: Decision) -> Decision:
    """With few candidates: the chosen one and the first others, in their order."""
    if len(decision.candidates) <= _MOST_CANDIDATES:
        return decision
    chosen = [found for found in decision.candidates if found.backend == decision.backend][:1]
    others = [found for found in decision.candidates if found.backend != decision.backend]
    kept = {found.backend for found in chosen + others[: _MOST_CANDIDATES - len(chosen)]}
    return replace(decision, candidates=tuple([found for found in decision.candidates if found.backend in kept]))
