"""How busy a host's processors were, read off its counters."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench" / "live"))
from hostcpu import CpuTimes, cpu_times, shares


def test_the_first_line_counts_and_guests_are_not_counted_twice(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 20 30 800 50 1 2 7 90 10\ncpu0 1 1 1 1 1 1 1 1 1 1\n", encoding="ascii")
    quota = tmp_path / "cpu.stat"
    assert cpu_times(stat, quota) == CpuTimes(busy=153, stolen=7, total=1010)
    quota.write_text("usage_usec 9\nnr_throttled 3\nthrottled_usec 4500000\n", encoding="ascii")
    assert cpu_times(stat, quota) == CpuTimes(busy=153, stolen=7, total=1010, throttled_us=4_500_000)
    quota.write_text("usage_usec 9\n", encoding="ascii")
    assert cpu_times(stat, quota) == CpuTimes(busy=153, stolen=7, total=1010)


def test_shares_are_of_what_passed_in_between() -> None:
    before, after = CpuTimes(100, 10, 1_000), CpuTimes(400, 60, 2_000)
    assert shares(before, after) == {"busy_frac": 0.3, "stolen_frac": 0.05}
    waited = shares(before._replace(throttled_us=1_000_000), after._replace(throttled_us=3_500_000))
    assert waited == {"busy_frac": 0.3, "stolen_frac": 0.05, "throttled_s": 2.5}


@pytest.mark.parametrize("after", [None, CpuTimes(100, 10, 1_000)])
def test_nothing_is_told_of_no_time(after: CpuTimes | None) -> None:
    assert shares(CpuTimes(100, 10, 1_000), after) is None


def test_a_machine_without_the_counters_tells_nothing(tmp_path: Path) -> None:
    assert cpu_times(tmp_path / "stat") is None
