"""How fast the host's processors were while a cell ran: small steps of an engine wait for them.

Run alone it prints a line every half second until it is told to end: milliseconds of time and of processor time that
a loop of fixed work took. Where time alone grows the process waited for a processor; where both grow the processor
itself was slower, by its clock or by a neighbour on the same core.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from statistics import median, quantiles

_EVERY_S = 0.5
_LOOPS = 40_000
"""Some 2 ms."""


class HostSpeed:
    """An asynchronous context in which the loop runs beside a cell, in a process of its own."""

    def __init__(self) -> None:
        self._printed = b""

    async def __aenter__(self) -> HostSpeed:
        self._process = await asyncio.create_subprocess_exec(sys.executable, __file__, stdout=asyncio.subprocess.PIPE)
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            self._process.terminate()
        self._printed, _ = await self._process.communicate()

    def summary(self) -> dict[str, float] | None:
        """Medians and the slowest tenth, once it has ended; `None` for less than two loops."""
        return summary_of(self._printed.decode("ascii"))


def summary_of(printed: str) -> dict[str, float] | None:
    """Of the lines that the loop prints: milliseconds."""
    lines = [line.split() for line in printed.split("\n")[:-1]]
    if len(lines) < 2:
        return None
    wall_ms, cpu_ms = ([float(words[column]) for words in lines] for column in (0, 1))
    return {
        "loop_ms": round(median(wall_ms), 3),
        "loop_cpu_ms": round(median(cpu_ms), 3),
        "loop_p90_ms": round(quantiles(wall_ms, n=10)[-1], 3),
    }


def _loop() -> tuple[float, float]:
    """Milliseconds of time and of processor time that the work took."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    total = 0
    for number in range(_LOOPS):
        total += number
    return 1e3 * (time.perf_counter() - wall_s), 1e3 * (time.process_time() - cpu_s)


if __name__ == "__main__":
    while True:
        print("{:.3f} {:.3f}".format(*_loop()), flush=True)
        time.sleep(_EVERY_S)
