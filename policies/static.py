"""One arm for everything, least loaded backend first: how most fleets run today.

Every server has the same speculation flags, chosen once from a benchmark; a load balancer spreads the requests. Right
when the text and the load are the ones of that benchmark; wrong when either moves, and it spreads requests over all
backends where a few full ones would need less energy.

`static:eagle3-k1` names the arm. If its backends are all down or unable to serve a request, the request goes to the
least loaded backend of another arm rather than nowhere, and the reason says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from selector.core.leastloaded import least_loaded_on, require_arm
from selector.core.policy import PolicyContext
from selector.core.types import Decision, FleetView, Outcome, RequestView


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """`arm` serves every request that it can."""

    ARGUMENT: ClassVar[str] = "arm"
    arm: str = "none"


class Static:
    """See the module."""

    def __init__(self, arm: str, context: PolicyContext) -> None:
        self._arms = (arm,)
        self._context = context

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """The arm's least loaded backend."""
        return least_loaded_on(self._arms, request, fleet, self._context)

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""


def make_policy(params: Params, context: PolicyContext) -> Static:
    """Raises `PolicyError` for an arm that no backend runs."""
    return Static(require_arm(params.arm, "policy static: arm", context), context)
