"""A change counts the more the less chance explains it."""

from __future__ import annotations

import pytest

from selector.core.chance import believed_frac, beyond_frac


@pytest.mark.parametrize("half_at", [0.5, 1.0, 4.0])
def test_a_change_of_so_many_deviations_counts_half(half_at: float) -> None:
    assert believed_frac(half_at**2, half_at=half_at) == pytest.approx(0.5)
    assert believed_frac(0.0, half_at=half_at) == 0.0
    assert believed_frac((100.0 * half_at) ** 2, half_at=half_at) == pytest.approx(1.0, abs=1e-3)


def test_more_deviations_are_needed_where_more_count_half() -> None:
    assert believed_frac(4.0, half_at=1.0) == pytest.approx(0.8)
    assert believed_frac(4.0, half_at=4.0) == pytest.approx(0.2)


def test_what_is_within_one_deviation_counts_nothing_and_the_rest_as_far_as_it_is_beyond() -> None:
    assert [beyond_frac(z) for z in (0.0, 0.5, -1.0)] == [0.0, 0.0, 0.0]
    assert [z * beyond_frac(z) for z in (1.5, -4.0)] == [pytest.approx(0.5), pytest.approx(-3.0)]
