"""Accept lengths at live settings, derived from those of the arm as launched.

A verify budget of a share f of the drafts accepts 1 + Σ_k min(1, max(0, f (w − 1) − (k − 1))) s_k tokens a step, s_k
being the survival of the k-th draft (`core.survival.budgeted_accept_length`). That is a floor for an engine that
verifies the likeliest drafts of the whole batch, and it is marked as derived.
"""

from __future__ import annotations

from selector.core.survival import budgeted_accept_length
from selector.files.arm import VERIFY_BUDGET
from selector.files.profile import Acceptance, Arm, Profile, Provenance
from selector.profiler.provenance import pruned

_FORMULA = (
    "1 + sum over k of min(1, max(0, f (w - 1) - (k - 1))) s_k from the accept length as launched (survivals s_k as"
    " measured, or p^k), each request verifying the share f of its drafts: a floor where the likeliest are picked"
)


def with_setting_acceptance(profile: Profile) -> Profile:
    """The profile with accept lengths at every verify budget, from those that its arms have as launched."""
    provenance, arms = dict(profile.provenance), dict(profile.arms)
    for name, arm in profile.arms.items():
        knob = arm.live_setting
        if knob is None or knob.name != VERIFY_BUDGET:
            continue
        key = f"accept-{name}-budget"
        provenance[key] = Provenance(kind="derived", source=_FORMULA)
        others = tuple(
            other.model_copy(
                update={
                    "acceptance": {
                        text_type: _at_budget(arm, known, other.value / knob.launched, key)
                        for text_type, known in arm.acceptance.items()
                    }
                }
            )
            for other in knob.others
        )
        arms[name] = arm.model_copy(update={"live_setting": knob.model_copy(update={"others": others})})
    return pruned(profile.model_copy(update={"arms": arms, "provenance": provenance}))


def _at_budget(arm: Arm, known: Acceptance, budget_frac: float, key: str) -> Acceptance:
    mean = budgeted_accept_length(known.mean, arm.verify_tokens, budget_frac, known.survival)
    return Acceptance(
        mean=round(mean, 4),
        provenance=key,
        request_spread=known.request_spread,
        request_spread_provenance=known.request_spread_provenance,
    )
