"""Speculate while the load is low, serve plainly when it is high: what engines do today.

vLLM's `speculative_disable_by_batch_size` and SGLang's adaptive speculation switch on the batch alone. Right in
tendency, since drafting costs most when the batch is full; but where it stops paying depends on the text and the arm
(from batch 8 to never), and the threshold knows neither energy nor targets.

The load is the requests on both arms per available drafting backend, that is the batch if all of them were drafted for;
so switching does not change it. Speculation goes off at `threshold` and on again only below `resume_frac` of it: no
flapping when the load sits at the threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

from selector.core.leastloaded import least_loaded_on, require_arm
from selector.core.policy import PolicyContext
from selector.core.types import TEXT_TYPES, Decision, FleetView, Outcome, RequestView
from selector.errors import PolicyError


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Without `speculating_arm` it is the one with the highest accept length, averaged over text types."""

    threshold: int = 8
    resume_frac: float = 0.75
    speculating_arm: str | None = None
    plain_arm: str = "none"


class BatchThreshold:
    """See the module."""

    def __init__(self, speculating_arm: str, params: Params, context: PolicyContext) -> None:
        self._speculating_arm = speculating_arm
        self._plain_arm = params.plain_arm
        self._off_at = float(params.threshold)
        self._on_below = params.resume_frac * params.threshold
        self._context = context
        self._speculating = True

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """The least loaded backend of the arm in force; of the other one where that arm cannot serve the request."""
        load = self._load(fleet)
        self._speculating = load < (self._off_at if self._speculating else self._on_below)
        if self._speculating:
            arms, why = (self._speculating_arm, self._plain_arm), f"load {load:.1f}, speculating, "
        else:
            arms, why = (self._plain_arm, self._speculating_arm), f"load {load:.1f}, not speculating, "
        return least_loaded_on(arms, request, fleet, self._context, why=why)

    def observe(self, outcome: Outcome) -> None:
        """Looks at the load alone."""

    def _load(self, fleet: FleetView) -> float:
        requests = drafting = 0
        for view in fleet.backends:
            if view.arm == self._speculating_arm:
                requests += view.batch
                drafting += view.available
            elif view.arm == self._plain_arm:
                requests += view.batch
        return requests / max(drafting, 1)


def most_accepted_arm(plain_arm: str, context: PolicyContext) -> str:
    """The drafting arm with the highest mean accept length over text types. Raises `PolicyError` if none drafts."""
    means = {
        arm: sum(context.acceptance.accept_length(arm, text_type) for text_type in TEXT_TYPES)
        for arm, specs in context.by_arm().items()
        if specs[0].cost.verify_tokens > 1 and arm != plain_arm
    }
    if not means:
        problem = "is not given and no backend runs an arm that drafts"
        raise PolicyError("policy batch_threshold: speculating_arm", problem, "add such a backend to the fleet")
    return max(means, key=means.__getitem__)


def make_policy(params: Params, context: PolicyContext) -> BatchThreshold:
    """Raises `PolicyError` for arms that no backend runs and for thresholds that cannot be."""
    if params.threshold < 1:
        problem = f"is {params.threshold}; must be ≥ 1"
        raise PolicyError("policy batch_threshold: threshold", problem, "give the batch that turns speculation off")
    if not 0.0 < params.resume_frac <= 1.0:
        problem = f"is {params.resume_frac}; must be above 0 and at most 1"
        raise PolicyError("policy batch_threshold: resume_frac", problem, "give a fraction of the threshold")
    require_arm(params.plain_arm, "policy batch_threshold: plain_arm", context)
    if params.speculating_arm is None:
        speculating_arm = most_accepted_arm(params.plain_arm, context)
    else:
        speculating_arm = require_arm(params.speculating_arm, "policy batch_threshold: speculating_arm", context)
    if speculating_arm == params.plain_arm:
        problem = f"is {speculating_arm!r}, as is plain_arm"
        raise PolicyError("policy batch_threshold: speculating_arm", problem, "name two arms")
    return BatchThreshold(speculating_arm, params, context)
