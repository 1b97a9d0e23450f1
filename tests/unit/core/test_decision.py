"""Candidates that are worked out when they are looked at, once, and then are like any others."""

from __future__ import annotations

from selector.core.types import Candidate, Decision, LazyCandidates

CANDIDATES = (Candidate(backend="b0", arm="none", feasible=True), Candidate(backend="b1", arm="none", feasible=False))


def lazy() -> tuple[LazyCandidates, list[int]]:
    asked: list[int] = []

    def make() -> tuple[Candidate, ...]:
        asked.append(1)
        return CANDIDATES

    return LazyCandidates(make), asked


def test_they_are_worked_out_once_and_only_for_who_looks() -> None:
    candidates, asked = lazy()
    decision = Decision(backend="b0", reason="because", candidates=candidates)
    assert asked == []
    assert [found.backend for found in decision.candidates] == ["b0", "b1"]
    assert decision.candidates[1] is CANDIDATES[1]
    assert decision.candidates[:1] == CANDIDATES[:1]
    assert len(decision.candidates) == 2
    assert asked == [1]


def test_an_explained_decision_has_them_all_and_is_the_same_decision() -> None:
    candidates, _ = lazy()
    decision = Decision(backend="b0", reason="because", candidates=candidates)
    explained = decision.explained()
    assert type(explained.candidates) is tuple
    assert explained == decision
    assert hash(explained.candidates) == hash(decision.candidates)
    assert repr(explained.candidates) == repr(decision.candidates)
    assert explained.explained() is explained


def test_others_are_other_candidates() -> None:
    candidates, _ = lazy()
    assert candidates != CANDIDATES[:1]
    assert candidates != "b0"
    assert candidates != 2
