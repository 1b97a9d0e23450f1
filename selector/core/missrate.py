"""How often requests missed their targets lately: what a plan's margins are worth."""

from __future__ import annotations

from selector.core.types import Outcome

_REQUESTS = 50.0
"""Memory, in requests with a target."""


class MissRate:
    """Share of the requests that ended and had a target that missed it; older ones fade."""

    __slots__ = ("frac",)

    def __init__(self) -> None:
        self.frac = 0.0

    def ended(self, outcome: Outcome) -> None:
        """A request ended. Those without a target, or without a time between tokens, tell nothing."""
        if (within := outcome.within_target) is not None:
            self.frac += ((not within) - self.frac) / _REQUESTS
