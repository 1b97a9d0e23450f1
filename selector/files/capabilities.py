"""What SGLang cannot do under speculation, for profiles that are made and for fleets that are checked.

From its source, releases 0.5.17 to 0.5.23: penalties are relaxed or ignored by every algorithm that drafts, so that an
answer differs from the one without a drafter, and DFLASH and DSPARK refuse to return hidden states.
"""

from __future__ import annotations

from collections.abc import Iterator

from selector.core.types import Capability
from selector.files.fleet import LoadedFleet

_NO_HIDDEN_STATES = frozenset({"DFLASH", "DSPARK"})


def known_limits(algorithm: str) -> tuple[Capability, ...]:
    """What an arm of this algorithm (SGLang's name, or `none`) cannot serve whatever the model."""
    if algorithm == "none":
        return ()
    if algorithm in _NO_HIDDEN_STATES:
        return (Capability.PENALTIES, Capability.HIDDEN_STATES)
    return (Capability.PENALTIES,)


def capability_trouble(loaded: LoadedFleet) -> Iterator[tuple[str, str, str]]:
    """Needs that no backend meets, and arms said to meet what their algorithm cannot: where, problem, remedy."""
    for need in Capability:
        if all(need in spec.cannot_serve for spec in loaded.specs):
            yield (
                "backends",
                f"none can serve requests that need {need.value}",
                "such requests will be refused: add a backend of an arm that can, such as none",
            )
    for where, _, arm in loaded.arms():
        missing = [need.value for need in known_limits(arm.algorithm) if need not in arm.cannot_serve]
        if missing:
            yield (
                f"{where}.cannot_serve",
                f"lacks {' and '.join(missing)}, which SGLang refuses or ignores under {arm.algorithm}",
                "add it, so that such requests go to an arm that serves them",
            )
