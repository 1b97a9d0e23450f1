"""A load as levels: what is asked for when it is quiet and when it is busy."""

from __future__ import annotations

import pytest

from selector.files.trace import TraceRequest
from selector.simulator.arrivals import ClosedLoop, OpenLoop
from selector.simulator.loadlevels import load_levels
from selector.simulator.run import WHOLE_RUN, SimulatedRequest, Window
from tests.profiles import sparse_profile

PROFILE = sparse_profile()


def requests(times_s: list[float], text_type: str = "code", target_ms: float | None = 20.0) -> list[SimulatedRequest]:
    return [
        SimulatedRequest(
            trace=TraceRequest(request_id=f"r{number}", arrival_s=at_s, prompt_tokens=600, output_tokens=200),
            text_type=text_type,
            slo_class="default",
            tbt_target_ms=target_ms,
        )
        for number, at_s in enumerate(times_s)
    ]


def test_quarters_of_the_time_from_quiet_to_busy() -> None:
    """One a second for ten minutes, four a second for the next five."""
    times = [float(second) for second in range(600)] + [600.0 + 0.25 * number for number in range(1_200)]
    levels = load_levels(OpenLoop(requests(times)), PROFILE, WHOLE_RUN)
    rates = [level.demands[0].requests_per_s for level in levels]
    assert rates == sorted(rates)
    assert rates[0] == pytest.approx(1.0, rel=0.05)
    assert rates[-1] == pytest.approx(4.0, rel=0.05)
    demand = levels[0].demands[0]
    assert (demand.key, demand.prompt_tokens, demand.output_tokens) == (("code", 20.0), 600.0, 200.0)
    assert all(level.population is None for level in levels)


def test_only_the_window_counts() -> None:
    times = [float(second) for second in range(100)]
    levels = load_levels(OpenLoop(requests(times)), PROFILE, Window(from_s=50.0, to_s=90.0))
    assert sum(level.demands[0].requests_per_s for level in levels) / len(levels) == pytest.approx(1.0, rel=0.1)
    assert load_levels(OpenLoop(requests(times)), PROFILE, Window(from_s=500.0)) == ()


def test_a_ramp_of_clients_has_populations() -> None:
    load = ClosedLoop(requests([0.0] * 50), [(0.0, 1), (100.0, 101), (200.0, 1)])
    levels = load_levels(load, PROFILE, Window(to_s=200.0))
    assert [level.population for level in levels] == pytest.approx([13.5, 38.5, 63.5, 88.5], abs=1.0)


def test_text_types_and_targets_are_demands_of_their_own() -> None:
    mixed = requests([0.0] * 4, "code") + requests([0.0] * 4, "romansh", None)
    (level,) = load_levels(ClosedLoop(mixed, [(0.0, 8)]), PROFILE, Window(to_s=10.0))[:1]
    assert {demand.key for demand in level.demands} == {("code", 20.0), ("romansh", None)}
