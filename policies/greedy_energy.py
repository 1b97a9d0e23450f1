"""Smallest marginal joules per accepted token, one request at a time: the obvious rule, and a trap.

The first request of a backend pays for the weight reads that all later ones share, so another request on a busy backend
always looks cheaper than opening an idle one. At an empty fleet the drafter that verifies most wins; from then on it
keeps winning until it is full, although at that load it is the worst arm of all. Right for one or two requests; shipped
to be compared with. A rule that avoids the trap must plan for the load instead of looking one request ahead.
"""

from __future__ import annotations

from dataclasses import dataclass

from selector.core.forecast import Forecast, least_violation
from selector.core.leastloaded import REFUSAL
from selector.core.policy import PolicyContext
from selector.core.types import Decision, FleetView, Outcome, RequestView


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """None."""


class GreedyEnergy:
    """See the module."""

    def __init__(self, context: PolicyContext) -> None:
        self._forecast = Forecast(context)

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """The feasible backend with the smallest marginal energy; the first in the fleet's order of equals."""
        predictions = self._forecast.predictions(request, fleet)
        if not predictions:
            return REFUSAL
        feasible = [found for found in predictions if found.feasible]
        if feasible:
            best = min(feasible, key=lambda found: found.marginal_j_per_accepted_token)
            reason = f"least marginal energy: {best.marginal_j_per_accepted_token:.3f} J/token"
        else:
            best, reason = least_violation(request, predictions)
        return self._forecast.decision(request, fleet, best, lambda: predictions, reason)

    def observe(self, outcome: Outcome) -> None:
        """The acceptance model learns; the rule does not."""


def make_policy(params: Params, context: PolicyContext) -> GreedyEnergy:
    """Never fails."""
    return GreedyEnergy(context)
