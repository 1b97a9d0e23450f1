"""One arm, one backend filled before the next: the fixed choice that is hardest to beat on energy.

Consolidation, as cluster schedulers do it: the weights are read once per step for all requests of a batch, so a few
full backends need less energy than many half-empty ones. A backend is full when the next request would have no place,
miss its target or break one of those running there. Right on one kind of text; on mixed text one arm is wrong for some.

When all are full, the backend where the next request does least harm takes it. `pack:none` names the arm, which a
fleet with one arm does not need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from selector.core.forecast import Forecast, least_violation
from selector.core.leastloaded import least_loaded_on, requests_in_words, require_arm
from selector.core.policy import PolicyContext
from selector.core.types import Decision, FleetView, Outcome, RequestView
from selector.errors import PolicyError


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """`max_batch` bounds the requests on a backend below what targets and places allow."""

    ARGUMENT: ClassVar[str] = "arm"
    arm: str | None = None
    max_batch: int | None = None


class Pack:
    """See the module."""

    def __init__(self, arm: str, max_batch: int | None, context: PolicyContext) -> None:
        self._arm = arm
        self._max_batch = max_batch
        self._context = context
        self._forecast = Forecast(context)

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """The arm's first backend in the fleet's order that is not full."""
        predictions = self._forecast.predictions(request, fleet, arm=self._arm)
        if not predictions:
            return least_loaded_on((self._arm,), request, fleet, self._context)
        feasible = [found for found in predictions if found.feasible]
        filling = [found for found in feasible if self._max_batch is None or found.batch <= self._max_batch]
        if filling:
            best, reason = filling[0], f"filling it: request {filling[0].batch}"
        elif feasible:
            best = min(feasible, key=lambda found: found.batch)
            reason = f"all of {self._arm} at max_batch, least loaded: {requests_in_words(best.batch - 1)}"
        else:
            best, reason = least_violation(request, predictions)
        return self._forecast.decision(request, fleet, best, lambda: predictions, reason)

    def observe(self, outcome: Outcome) -> None:
        """The acceptance model learns; the rule does not."""


def make_policy(params: Params, context: PolicyContext) -> Pack:
    """Raises `PolicyError` for an arm that no backend runs, or several arms and none named."""
    arms = tuple(context.by_arm())
    if params.max_batch is not None and params.max_batch < 1:
        problem = f"is {params.max_batch}; must be ≥ 1"
        raise PolicyError("policy pack: max_batch", problem, "give a batch or leave it out")
    if params.arm is not None:
        return Pack(require_arm(params.arm, "policy pack: arm", context), params.max_batch, context)
    if len(arms) > 1:
        problem = f"is not given and the fleet has {len(arms)} arms"
        raise PolicyError("policy pack: arm", problem, f"choose one of {', '.join(arms)}, such as pack:{arms[0]}")
    return Pack(arms[0], params.max_batch, context)
