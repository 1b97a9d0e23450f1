"""Every backend in turn: the default of reverse proxies.

Right when requests and backends are alike; otherwise long requests pile up, and every text goes to every arm.
"""

from __future__ import annotations

from dataclasses import dataclass

from selector.core.eligibility import can_ever_serve
from selector.core.leastloaded import REFUSAL
from selector.core.policy import PolicyContext
from selector.core.types import Decision, FleetView, Outcome, RequestView


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """None."""


class RoundRobin:
    """See the module."""

    def __init__(self, context: PolicyContext) -> None:
        self._specs = context.backends
        self._next = 0

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """The next backend in the fleet's order that can serve the request; those passed over lose their turn."""
        count = len(self._specs)
        for step in range(count):
            index = (self._next + step) % count
            if fleet.backends[index].available and can_ever_serve(request, self._specs[index]):
                self._next = (index + 1) % count
                return Decision(backend=self._specs[index].name, reason=f"next in turn: {index + 1} of {count}")
        return REFUSAL

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""


def make_policy(params: Params, context: PolicyContext) -> RoundRobin:
    """Never fails."""
    return RoundRobin(context)
