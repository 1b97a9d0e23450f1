"""What must hold of an estimated rate for any arrivals."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from selector.core.ratetrend import RateTrend

gaps_s = st.one_of(st.just(0.0), st.floats(0.0, 1e-9), st.floats(0.0, 10.0), st.floats(0.0, 1e9))


@given(
    gaps=st.lists(gaps_s, max_size=60),
    window_s=st.floats(1e-3, 1e9),
    dispersion=st.floats(1.0, 1e6),
    restarted=st.none() | st.tuples(st.floats(0.0, 10.0), st.floats(0.0, 1e6)),
)
def test_a_rate_is_a_number_from_nothing_to_three_times_the_mean(
    gaps: list[float], window_s: float, dispersion: float, restarted: tuple[float, float] | None
) -> None:
    found, now_s, counted, since_s = RateTrend(0.0, window_s=window_s), 0.0, 0.0, 0.0
    if restarted is not None:
        age_s, per_s = restarted
        found.restart(0.0, age_s=age_s, per_s=per_s)
        since_s, counted = -age_s, per_s * window_s * -math.expm1(-age_s / window_s)
    for gap_s in gaps:
        now_s += gap_s
        counted = counted * math.exp(-min(gap_s / window_s, 800.0)) + 1.0
        found.arrived(now_s)
        trend = found.trend(now_s, dispersion)
        mean = counted / (window_s * -math.expm1(-max(now_s - since_s, 1.0) / window_s))
        assert 0.0 <= trend.per_s <= 3.0 * mean * (1.0 + 1e-9)
        assert math.isfinite(trend.per_s_per_s)
        assert 0.0 <= trend.before(5.0) < math.inf
