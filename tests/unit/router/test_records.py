"""What is remembered of requests is bounded, and found by every name."""

from __future__ import annotations

from dataclasses import replace

from selector.core.types import Candidate, Decision, Outcome
from selector.router.records import Records
from tests.emulators import fleet_of
from tests.fleets import ENDED, request_view

ACCEPTANCE = fleet_of("dspark-8").policy_context().acceptance
DECISION = Decision(backend="b0", reason="why")


def remembered(kept: int = 10) -> Records:
    return Records(ACCEPTANCE, kept=kept)


def decided(records: Records, name: str, *rids: str, decision: Decision = DECISION) -> None:
    view = replace(request_view(name), text_type="code")
    records.decided(view, rids or (name,), decision, "dspark-8", 1.0, fallback=False)


def outcome(name: str) -> Outcome:
    return replace(
        ENDED, request_id=name, arm="dspark-8", accepted_tokens=40, finished_s=1.0, verify_passes=10, accepted_drafts=30
    )


def test_the_oldest_are_forgotten_with_all_their_names() -> None:
    records = remembered(3)
    for number in range(5):
        decided(records, f"r{number}", f"client-{number}", "shared")
    assert len(records) == 3
    assert records.find("r1") is None
    assert records.find("client-1") is None
    for name in ("r4", "client-4", "shared"):
        record = records.find(name)
        assert record is not None
        assert record.view.request_id == "r4"
    assert [record.view.request_id for record in records.latest(2)] == ["r4", "r3"]
    assert len(records._ids) == 4


def test_names_that_are_too_long_are_not_kept() -> None:
    records = remembered()
    decided(records, "r", "x" * 257, *(f"n{number}" for number in range(200)))
    record = records.find("r")
    assert record is not None
    assert len(record.rids) == 64
    assert records.find("x" * 257) is None


def test_of_many_candidates_a_few_and_the_chosen_one_are_kept() -> None:
    candidates = tuple(
        [Candidate(backend=f"b{number}", arm="a", feasible=True, tbt_ms=number) for number in range(500)]
    )
    records = remembered()
    decided(records, "r", decision=Decision(backend="b400", reason="why", candidates=candidates))
    record = records.find("r")
    assert record is not None
    assert record.last.candidates == 500
    assert len(record.last.decision.candidates) == 64
    assert record.last.chosen == candidates[400]


def test_what_acceptance_was_expected_is_kept_as_it_was_then() -> None:
    acceptance = fleet_of("dspark-8").policy_context().acceptance
    records = Records(acceptance)
    decided(records, "r")
    before = acceptance.accept_length("dspark-8", "code")
    for number in range(50):
        acceptance.observe("dspark-8", "code", 50, 10 + number % 5)
    decided(records, "later")
    first, later = records.find("r"), records.find("later")
    assert first is not None
    assert later is not None
    assert (first.last.accept_length, first.last.acceptance_samples) == (before, 0.0)
    assert (later.last.accept_length or 0.0) < before
    assert later.last.acceptance_samples > 10
    records.ended(outcome("r"))
    records.ended(outcome("forgotten"))
    assert [each.view.request_id for each in records.latest_ended()] == ["r"]


def test_what_the_policy_asked_of_acceptance_is_not_asked_again() -> None:
    records = remembered()
    asked = Candidate(backend="b0", arm="none", feasible=True, accept_length=2.5, acceptance_samples=7.0)
    decided(records, "r", decision=Decision(backend="b0", reason="why", candidates=(asked,)))
    record = records.find("r")
    assert record is not None
    assert (record.last.accept_length, record.last.acceptance_samples) == (2.5, 7.0)


def test_joules_of_all_attempts_add_up_unless_one_is_not_known() -> None:
    records = remembered()
    for name in ("whole", "partial", "late"):
        decided(records, name)
    for name, parts in (("whole", (5.0, 7.0)), ("partial", (5.0, None)), ("late", (None, 7.0))):
        for joules in parts:
            records.settled(name, joules, 4.0)
    found = [records.find(name) for name in ("whole", "partial", "late")]
    assert [record and record.joules for record in found] == [12.0, None, None]
    assert [record and record.modelled_j for record in found] == [8.0, 8.0, 8.0]
    assert records.settled("unknown", 1.0, 1.0) is None
