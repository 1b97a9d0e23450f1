"""Comparing two policies: paired differences, their intervals, and the rule of "no worse"."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selector.simulator.compare import Comparison, Difference, SeedRun, compare
from selector.simulator.intervals import FEW, bootstrap95, interval95, method_words, student95
from selector.simulator.report import PolicyResult


def run(policy: str = "a", ids: str | None = "rstu", **given: object) -> SeedRun:
    values: dict[str, object] = {
        "policy": policy, "policy_sha256": "0", "requests": 4, "requests_rejected": 0, "requests_dropped": 0,
        "accepted_tokens": 100, "energy_j": 50.0, "decode_j": 30.0, "prefill_j": 10.0, "idle_j": 10.0,
        "j_per_accepted_token": 0.5, "decode_j_per_accepted_token": 0.3, "tbt_attainment": 0.9, "tbt_p50_ms": 5.0,
        "tbt_p99_ms": 9.0, "ttft_p50_ms": 20.0, "ttft_p99_ms": 100.0, "mean_power_w": 10.0, "duration_s": 5.0,
        "extrapolated_energy_frac": 0.0, "attainment_by_text_type": {"code": 0.95, "romansh": 0.85},
        "attainment_by_class": {"chat": 0.9}, "decisions_by_arm": {"none": 4}, "retractions": 0, "wall_s": 1.0,
        "simulated_requests_per_s": 4.0,
    }  # fmt: skip
    return SeedRun(
        result=PolicyResult.model_validate(values | given), completed=None if ids is None else frozenset(ids)
    )


def against(b: SeedRun, a: SeedRun | None = None) -> Comparison:
    return compare([a or run()], [b])


def difference(comparison: Comparison, metric: str) -> Difference:
    (found,) = (each for each in comparison.differences if each.metric == metric)
    return found


# ---- the rule


def test_equal_runs_are_no_worse() -> None:
    same = against(run("b"))
    assert (same.no_worse, same.worse_in, same.seeds_no_worse) == (True, (), 1)
    assert same.verdict == "b is no worse than a; both use the same energy per accepted token."


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"attainment_by_text_type": {"code": 0.95, "romansh": 0.839}}, "text type romansh is 1.1 points lower"),
        ({"attainment_by_class": {"chat": 0.88}}, "class chat is 2.0 points lower"),
        ({"ttft_p99_ms": 111.0}, "TTFT p99 is 111 ms, more than 10% above 100"),
        ({"ids": "rst"}, "requests that only a completes: 1"),
        ({"ids": "rstv"}, "requests that only a completes: 1"),
        ({"ids": None, "requests": 2}, "requests that only a completes: 2"),
    ],
)
def test_each_way_of_being_worse_is_named(given: dict[str, object], words: str) -> None:
    worse = against(run("b", **given))  # type: ignore[arg-type]  # `ids` among the results' keys
    assert not worse.no_worse
    assert len(worse.worse_in) == 1 and words in worse.worse_in[0]
    assert worse.verdict.startswith("b is worse than a: ") and words in worse.verdict


@pytest.mark.parametrize(
    "given",
    [
        {"attainment_by_text_type": {"code": 0.945, "romansh": 0.841}},
        {"ttft_p99_ms": 109.9},
        {"ttft_p50_ms": 500.0, "tbt_p99_ms": 90.0},
        {"ids": "rstuv"},
        {"tbt_attainment": None, "attainment_by_text_type": {}, "attainment_by_class": {}},
    ],
)
def test_what_the_rule_allows_is_no_worse(given: dict[str, object]) -> None:
    assert against(run("b", **given)).no_worse  # type: ignore[arg-type]  # as above


def test_the_rule_is_about_means_and_seeds_alone_are_counted() -> None:
    down, up = {"chat": 0.85}, {"chat": 0.95}
    mixed = compare([run(), run()], [run("b", attainment_by_class=down), run("b", attainment_by_class=up)])
    assert (mixed.no_worse, mixed.seeds_no_worse) == (True, 1)


# ---- differences and verdicts


def test_differences_are_second_minus_first_and_paired() -> None:
    a = [run(j_per_accepted_token=value) for value in (1.0, 2.0, 4.0)]
    b = [run("b", j_per_accepted_token=value) for value in (0.9, 1.9, 4.1)]
    energy = difference(compare(a, b), "j_per_accepted_token")
    assert (energy.a, energy.b) == (pytest.approx(7 / 3), pytest.approx(6.9 / 3))
    assert energy.difference == pytest.approx(-0.1 / 3)
    assert energy.relative_difference == pytest.approx((-0.1 - 0.05 + 0.025) / 3)
    assert (energy.b_better, energy.equal, energy.seeds) == (2, 0, 3)
    assert energy.interval is not None and energy.interval.low < energy.difference < energy.interval.high
    more = difference(compare(a, b), "requests")
    assert (more.b_better, more.equal) == (0, 3)


def test_a_metric_that_one_policy_lacks_in_a_seed_leaves_that_seed_out() -> None:
    a = [run(tbt_p99_ms=None), run(tbt_p99_ms=8.0)]
    assert difference(compare(a, [run("b"), run("b")]), "tbt_p99_ms").seeds == 1
    none = compare([run(tbt_attainment=None)], [run("b")])
    assert "tbt_attainment" not in {each.metric for each in none.differences}


def test_verdicts_say_what_the_seeds_show() -> None:
    a = [run() for _ in range(5)]

    def verdict(*joules: float) -> str:
        return compare(a, [run("b", j_per_accepted_token=value) for value in joules]).verdict

    assert "it uses 10.0% less energy" in verdict(0.45, 0.451, 0.449, 0.45, 0.45)
    assert "less in 5 of 5 seeds" in verdict(0.45, 0.451, 0.449, 0.45, 0.45)
    assert "it uses 10.0% more energy" in verdict(0.55, 0.551, 0.549, 0.55, 0.55)
    assert "5 seeds do not tell their energy per accepted token apart (+0.0%" in verdict(0.4, 0.6, 0.5, 0.45, 0.55)
    assert compare(a[:1], [run("b", j_per_accepted_token=0.4)]).verdict.endswith(
        "it uses 20.0% less energy per accepted token (one seed)."
    )


def test_runs_must_pair_up() -> None:
    with pytest.raises(ValueError, match="zip"):
        compare([run()], [run("b"), run("b")])


# ---- intervals

values = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30)


def test_student_s_interval_is_the_tabled_one() -> None:
    # Ten values, mean 5.5, s 3.0277; t(0.975, 9) = 2.2622 in any table.
    found = student95([float(n) for n in range(1, 11)])
    assert (found.low, found.high) == (pytest.approx(5.5 - 2.1659, abs=1e-3), pytest.approx(5.5 + 2.1659, abs=1e-3))


@given(values)
def test_an_interval_holds_the_mean_and_both_methods_when_values_are_few(values: list[float]) -> None:
    found, slack = interval95(values), 1e-9 * (1.0 + max(map(abs, values)))
    assert found is not None
    assert found.low <= np.mean(values) + slack and np.mean(values) - slack <= found.high
    assert found == interval95(values), "the same values give the same interval"
    student, resampled = student95(values), bootstrap95(values)
    if len(values) < FEW:
        assert (found.low, found.high) == (min(student.low, resampled.low), max(student.high, resampled.high))
    else:
        assert found == student


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(5)
    covered = 0
    for _ in range(300):
        found = interval95(generator.normal(1.0, 2.0, 8).tolist())
        assert found is not None
        covered += found.low <= 1.0 <= found.high
    assert 0.92 <= covered / 300 <= 0.99


def test_one_value_has_no_interval_and_the_method_is_named() -> None:
    assert interval95([1.0]) is None
    assert "bootstrap" in method_words(5) and "bootstrap" not in method_words(FEW) and "none" in method_words(1)
