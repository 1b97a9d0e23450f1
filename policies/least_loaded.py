"""The backend with the fewest requests, whatever its arm: what a load balancer does.

Right when all backends are alike and only latency counts; blind to what arms differ in. The default fallback of the
router, since it needs nothing but the counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from selector.core.leastloaded import least_loaded_on
from selector.core.policy import PolicyContext
from selector.core.types import Decision, FleetView, Outcome, RequestView


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """None."""


class LeastLoaded:
    """See the module."""

    def __init__(self, context: PolicyContext) -> None:
        self._context = context

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """The eligible backend with the fewest requests."""
        return least_loaded_on((), request, fleet, self._context)

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""


def make_policy(params: Params, context: PolicyContext) -> LeastLoaded:
    """Never fails."""
    return LeastLoaded(context)
