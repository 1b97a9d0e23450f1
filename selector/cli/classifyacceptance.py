"""What `classify` adds with a fleet file: the tokens per step expected on each arm, and what that rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from selector.core.acceptance import AcceptanceModel, Estimate
from selector.core.acceptancestate import fingerprint, restore
from selector.core.texttype import TextEstimate
from selector.errors import DomainError, StateError
from selector.files.acceptance_state import REMEDY, read_acceptance
from selector.files.fleet import load_fleet_with_profiles


def learnt_acceptance(config: Path) -> AcceptanceModel:
    """The fleet's acceptance: by its profiles, with what the snapshot that it names holds, if that was written yet.

    Raises `FleetError`, and `StateError` for a snapshot that cannot be used.
    """
    loaded = load_fleet_with_profiles(config)
    model = loaded.policy_context().acceptance
    snapshot = loaded.fleet.acceptance.snapshot
    if snapshot is not None and Path(snapshot).exists():
        saved = read_acceptance(Path(snapshot), target=loaded.fleet.target, fingerprint=fingerprint(model))
        try:
            restore(model, saved.state)
        except DomainError as bad:
            raise StateError(snapshot, str(bad), REMEDY) from None
    return model


def expected(model: AcceptanceModel, found: TextEstimate) -> dict[str, Estimate]:
    """By drafting arm, of a request of that text; what its context, temperature or key change is left out."""
    return {arm: model.estimate(arm, found.text_type, found.probabilities) for arm in model.learning}


def as_fields(estimates: Mapping[str, Estimate]) -> dict[str, dict[str, float]]:
    """For JSON."""
    return {arm: asdict(estimate) for arm, estimate in estimates.items()}


def as_words(estimates: Mapping[str, Estimate]) -> str:
    """For people."""
    return "; ".join(
        f"{arm} {each.mean:.2f} ± {each.standard_deviation:.2f}"
        f" ({each.samples:.0f} requests seen, profile {each.prior_mean:.2f})"
        for arm, each in estimates.items()
    )
