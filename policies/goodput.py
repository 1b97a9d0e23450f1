"""Most accepted tokens per second: the objective of SmartSpec and TurboSpec, applied to the choice of backend.

The request goes where it raises the fleet's accepted tokens per second most, among the backends that keep every target.
Right when throughput is all that counts; it spreads requests over idle backends, which costs the most energy.
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


class Goodput:
    """See the module."""

    def __init__(self, context: PolicyContext) -> None:
        self._forecast = Forecast(context)

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """The feasible backend with the largest marginal goodput; the first in the fleet's order of equals."""
        predictions = self._forecast.predictions(request, fleet)
        if not predictions:
            return REFUSAL
        feasible = [found for found in predictions if found.feasible]
        if feasible:
            best = max(feasible, key=lambda found: found.marginal_tokens_per_s)
            reason = f"most goodput: {best.marginal_tokens_per_s:+.0f} tokens/s"
        else:
            best, reason = least_violation(request, predictions)
        return self._forecast.decision(request, fleet, best, lambda: predictions, reason)

    def observe(self, outcome: Outcome) -> None:
        """The acceptance model learns; the rule does not."""


def make_policy(params: Params, context: PolicyContext) -> Goodput:
    """Never fails."""
    return Goodput(context)
