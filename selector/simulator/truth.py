"""What backends really accept in a simulation; policies have to learn it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from selector.core.acceptance import AcceptancePrior
from selector.simulator.run import SimulatedRequest

Truth = Callable[[str, SimulatedRequest, float], AcceptancePrior | None]
"""What a backend of that name accepts of a request that comes at a time in seconds; `None` for nothing.

At other live settings than it was launched with, its name is the one that `ArmSetting.named` makes of it.
"""


def truth_of(acceptance: Mapping[tuple[str, str], AcceptancePrior] | Truth) -> Truth:
    """The truth that is the same at all times where it is given per (backend name, text type); else as it is given."""
    if callable(acceptance):
        return acceptance

    def truth(backend: str, request: SimulatedRequest, now_s: float) -> AcceptancePrior | None:
        return acceptance.get((backend, request.text_type))

    return truth
