"""The acceptance model of a fleet, as its profiles have it before any request was seen."""

from __future__ import annotations

from collections.abc import Iterable

from selector.core.acceptance import HALF_LIFE_REQUESTS, REFINE_KEYS, AcceptanceModel, AcceptancePrior
from selector.files.profile import Profile


def acceptance_model(
    profiles: Iterable[tuple[str, Profile]],
    *,
    half_life_requests: float = HALF_LIFE_REQUESTS,
    refine_keys: int = REFINE_KEYS,
) -> AcceptanceModel:
    """The acceptance model of a fleet from (arm, profile) pairs; the first profile of an arm decides its prior."""
    priors: dict[str, dict[str, AcceptancePrior]] = {}
    widths: dict[str, int] = {}
    for name, profile in profiles:
        for at_setting, acceptance in profile.acceptances(name):
            if at_setting in widths:
                continue
            widths[at_setting] = profile.arm(name).verify_tokens
            priors[at_setting] = {
                text_type: AcceptancePrior(
                    mean=value.mean, request_spread=value.request_spread, survival=value.survival
                )
                for text_type, value in acceptance.items()
            }
    return AcceptanceModel(priors, widths, half_life_requests=half_life_requests, refine_keys=refine_keys)
