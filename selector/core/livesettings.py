"""Live settings: knobs that an engine lets us turn while it serves, such as DSPark's verify budget.

    ArmSetting      an arm at one profiled value of its settings: what a step costs then, and whose accept lengths hold
    LiveSettings    what is in force on each backend, and which change may be asked for now

A change concerns every request on the backend, so it is a backend's, not a request's: a decision names the settings
that the policy wants in force where the request goes, and whoever drives the servers asks for them when they are due:

    wanted, due ──▶ asked for ──answer──▶ in force | refused (fixed from then on) | failed (may be asked for again)

They are due when they are profiled, not in force, nothing else is under way there, and the last change is long enough
ago. Engines do not tell what is in force. What a server was started with is taken to be, until the first answer: the
first wish is asked for even if it is that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from selector.core.cost import StepCost


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSetting:
    """An arm at one profiled value of its live settings."""

    values: Mapping[str, float]
    step: StepCost
    launched: bool = False
    """Whether the server starts with it."""

    def named(self, name: str) -> str:
        """The name of an arm or backend at this setting: its own as launched, `NAME@VALUE` otherwise.

        Accept lengths belong to a setting, and are kept under such a name.
        """
        return name if self.launched else f"{name}@{','.join(f'{value:g}' for value in self.values.values())}"


@dataclass(slots=True)
class _Knob:
    """Of one backend."""

    settings: tuple[ArmSetting, ...]
    in_force: Mapping[str, float]
    told: bool = False
    """Whether the server said that they are in force."""
    asking: bool = False
    refused: bool = False
    asked_s: float = -math.inf

    @property
    def asked(self) -> bool:
        return self.asked_s > -math.inf


class LiveSettings:
    """Of one fleet. No clock: calls carry `now_s`. Backends without settings are not in it."""

    def __init__(self, settings: Mapping[str, tuple[ArmSetting, ...]], *, every_s: float) -> None:
        """`settings` by backend, as launched first; changes of one backend are at least `every_s` apart."""
        self._every_s = every_s
        self._knobs = {name: _Knob(of, of[0].values) for name, of in settings.items() if of}

    def due(self, backend: str, wanted: Mapping[str, float], now_s: float) -> bool:
        """Whether `wanted` should be asked for now; then it counts as asked for, and an answer has to follow."""
        knob = self._knobs.get(backend)
        if knob is None or knob.refused or knob.asking or not any(each.values == wanted for each in knob.settings):
            return False
        if (knob.told and wanted == knob.in_force) or now_s - knob.asked_s < self._every_s:
            return False
        knob.asking, knob.asked_s = True, now_s
        return True

    def came_into_force(self, backend: str, settings: Mapping[str, float]) -> None:
        """The server took them. Raises `KeyError` for a backend without settings."""
        knob = self._knobs[backend]
        knob.asking, knob.told, knob.in_force = False, True, settings

    def were_refused(self, backend: str) -> None:
        """The server does not change them: what is in force stays, and is not asked for again."""
        knob = self._knobs[backend]
        knob.asking, knob.refused = False, True

    def failed(self, backend: str) -> None:
        """There was no answer: nothing is known to have changed."""
        knob = self._knobs[backend]
        knob.asking = knob.told = False

    def started_again(self, backend: str) -> Mapping[str, float] | None:
        """A server may have been restarted: what it then has in force, as launched; `None` if it was never asked."""
        knob = self._knobs.get(backend)
        if knob is None or not knob.asked:
            return None
        knob.told = knob.refused = False
        knob.in_force = knob.settings[0].values
        return knob.in_force

    def to_restore(self) -> dict[str, Mapping[str, float]]:
        """As launched, by backend, for those where something else is in force or may be."""
        return {
            name: knob.settings[0].values
            for name, knob in self._knobs.items()
            if knob.in_force != knob.settings[0].values or (knob.asked and not knob.told and not knob.refused)
        }
