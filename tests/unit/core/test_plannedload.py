"""Whether a load has moved from the one that was planned for."""

from __future__ import annotations

import pytest

from selector.core.plannedload import PlannedLoad
from selector.core.poolload import Demand
from tests.demands import demand
from tests.fleets import specs_of


def times(factor: float, *demands_of: tuple[str, float]) -> list[Demand]:
    return [demand(text_type, factor * per_s) for text_type, per_s in demands_of or (("code", 3.0), ("romansh", 1.0))]


BEFORE = PlannedLoad(times(1.0), None, {("none", "code"): 1.0, ("dspark-8", "code"): 4.0})


@pytest.mark.parametrize(("factor", "moved"), [(1.0, False), (1.19, False), (1.21, True), (0.81, False), (0.79, True)])
def test_it_has_moved_when_the_rates_differ_by_the_share(factor: float, moved: bool) -> None:
    assert PlannedLoad(times(factor), None).moved_from(BEFORE, 0.2) is moved


def test_what_goes_and_what_comes_count_both() -> None:
    """A tenth of the load each: one is within the share, both are beyond it."""
    gone = PlannedLoad(times(1.0, ("code", 3.6), ("romansh", 0.4)), None)
    before = PlannedLoad(times(1.0, ("code", 3.6), ("news", 0.4)), None)
    assert gone.moved_from(before, 0.19)
    assert not gone.moved_from(before, 0.21)
    assert not PlannedLoad(times(1.0, ("code", 3.6)), None).moved_from(before, 0.19)


@pytest.mark.parametrize(("length", "moved"), [(4.0, False), (4.39, False), (4.41, True), (3.59, True)])
def test_an_estimate_counts_twice(length: float, moved: bool) -> None:
    estimates = {("dspark-8", "code"): length, ("dspark-8", "math"): 9.0}
    assert PlannedLoad(times(1.0), None, estimates).moved_from(BEFORE, 0.2) is moved


def test_of_clients_that_wait_the_number_and_the_shares_count_and_the_rates_do_not() -> None:
    before = PlannedLoad(times(1.0), 16.0)
    assert not PlannedLoad(times(5.0), 16.0).moved_from(before, 0.2)
    assert not PlannedLoad(times(1.0), 19.0).moved_from(before, 0.2)
    assert PlannedLoad(times(1.0), 20.0).moved_from(before, 0.2)
    assert PlannedLoad(times(1.0), 12.0).moved_from(before, 0.2)
    assert PlannedLoad(times(5.0, ("code", 2.0), ("romansh", 2.0)), 16.0).moved_from(before, 0.2)


def test_it_has_moved_when_clients_begin_to_wait_or_do_no_longer() -> None:
    waiting = PlannedLoad(times(1.0), 16.0)
    assert waiting.moved_from(BEFORE, 0.2)
    assert BEFORE.moved_from(waiting, 0.2)


def test_its_answers_and_prefills_are_those_of_all_requests() -> None:
    load = PlannedLoad([demand("code", 3.0, output=100.0), demand("news", 1.0, output=500.0)], None)
    assert load.output_tokens == pytest.approx(200.0)
    prefill = specs_of("none")[0].cost.prefill
    assert load.prefill_frac(prefill) == pytest.approx(4.0 * prefill.mean_stall(500.0)[0] / 1e3)
    assert PlannedLoad([], None).output_tokens == 1.0
