"""An event loop whose clock stands still while there is something to do, and jumps to the next timer when there is not.

Code that sleeps for minutes is tested in no time, over real sockets, and every instant it notes is exact: between two
timers no time passes at all.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_QUIET_S = 0.02
"""Real time without any event after which nothing is on its way any more: loopback delivers within microseconds."""

_Result = TypeVar("_Result")


class _SkippingSelector(selectors.DefaultSelector):
    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """The events that are there; without any, the loop's clock moves to the end of the timeout."""
        if timeout is None or timeout <= 0.0:
            return super().select(timeout)
        events = super().select(_QUIET_S)
        if not events:
            self.now_s += timeout
        return events


class SkippingLoop(asyncio.SelectorEventLoop):
    """See the module. `pass_s` is how a test makes the loop busy: time goes by and nothing else runs."""

    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now_s

    def pass_s(self, seconds: float) -> None:
        self._skipping.now_s += seconds


def run_skipping(main: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
    """Runs `main()` to its end on a fresh `SkippingLoop`, whose clock starts at 0."""
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        return runner.run(main())
