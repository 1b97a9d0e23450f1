"""Decisions in words: what the policy predicted for every candidate, and what came of the one it chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selector.core.types import Candidate, Decision
from selector.page.svg import element, words
from selector.page.tables import Cell, number, percent, table
from selector.simulator.run import RequestRecord

_EVENLY = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One decision and the request it was about."""

    why: str
    """Why this one is shown."""
    decision: Decision
    record: RequestRecord

    @property
    def chosen(self) -> Candidate | None:
        """What was predicted for the backend that it chose."""
        return self.decision.chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """How predictions of the chosen backend compare with what came, over the decisions kept."""

    decisions: int
    within_predicted: float | None
    """Share of requests whose TBT stayed within the predicted one, which policies state at their TBT quantile."""
    predicted_tbt_ms: float | None
    """Median, and beside it that of what came, over the same requests."""
    actual_tbt_ms: float | None


def foresight(decisions: Mapping[str, Decision], records: Sequence[RequestRecord]) -> Foresight:
    """Predicted against actual TBT; a request without either does not count."""
    pairs = []
    for record in records:
        decision = decisions.get(record.request.trace.request_id)
        candidate = decision.chosen if decision else None
        if candidate and candidate.tbt_ms is not None and record.outcome and record.outcome.tbt_ms is not None:
            pairs.append((candidate.tbt_ms, record.outcome.tbt_ms))
    if not pairs:
        return Foresight(decisions=len(decisions), within_predicted=None, predicted_tbt_ms=None, actual_tbt_ms=None)
    middle = len(pairs) // 2
    return Foresight(
        decisions=len(decisions),
        within_predicted=sum(actual <= predicted for predicted, actual in pairs) / len(pairs),
        predicted_tbt_ms=sorted(predicted for predicted, _ in pairs)[middle],
        actual_tbt_ms=sorted(actual for _, actual in pairs)[middle],
    )


def sample(decisions: Mapping[str, Decision], records: Sequence[RequestRecord]) -> list[Explained]:
    """A few decisions: spread over the run, the worst miss of a target, the worst forecast, and one refusal."""
    known = [record for record in records if record.request.trace.request_id in decisions]
    known.sort(key=lambda record: record.arrived_s)
    picked: dict[str, tuple[str, RequestRecord]] = {}

    def pick(why: str, record: RequestRecord | None) -> None:
        if record is not None:
            picked.setdefault(record.request.trace.request_id, (why, record))

    misses = [(_over_target(record), record) for record in known]
    worst = max(misses, key=lambda miss: miss[0], default=None)
    if worst is not None and worst[0] > 1.0:
        pick(f"furthest over its target of those kept, by {worst[0]:.2f} times", worst[1])
    wrong = [(_under_predicted(decisions, record), record) for record in known]
    surprise = max(wrong, key=lambda pair: pair[0], default=None)
    if surprise is not None and surprise[0] > 1.0:
        pick(f"its TBT most above the predicted one, by {surprise[0]:.2f} times", surprise[1])
    pick("refused", next((record for record in known if record.outcome is None), None))
    for part in range(_EVENLY):
        if known:
            pick("one of a few spread over the run", known[(2 * part + 1) * len(known) // (2 * _EVENLY)])
    return [
        Explained(why=why, decision=decisions[request_id], record=record)
        for request_id, (why, record) in picked.items()
    ]


def explained_html(one: Explained) -> str:
    """The decision as a paragraph and a table of its candidates."""
    request, outcome, chosen = one.record.request, one.record.outcome, one.chosen
    target = "no target" if request.tbt_target_ms is None else f"target {request.tbt_target_ms:g} ms"
    asked = (
        f"{request.trace.request_id}, at {one.record.arrived_s:.2f} s: {request.text_type}, class "
        f"{request.slo_class}, {request.trace.prompt_tokens:,} prompt tokens, {target} ({one.why})."
    )
    if outcome is None:
        came = "Not served."
    else:
        accepted = f", accept length {outcome.accept_length:.2f}" if outcome.accept_length is not None else ""
        came = (
            f"Came: TBT {number(outcome.tbt_ms, 2)} ms, TTFT {number(outcome.ttft_ms, 0)} ms, "
            f"{outcome.accepted_tokens:,} tokens at {one.record.energy_j / outcome.accepted_tokens:.3f} J each "
            f"(its share of decode and prefill{accepted})."
        )
    if chosen is not None and chosen.tbt_ms is not None:
        predicted = f", {chosen.marginal_j_per_accepted_token:.3f} J/token marginal" if (
            chosen.marginal_j_per_accepted_token is not None) else ""  # fmt: skip
        came = f"Predicted: TBT {chosen.tbt_ms:.2f} ms{predicted}. {came}"
    where = f"→ {one.decision.backend}" if one.decision.backend else "→ refused"
    parts = [
        element("p", words(asked)),
        element("p", element("b", words(where)), ": ", words(one.decision.reason)),
        element("p", words(came)),
    ]
    if one.decision.candidates:
        parts.append(_candidates(one.decision))
    return element("div", *parts, class_="decision")


def _candidates(decision: Decision) -> str:
    rows = []
    for candidate in decision.candidates:
        mark = candidate.backend == decision.backend
        rows.append(
            [
                Cell(text=("▶ " if mark else "") + candidate.backend, best=mark),
                Cell(text=candidate.arm, prose=True),
                "yes" if candidate.feasible else "no",
                number(candidate.tbt_ms, 2),
                number(candidate.marginal_j_per_accepted_token, 3),
                Cell(text=candidate.note, prose=True),
            ]
        )
    columns = ("backend", "arm", "feasible", "predicted TBT, ms", "marginal J/token", "note")
    return table(columns, rows, caption="candidates of this decision")


def foresight_html(rows: Sequence[tuple[str, Foresight]]) -> str:
    """One row a run."""
    columns = ("run", "decisions kept", "TBT within the predicted", "median predicted, ms", "median that came, ms")
    body: list[list[Cell | str]] = [
        [
            Cell(text=name, prose=True),
            f"{seen.decisions:,}",
            percent(seen.within_predicted),
            number(seen.predicted_tbt_ms, 2),
            number(seen.actual_tbt_ms, 2),
        ]
        for name, seen in rows
    ]
    return table(columns, body, caption="predicted against actual time between tokens")


def _over_target(record: RequestRecord) -> float:
    target, outcome = record.request.tbt_target_ms, record.outcome
    return outcome.tbt_ms / target if target and outcome and outcome.tbt_ms is not None else 0.0


def _under_predicted(decisions: Mapping[str, Decision], record: RequestRecord) -> float:
    chosen = decisions[record.request.trace.request_id].chosen
    outcome = record.outcome
    if chosen is None or not chosen.tbt_ms or outcome is None or outcome.tbt_ms is None:
        return 0.0
    return outcome.tbt_ms / chosen.tbt_ms
