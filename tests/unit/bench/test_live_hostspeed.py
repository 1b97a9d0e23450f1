"""How fast a host's processors were while something ran."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "bench" / "live"))
from hostspeed import HostSpeed, summary_of


def test_medians_and_the_slowest_tenth_of_whole_lines() -> None:
    printed = "".join(f"{1 + number} {0.5}\n" for number in range(10)) + "99"
    assert summary_of(printed) == {"loop_ms": 5.5, "loop_cpu_ms": 0.5, "loop_p90_ms": 9.9}
    assert summary_of("1.0 1.0\n") is None


async def test_a_loop_runs_beside_and_ends_with_the_context() -> None:
    async with HostSpeed() as speed:
        await asyncio.sleep(1.7)
    told = speed.summary()
    assert told is not None
    assert 0 < told["loop_cpu_ms"] < 100
    assert told["loop_p90_ms"] >= told["loop_ms"] > 0
    assert speed._process.returncode is not None
