"""How often requests missed their targets lately: what a plan's margins are worth."""

from __future__ import annotations

from selector.core.types import Outcome

_REQUESTS = 50.0
"""Memory, in requests with a target."""


class MissRate:
    """Share of the requests that ended and had a target that missed it; older ones fade."""

    __slots__ = ("_doubt", "frac")

    def __init__(self, expected_frac: float) -> None:
        """`expected_frac` is what is to be expected before anything is known."""
        self.frac = 0.0
        """Of those that are known."""
        self._doubt = expected_frac

    @property
    def doubted_frac(self) -> float:
        """The share with what was expected at first, which counts less with each that is known."""
        return self.frac + self._doubt

    def ended(self, outcome: Outcome) -> None:
        """A request ended. Those without a target, or without a time between tokens, tell nothing."""
        if (within := outcome.within_target) is not None:
            self.frac += ((not within) - self.frac) / _REQUESTS
            self._doubt -= self._doubt / _REQUESTS
