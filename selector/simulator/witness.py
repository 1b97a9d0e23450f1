"""Keeps some of a policy's decisions, so that a report can explain them."""

from __future__ import annotations

from selector.core.policy import Policy
from selector.core.types import Decision, FleetView, Outcome, RequestView


class Witness:
    """Passes everything on to a policy and keeps every `stride`-th decision by request id."""

    def __init__(self, policy: Policy, *, stride: int) -> None:
        self.kept: dict[str, Decision] = {}
        self._policy = policy
        self._stride = stride
        self._seen = 0

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """The policy's decision."""
        decision = self._policy.decide(request, fleet)
        if self._seen % self._stride == 0:
            decision = self.kept[request.request_id] = decision.explained()
        self._seen += 1
        return decision

    def observe(self, outcome: Outcome) -> None:
        """Told to the policy."""
        self._policy.observe(outcome)
