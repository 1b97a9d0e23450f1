"""Where a profile's numbers come from, by the cells that they were measured in."""

from __future__ import annotations

import shlex

from selector.files.profile import Profile
from selector.files.provenance import Provenance, provenance_keys
from selector.profiler.cells import Origin


def measured_provenance(origin: Origin, note: str) -> Provenance:
    """Provenance of what was measured there and in that way."""
    command = [*(f"{name}={value}" for name, value in origin.env.items()), *origin.argv]
    return Provenance(
        kind="measured",
        source=shlex.join(command) if origin.argv else (origin.url or "drafter-selector profile"),
        gpu=origin.gpu,
        driver=origin.driver,
        engine=origin.engine,
        weights=origin.weights,
        host=origin.host,
        date=origin.date,
        note=note,
    )


def pruned(profile: Profile) -> Profile:
    """The profile without provenance that no number of it names."""
    keys = {key for _, key in provenance_keys(profile)}
    kept = {key: value for key, value in profile.provenance.items() if key in keys}
    return profile.model_copy(update={"provenance": kept})
