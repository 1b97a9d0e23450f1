"""The verdict of the planner's table says what its module says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

from _planner_bound import steady_bound
from _planner_verdict import compared, passes, worse_because


def result(j: float, attainment: float = 0.95, ttft_p99_ms: float = 100.0, lost: int = 0) -> dict[str, Any]:
    return {"j": j, "decode_j": j / 2, "attainment": {"code": attainment}, "ttft_p99_ms": ttft_p99_ms, "lost": lost}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (result(1.0), ""),
        (result(1.0, attainment=0.941), ""),
        (result(1.0, attainment=0.939), "attains 94% of code, not 95%"),
        (result(1.0, ttft_p99_ms=109.0), ""),
        (result(1.0, ttft_p99_ms=111.0), "TTFT p99 111 ms, not 100 ms"),
        (result(1.0, lost=1), "loses 1 requests"),
    ],
)
def test_what_is_worse_service(other: dict[str, Any], words: str) -> None:
    assert worse_because(other, result(1.0)) == words


def test_who_serves_worse_does_not_compete_but_is_told() -> None:
    found = compared(result(1.0), {"queues": result(0.5, ttft_p99_ms=9e3), "fair": result(0.99)})
    assert (found["best"], found["ratio"]) == ("fair", pytest.approx(1 / 0.99))
    assert (found["cheapest"], found["cheapest_ratio"]) == ("queues", 2.0)
    assert found["cheapest_fails"].startswith("TTFT")
    assert passes(found)
    assert not passes(compared(result(1.0), {"fair": result(0.97)}))


def test_better_service_for_no_more_is_a_miss_at_any_ratio() -> None:
    found = compared(result(1.0, attainment=0.90), {"better": result(1.0, attainment=0.95)})
    assert found["better_served_by"] == ["better"]
    assert not passes(found)


def test_the_bound_falls_with_the_clients_that_share_steps_and_idle_power() -> None:
    bounds = [steady_bound({"load": clients, "gpus": 4, "mix": "code"}) for clients in (1, 4, 16, 64)]
    assert bounds == sorted(bounds, reverse=True)
    assert steady_bound({"load": 16, "gpus": 8, "mix": "code"}) > bounds[2], "more idle GPUs"
