"""Costs by depth: what is looked up is what was put in, also from a profile's arms."""

from __future__ import annotations

import pytest

from selector.core.depthtable import DepthTable
from selector.errors import DomainError
from tests.profiles import sparse_profile

LINE = (0.0, 5.0, 0.001, 2.5, 0.0005)
LATER = (1_000.0, 6.0, 0.002, 3.0, 0.001)


def test_a_step_lies_on_the_line_of_its_context() -> None:
    table = DepthTable({0: [[LINE, LATER]]})
    assert table.step(0, 1, 0.0) == (5.0, 2.5)
    assert table.step(0, 1, 500.0) == (5.5, 2.75)
    assert table.step(0, 1, 1_000.0) == (6.0, 3.0)
    assert table.step(0, 1, 1_500.0) == (7.0, 3.5)


def test_beyond_the_last_batch_the_last_two_rows_go_on() -> None:
    table = DepthTable({1: [[(0.0, 5.0, 0.0, 2.0, 0.0)], [(0.0, 5.5, 0.0, 2.25, 0.0)]]})
    assert table.step(1, 4, 100.0) == (6.5, 2.75)


def test_one_batch_alone_goes_on_in_proportion() -> None:
    assert DepthTable({1: [[(0.0, 5.0, 0.0, 2.0, 0.0)]]}).step(1, 3, 0.0) == (15.0, 6.0)


def test_an_arm_of_a_profile_costs_in_the_table_what_it_costs_in_the_profile() -> None:
    step = sparse_profile().cost("eagle3-k3").step
    table = DepthTable({3: [step.lines(batch) for batch in range(1, 66)]})
    for batch in (1, 5, 33, 64, 90):
        for context in (0.0, 700.0, 2_500.0, 20_000.0):
            assert table.step(3, batch, context) == pytest.approx(step.step(batch, context))


def test_points_say_tbt_and_energy_per_token() -> None:
    (point,) = DepthTable({1: [[LINE], [LINE]]}).points(2, 0.0, [1.0, 1.6], [1.0, 1.25])
    assert (point.depth, point.accept_length) == (1, 1.6)
    assert point.tbt_ms == pytest.approx(5.0 / 1.25)
    assert point.j_per_accepted_token == pytest.approx(2.5 / (2 * 1.6))


def test_some_depths_alone() -> None:
    table = DepthTable({0: [[LINE]], 1: [[LINE]], 3: [[LINE]]})
    assert table.only((3, 0, 7)).depths == (0, 3)
    with pytest.raises(DomainError):
        table.only((5, 7))


@pytest.mark.parametrize(
    "rows",
    [
        {},
        {-1: [[LINE]]},
        {0: []},
        {0: [[LINE]], 1: [[LINE], [LINE]]},
        {0: [[]]},
        {0: [[LATER]]},
        {0: [[LINE, LINE]]},
    ],
)
def test_what_is_no_table_is_refused(rows: dict[int, list[list[tuple[float, float, float, float, float]]]]) -> None:
    with pytest.raises(DomainError):
        DepthTable(rows)
