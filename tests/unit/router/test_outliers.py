"""Backends that do much worse than their peers are left out, never too many of them and never for good."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selector.files.faults import Faults
from selector.router.outliers import Outliers

OPTIONS = Faults(
    outlier_min_requests=10,
    outlier_error_frac=0.3,
    outlier_slowness=3.0,
    outlier_eject_s=10.0,
    outlier_eject_max_s=40.0,
    outlier_half_life_s=30.0,
    outlier_max_ejected_frac=0.5,
)


def judged(failed: Mapping[str, int], *, of: int = 20, options: Faults = OPTIONS) -> Outliers:
    """So many of the requests of each backend failed; judged once."""
    outliers = Outliers(failed, options)
    for name, count in failed.items():
        for number in range(of):
            outliers.answered(name, ok=number >= count)
    outliers.judge(0.0, list(failed))
    return outliers


def out(outliers: Outliers, names: str) -> str:
    return "".join(name for name in names if outliers.reason(name) is not None)


def test_one_whose_requests_fail_is_ejected_and_comes_back() -> None:
    outliers = judged({"a": 14, "b": 1, "c": 0})
    assert out(outliers, "abc") == "a"
    assert outliers.reason("a") == "ejected as an outlier for 10 s: 70% of its requests fail, of its peers' 2%"
    assert outliers.counts == {"a": 1, "b": 0, "c": 0}
    assert outliers.judge(9.9, "abc") == []
    assert outliers.judge(10.0, "abc") == ["a"]
    assert out(outliers, "abc") == ""
    assert outliers.judge(11.0, "abc") == []  # what it did before is not held against it


@pytest.mark.parametrize("failed", [{"a": 20, "b": 20}, {"a": 20, "b": 16}, {"a": 5, "b": 0}, {"a": 20}])
def test_what_all_do_and_what_is_little_worse_ejects_nobody(failed: dict[str, int]) -> None:
    assert out(judged(failed), "".join(failed)) == ""


def test_few_requests_prove_nothing() -> None:
    assert out(judged({"a": 9, "b": 0}, of=9), "ab") == ""


def test_one_that_is_slow_for_its_load_is_ejected_whatever_its_arm() -> None:
    outliers = Outliers("abc", OPTIONS)
    for _ in range(20):
        outliers.stepped("a", made=100, modelled=390)
        outliers.stepped("b", made=100, modelled=110)
        outliers.stepped("c", made=20, modelled=24)
    assert outliers.judge(0.0, "abc") == ["a"]
    assert "3.5 times as long" in (outliers.reason("a") or "")


def test_a_profile_that_is_wrong_for_all_ejects_nobody() -> None:
    outliers = Outliers("abc", OPTIONS)
    for name in "abc":
        for _ in range(20):
            outliers.stepped(name, made=10, modelled=100)
    assert outliers.judge(0.0, "abc") == []


def test_the_worst_go_first_and_only_a_share_of_the_fleet() -> None:
    outliers = judged({"a": 12, "b": 20, "c": 16, "d": 0, "e": 0})
    assert out(outliers, "abcde") == "bc"
    assert (
        out(judged({"a": 20, "b": 0}, options=OPTIONS.model_copy(update={"outlier_max_ejected_frac": 0})), "ab") == ""
    )
    assert out(judged({"a": 20, "b": 0}), "ab") == "a"


def test_the_share_is_of_those_that_would_serve() -> None:
    failed = {"a": 20, "b": 18, "c": 0, "d": 0}
    outliers = Outliers(failed, OPTIONS)
    for name, count in failed.items():
        for number in range(20):
            outliers.answered(name, ok=number >= count)
    outliers.judge(0.0, "abc")  # d is down
    assert out(outliers, "abcd") == "a"


def test_when_nobody_else_is_left_the_ejected_serve() -> None:
    outliers = judged({"a": 20, "b": 0})
    assert outliers.judge(1.0, ["a"]) == ["a"]
    assert out(outliers, "ab") == ""


def test_ejected_again_soon_it_stays_out_for_longer() -> None:
    outliers, now_s = Outliers("ab", OPTIONS), 0.0
    for lasts_s in (10.0, 20.0, 40.0, 40.0):
        for _ in range(20):
            outliers.answered("a", ok=False)
            outliers.answered("b", ok=True)
        outliers.judge(now_s, "ab")
        assert out(outliers, "ab") == "a"
        outliers.judge(now_s + 0.99 * lasts_s, "ab")
        assert out(outliers, "ab") == "a"
        now_s += lasts_s
        assert outliers.judge(now_s, "ab") == ["a"]
    now_s += 40.0
    outliers.judge(now_s, "ab")
    for _ in range(20):
        outliers.answered("a", ok=False)
        outliers.answered("b", ok=True)
    outliers.judge(now_s, "ab")
    assert outliers.judge(now_s + 10.0, "ab") == ["a"]


def test_old_evidence_fades() -> None:
    outliers = Outliers("ab", OPTIONS)
    for _ in range(12):
        outliers.answered("a", ok=False)
        outliers.answered("b", ok=True)
    outliers.judge(0.0, ["b"])  # nobody to compare with yet
    assert outliers.judge(30.0, "ab") == []  # 6 requests each are left


@given(
    st.lists(
        st.tuples(st.sampled_from("abcde"), st.booleans(), st.floats(0, 20), st.sets(st.sampled_from("abcde"))),
        max_size=60,
    ),
    st.floats(0, 1),
)
def test_never_more_than_the_share_are_newly_out_and_never_all(
    steps: list[tuple[str, bool, float, set[str]]], share: float
) -> None:
    options = OPTIONS.model_copy(update={"outlier_min_requests": 1, "outlier_max_ejected_frac": share})
    outliers, now_s = Outliers("abcde", options), 0.0
    for name, ok, passed_s, serving in steps:
        now_s += passed_s
        outliers.answered(name, ok=ok)
        before = out(outliers, "abcde")
        changed = outliers.judge(now_s, sorted(serving))
        after = out(outliers, "abcde")
        assert set(changed) == set(before) ^ set(after)
        gone = [each for each in serving if each in after]
        if set(after) - set(before):
            assert len(gone) <= share * len(serving)
        assert not serving or len(gone) < len(serving)
