"""Each text type has its arm: pools by use case, as operators build them by hand ("code goes to the big drafter").

Unless `arms` says otherwise, a text type's arm is the one with the fewest joules per accepted token at a typical
load: step energy at `batch` requests of `context_tokens` over `batch` × the accept length that the profile expects.
Right near that load; wrong away from it, since the cheapest arm changes with the batch, and it never learns that a
drafter drifted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from selector.core.leastloaded import least_loaded_on, require_arm
from selector.core.policy import PolicyContext
from selector.core.types import TEXT_TYPES, UNKNOWN_TEXT_TYPE, Decision, FleetView, Outcome, RequestView
from selector.errors import PolicyError


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """`arms` maps text types to arms; those it leaves out get the cheapest at the typical load."""

    arms: Mapping[str, str] = field(default_factory=dict)
    batch: int = 16
    context_tokens: float = 1_000.0


class Affinity:
    """See the module."""

    def __init__(self, arms: Mapping[str, str], context: PolicyContext) -> None:
        self._arms = {text_type: (arm,) for text_type, arm in arms.items()}
        self._context = context

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """The least loaded backend of the text type's arm; a type nobody knows counts as unknown."""
        arms = self._arms.get(request.text_type) or self._arms[UNKNOWN_TEXT_TYPE]
        return least_loaded_on(arms, request, fleet, self._context, why=f"for {request.text_type}, ")

    def observe(self, outcome: Outcome) -> None:
        """The choice is fixed."""


def cheapest_arm(text_type: str, params: Params, context: PolicyContext) -> str:
    """The arm with the fewest joules per accepted token at the typical load; the fleet's first of equals."""
    costs: dict[str, float] = {}
    for arm, specs in context.by_arm().items():
        _, step_j = specs[0].cost.step.step(params.batch, params.context_tokens)
        costs[arm] = step_j / (params.batch * context.acceptance.accept_length(arm, text_type))
    return min(costs, key=costs.__getitem__)


def make_policy(params: Params, context: PolicyContext) -> Affinity:
    """Raises `PolicyError` for a text type or arm that does not exist and for a load that cannot be."""
    text_types = (*TEXT_TYPES, UNKNOWN_TEXT_TYPE)
    for text_type, arm in params.arms.items():
        if text_type not in text_types:
            problem = f"has {text_type!r}, which is no text type"
            raise PolicyError("policy affinity: arms", problem, f"choose from {', '.join(text_types)}")
        require_arm(arm, f"policy affinity: arms.{text_type}", context)
    if params.batch < 1:
        raise PolicyError("policy affinity: batch", f"is {params.batch}; must be ≥ 1", "give a typical batch")
    if not 0.0 <= params.context_tokens < math.inf:
        problem = f"is {params.context_tokens}; must be ≥ 0"
        raise PolicyError("policy affinity: context_tokens", problem, "give a typical context")
    cheapest = {text_type: cheapest_arm(text_type, params, context) for text_type in text_types}
    return Affinity({**cheapest, **params.arms}, context)
