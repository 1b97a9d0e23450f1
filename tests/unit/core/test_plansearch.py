"""The search finds what single moves and moves of whole pools lead to, and scores no assignment twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selector.core.plansearch import PlanSearch, clearly_less, finished

ARMS = ("a", "b", "c")


@dataclass(frozen=True, slots=True)
class Scored:
    score: float


Price = Callable[[Mapping[str, str]], float]


def searched(price: Price, *starts: str) -> tuple[float, list[str]]:
    """The best score found from starts such as "aab" (arms of the keys 0, 1, 2), and every assignment it scored."""
    asked: list[str] = []

    def evaluate(arm_of: Mapping[str, str]) -> Scored:
        asked.append("".join(arm_of.values()))
        return Scored(price(arm_of))

    search: PlanSearch[str, Scored] = PlanSearch(ARMS, evaluate)
    starting = [{str(key): arm for key, arm in enumerate(start)} for start in starts]
    return finished(search.best(starting)).score, asked


def apart_from(wanted: str) -> Price:
    """1 and as many as keys are not on the arm wanted: single moves lead there from anywhere."""
    return lambda arm_of: 1.0 + sum(arm != right for arm, right in zip(arm_of.values(), wanted, strict=True))


def test_single_moves_go_downhill_to_the_end() -> None:
    assert searched(apart_from("cabbac"), "aaaaaa")[0] == 1.0


@pytest.mark.parametrize(
    ("start", "wanted"), [("aab", "ccb"), ("aab", "bba"), ("aab", "bbb"), ("aaa", "ccc"), ("aaaa", "ccac")]
)
def test_demands_that_share_an_arm_move_together(start: str, wanted: str) -> None:
    """Nothing but the start and what is wanted is cheap, so that no single move pays."""
    score, _ = searched(lambda arm_of: {start: 2.0, wanted: 1.0}.get("".join(arm_of.values()), 9.0), start)
    assert score == 1.0


def test_after_a_pool_has_moved_single_moves_go_on() -> None:
    steps = {"aab": 3.0, "ccb": 2.0, "ccc": 1.5, "bcc": 1.0}
    assert searched(lambda arm_of: steps.get("".join(arm_of.values()), 9.0), "aab")[0] == 1.0


def test_the_best_of_several_starts_is_taken() -> None:
    steps = {"aaa": 3.0, "bca": 2.0, "cab": 5.0}
    assert searched(lambda arm_of: steps.get("".join(arm_of.values()), 9.0), "aaa", "bca", "cab")[0] == 2.0


def test_equal_scores_and_rounding_end_the_search() -> None:
    jitter = {"aa": 1.0, "ab": 1.0 - 1e-15, "ba": 1.0 - 2e-15}
    assert searched(lambda arm_of: jitter.get("".join(arm_of.values()), 1.0), "aa", "bb")[0] == 1.0
    assert searched(lambda arm_of: 0.0, "abc")[0] == 0.0


@pytest.mark.timeout(20)
def test_scores_below_nothing_end_the_search_too() -> None:
    assert searched(lambda arm_of: -1.0, "abc")[0] == -1.0
    assert searched(lambda arm_of: apart_from("cab")(arm_of) - 9.0, "aaa")[0] == -8.0


@pytest.mark.parametrize(
    ("one", "other", "less"),
    [(0.9, 1.0, True), (0.999, 1.0, False), (-1.0, -1.0, False), (-1.001, -1.0, False), (-1.1, -1.0, True)],
)
def test_clearly_less_is_by_a_share_of_the_size(one: float, other: float, less: bool) -> None:
    assert clearly_less(one, other, 0.01) == less


@given(st.lists(st.floats(0.0, 10.0), min_size=27, max_size=27), st.integers(0, 26))
def test_no_single_and_no_pool_move_is_left_that_pays(scores: list[float], start: int) -> None:
    choices = ["".join(choice) for choice in product(ARMS, repeat=3)]
    score_of = dict(zip(choices, scores, strict=True))
    found, asked = searched(lambda arm_of: score_of["".join(arm_of.values())], choices[start])
    assert len(asked) == len(set(asked)), "each is scored once"
    assert found <= score_of[choices[start]]
    assert found * (1.0 - 1e-9) <= min(score_of[choice] for choice in asked)
