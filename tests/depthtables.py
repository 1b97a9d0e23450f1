"""Made-up costs by depth, for the tests of whatever chooses one."""

from __future__ import annotations

from dataclasses import replace

from selector.core.depthsurvival import SlowRequests, geometric_survivals
from selector.core.depthtable import DepthTable
from selector.core.scheduleaim import Aim


def straight_table(
    depths: tuple[int, ...] = (0, 1, 3),
    *,
    batches: int = 64,
    ms: float = 5.0,
    ms_per_depth: float = 0.6,
    j: float = 2.5,
    j_per_depth: float = 0.3,
    ms_per_request: float = 0.04,
    j_per_request: float = 0.05,
) -> DepthTable:
    """Steps that cost a fixed part, a part per drafted token and one per request × verified token; no context."""

    def line(depth: int, batch: int) -> tuple[float, float, float, float, float]:
        verified = batch * (depth + 1)
        return (
            0.0,
            ms + ms_per_depth * depth + ms_per_request * verified,
            0.0,
            j + j_per_depth * depth + j_per_request * verified,
            0.0,
        )

    return DepthTable({depth: [[line(depth, batch)] for batch in range(1, batches + 1)] for depth in depths})


CURVE = geometric_survivals(0.8, 3)
"""Of the aims below."""
CLOSED_AIM = Aim(
    table=straight_table(),
    survivals=CURVE,
    slow=SlowRequests.at(0.5),
    context_tokens=0.0,
    target_ms=None,
    band_frac=0.0,
    idle_w=100.0,
)
OPEN_AIM = replace(CLOSED_AIM, open_load=True)
