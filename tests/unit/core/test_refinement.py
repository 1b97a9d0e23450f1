"""Keys that refine an estimate: shrunk when thin, bounded in number, gone with an arm that moved."""

from __future__ import annotations

import pytest

from selector.core.acceptance import AcceptanceModel, AcceptancePrior
from selector.core.refinement import MOST_FACTOR, Refinement
from selector.core.types import TEXT_TYPES
from tests.fleets import request_view


def model(refine_keys: int = 100) -> AcceptanceModel:
    """One that knows its text types well already."""
    priors = {"arm": {name: AcceptancePrior(mean=3.0, request_spread=0.15) for name in TEXT_TYPES}}
    made = AcceptanceModel(priors, {"arm": 8}, refine_keys=refine_keys)
    for number in range(200):
        wobble = number * 7 % 41 - 20
        made.observe("arm", "code", 100 + wobble, 200 - wobble, request=request_view(text_type="code"))
    return made


def length(acceptance: AcceptanceModel, key: str | None) -> float:
    return acceptance.of_request("arm", request_view(text_type="code", refine_key=key), 0.5)[0]


def test_a_key_moves_from_its_type_to_its_own_by_what_it_showed() -> None:
    acceptance = model()
    base, lengths = length(acceptance, None), []
    for requests in (1, 5, 30):
        for _ in range(requests):
            view = request_view(text_type="code", refine_key="tenant")
            acceptance.observe("arm", "code", 150, 150, request=view)  # 2 tokens per pass
        lengths.append(length(acceptance, "tenant"))
    assert base > lengths[0] > lengths[1] > lengths[2]
    assert lengths[0] > 2.2, "one request is not believed"
    assert lengths[2] == pytest.approx(2.0, abs=0.15)
    assert length(acceptance, "another") == length(acceptance, None) > 2.6
    assert acceptance.refinement.requests("tenant", "arm") == pytest.approx(36, rel=0.1)


def test_one_long_answer_of_a_key_does_not_outweigh_its_others() -> None:
    acceptance = model()
    for _ in range(20):
        view = request_view(text_type="code", refine_key="tenant")
        acceptance.observe("arm", "code", 100, 200, request=view)
    acceptance.observe("arm", "code", 8_000, 8_000, request=request_view(text_type="code", refine_key="tenant"))
    assert length(acceptance, "tenant") == pytest.approx(length(acceptance, None), rel=0.05)


def test_no_more_keys_are_kept_than_allowed_and_the_least_recent_go_first() -> None:
    refinement = Refinement(3)
    for key in ("a", "b", "c", "a", "d"):
        refinement.add(key, "arm", 100.0, 50.0, 25.0, 16.0)
    assert len(refinement) == 3
    assert [key for key, _, _ in refinement.state()] == ["c", "a", "d"]
    assert refinement.factor("b", "arm") == 1.0


@pytest.mark.parametrize(("passes", "expected"), [(100.0, 1.0), (13.0, 100.0), (100.0, 100.0)])
def test_a_ratio_is_bounded_and_never_divides_by_nothing(passes: float, expected: float) -> None:
    refinement = Refinement(3)
    for _ in range(1_000):
        refinement.add("key", "arm", 100.0, passes, expected, 4.0)
    assert 1.0 / MOST_FACTOR <= refinement.factor("key", "arm") <= MOST_FACTOR


def test_an_arm_that_moved_as_a_whole_is_forgotten_by_every_key() -> None:
    refinement = Refinement(3)
    for arm in ("one", "other"):
        refinement.add("key", arm, 100.0, 50.0, 25.0, 16.0)
    refinement.forget_arm("one")
    assert refinement.factor("key", "one") == 1.0 != refinement.factor("key", "other")


def test_what_was_kept_is_taken_up_to_the_limit() -> None:
    full, small = Refinement(10), Refinement(2)
    for key in "abc":
        full.add(key, "arm", 100.0, 50.0, 25.0, 16.0)
    small.restore(full.state())
    assert small.state() == full.state()[1:]
