"""How far a backend's costs are from its profile's, and the factors that put them right.

    step time    modelled steps / steps that were made, over the same time       (`fleetwork`, requests that ended)
    power        joules that a board counted / joules modelled, over that time   (`energyshare`, metered boards)
    step energy  power × step time: a step that takes longer draws its power for longer

Both are ratios of sums that fade over time, so requests count by their steps and intervals by their joules, and what
was true an hour ago does not hide what is true now. A factor in force is bounded, starts from 1 as if a little had been
seen that agrees with the profile, and moves only when the evidence asks for clearly more: costs that tremble would make
policies tremble. Prefill and idle power are never corrected: nothing here tells them apart from the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from selector.core.cost import StepCost
from selector.core.policy import BackendSpec
from selector.core.types import NO_CORRECTION, Correction
from selector.errors import DomainError

LEAST, MOST = 0.5, 2.0
"""Bounds of a factor: beyond them the profile is of something else, and a person has to look."""
_HALF_LIFE_S = 300.0
_PRIOR_STEPS = 2_000.0
_PRIOR_J = 5_000.0
_STEADY_FRAC = 0.02
"""A factor moves only by more than this."""


class LiveStepCost(StepCost):
    """A step cost of one backend that can change while policies hold it; a lookup costs what it did."""

    __slots__ = ("_correction", "_profiled")

    def __init__(self, profiled: StepCost) -> None:
        """Equal to `profiled`, of which it shares the tables, until it is corrected or another profiled one holds."""
        self._correction = NO_CORRECTION
        self._take(profiled)

    def _take(self, profiled: StepCost) -> None:
        self._points, self._slope = profiled._points, profiled._slope
        self._batches = profiled._batches
        self._context_range = profiled._context_range
        self._knots = profiled._knots
        self._last_pair = profiled._last_pair
        self._rows = profiled._rows
        self.min_batch, self.max_batch = profiled.min_batch, profiled.max_batch
        self._profiled = profiled

    def follow(self, profiled: StepCost) -> None:
        """From now on the costs are those of `profiled` (another live setting), corrected as before."""
        self._take(profiled._profiled if isinstance(profiled, LiveStepCost) else profiled)
        self.correct(self._correction)

    def correct(self, correction: Correction) -> None:
        """From now on times and energies are the profile's times these factors. Raises `DomainError` unless > 0."""
        time, energy = correction.step_time_frac, correction.step_energy_frac
        if not (0.0 < time < float("inf") and 0.0 < energy < float("inf")):
            raise DomainError(f"a cost cannot be corrected by {correction}")
        self._correction = correction
        if correction == NO_CORRECTION:
            self._rows = self._profiled._rows
            return
        self._rows = [
            [(knot, ms * time, ms_rise * time, j * energy, j_rise * energy) for knot, ms, ms_rise, j, j_rise in row]
            for row in self._profiled._rows
        ]


def live(spec: BackendSpec) -> BackendSpec:
    """The same backend with costs of a step that can change, at every live setting and depth."""
    return replace(
        spec,
        cost=replace(spec.cost, step=LiveStepCost(spec.cost.step)),
        settings=tuple(replace(setting, step=LiveStepCost(setting.step)) for setting in spec.settings),
        depths=tuple(map(live, spec.depths)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """What was observed over what the profile says, unbounded; `None` without evidence."""

    step_time_frac: float | None
    power_frac: float | None


class _Fading:
    """Two sums that fade alike."""

    __slots__ = ("modelled", "observed", "then_s")

    def __init__(self) -> None:
        self.observed = self.modelled = 0.0
        self.then_s = 0.0

    def fade(self, now_s: float) -> None:
        if now_s > self.then_s:
            keep = 0.5 ** ((now_s - self.then_s) / _HALF_LIFE_S)
            self.observed *= keep
            self.modelled *= keep
            self.then_s = now_s

    def add(self, observed: float, modelled: float, now_s: float) -> None:
        self.fade(now_s)
        self.observed += observed
        self.modelled += modelled


class CorrectionModel:
    """Evidence and factors in force, by backend. No clock: calls carry `now_s`."""

    def __init__(self, backends: Iterable[str]) -> None:
        self._in_force = dict.fromkeys(backends, NO_CORRECTION)
        self._forget()

    def _forget(self) -> None:
        self._steps = {name: _Fading() for name in self._in_force}
        self._joules = {name: _Fading() for name in self._in_force}

    def stepped(self, backend: str, made: float, modelled: float, now_s: float) -> None:
        """A request got `made` steps in a time for which the profile says `modelled`. Raises `KeyError`."""
        if made > 0.0 and modelled > 0.0:
            self._steps[backend].add(made, modelled, now_s)

    def drew(self, backend: str, counted_j: float, modelled_j: float, now_s: float) -> None:
        """A backend's share of what its boards counted, and what the profile says. Raises `KeyError`."""
        if counted_j >= 0.0 and modelled_j > 0.0:
            self._joules[backend].add(counted_j, modelled_j, now_s)

    def ratios(self, backend: str) -> Ratios:
        """What is observed at present. Raises `KeyError`."""
        steps, joules = self._steps[backend], self._joules[backend]
        return Ratios(
            step_time_frac=steps.modelled / steps.observed if steps.observed > 1.0 else None,
            power_frac=joules.observed / joules.modelled if joules.modelled > 1.0 else None,
        )

    def in_force(self, backend: str) -> Correction:
        """The last one that was due. Raises `KeyError`."""
        return self._in_force[backend]

    def due(self, now_s: float) -> dict[str, Correction]:
        """Corrections to put in force now, by backend; they are taken to be in force from here on."""
        changed = {}
        for name, old in self._in_force.items():
            new = self._wanted(name, now_s)
            if _moved(old.step_time_frac, new.step_time_frac) or _moved(old.step_energy_frac, new.step_energy_frac):
                changed[name] = new
        self._in_force.update(changed)
        return changed

    def reset(self) -> dict[str, Correction]:
        """Forgets all evidence; the corrections (by 1) to put in force for those that were corrected."""
        corrected = [name for name, old in self._in_force.items() if old != NO_CORRECTION]
        self._in_force = dict.fromkeys(self._in_force, NO_CORRECTION)
        self._forget()
        return dict.fromkeys(corrected, NO_CORRECTION)

    def _wanted(self, backend: str, now_s: float) -> Correction:
        steps, joules = self._steps[backend], self._joules[backend]
        steps.fade(now_s)
        joules.fade(now_s)
        time = _bounded((steps.modelled + _PRIOR_STEPS) / (steps.observed + _PRIOR_STEPS))
        power = (joules.observed + _PRIOR_J) / (joules.modelled + _PRIOR_J)
        return Correction(step_time_frac=time, step_energy_frac=_bounded(power * time))


def _bounded(factor: float) -> float:
    return min(max(factor, LEAST), MOST)


def _moved(old: float, new: float) -> bool:
    return abs(new - old) > _STEADY_FRAC * old
