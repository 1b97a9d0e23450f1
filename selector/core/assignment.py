"""Demands on arms: what each pool gets of them, and what there is no place for.

Demands get their places each on its own arm first, the rest goes, in the order of the rates, to their next arms. Where
servers share a GPU, those of all planned arms are taken to work and take turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose

from selector.core.livesettings import ArmSetting
from selector.core.poolload import Demand, DemandKey, Mix, PoolCurve, PoolLoad
from selector.core.pools import UsablePools


@dataclass(frozen=True, slots=True)
class Held:
    """One pool with its part of the demands."""

    arm: str
    curve: PoolCurve
    tokens_per_s: float
    backends: int
    """Those that are usable."""


class Assignment:
    """Demands on arms, and arms at live settings."""

    __slots__ = ("_setting_of", "_slowdowns", "arms_of", "demands", "planned_arms", "resting", "usable")

    def __init__(
        self,
        usable: UsablePools,
        demands: Sequence[Demand],
        arms_of: Mapping[DemandKey, tuple[str, ...]],
        setting_of: Mapping[str, ArmSetting],
    ) -> None:
        """`demands` are in the order of their rates, `arms_of` has the arms of each by preference."""
        self.usable = usable
        self.demands = demands
        self.arms_of = arms_of
        self._setting_of = setting_of
        self.planned_arms = planned = frozenset(arms[0] for arms in arms_of.values())
        sharing = {arm: others for arm in planned if (others := usable.of_arm[arm].neighbours)}
        self._slowdowns = {arm: 1 + sum(other in planned for other in others) for arm, others in sharing.items()}
        """How many servers take turns on the GPUs of each planned arm."""
        self.resting = {other for others in sharing.values() for other in others} - planned
        """Arms that nothing overflows to: a server that would take turns with a planned one would take as much time
        from it as it has itself."""

    @property
    def takes_turns(self) -> bool:
        """Whether servers of one GPU work at the same time."""
        return any(turns > 1 for turns in self._slowdowns.values())

    def overflowing_to(self, arm: str) -> Assignment:
        """The same with `arm` as the first one for overflow."""
        arms_of = {
            key: (arms[0], arm, *(other for other in arms[1:] if other != arm)) if arm in arms[1:] else arms
            for key, arms in self.arms_of.items()
        }
        return Assignment(self.usable, self.demands, arms_of, self._setting_of)

    def curve(self, arm: str, mix: Mix) -> PoolCurve:
        """Batch and power of a backend of the arm under a mix of demands."""
        return self.usable.curve(arm, mix, self._slowdowns.get(arm, 1), self._setting_of.get(arm))

    def load(self, arm: str, mix: Mix) -> PoolLoad:
        """A backend of the arm under a mix of demands."""
        return self.usable.load(arm, mix, self._slowdowns.get(arm, 1), self._setting_of.get(arm))

    def settings_of(self, held: Sequence[Held]) -> dict[str, Mapping[str, float]]:
        """The live settings of those of the pools that have some."""
        return {pool.arm: self._setting_of[pool.arm].values for pool in held if pool.arm in self._setting_of}

    def alike(self, scale: float) -> tuple[list[Held], float]:
        """The pools with what each gets of the demands at `scale` times their rates; and what none can hold.

        Where more is planned for an arm than it holds, each demand has the same share of its requests there.
        """
        mixes = self._planned(scale)
        rests = {demand.key: 0.0 for demand in self.demands}
        for arm, mix in mixes.items():
            wanted = sum(rate for _, rate in mix)
            room = self._room(arm, mix)
            if wanted > room:
                mixes[arm] = [(demand, rate * room / wanted) for demand, rate in mix]
                rests.update((demand.key, rate * (1.0 - room / wanted)) for demand, rate in mix)
        return self._placed(mixes, rests)

    def on_planned_arms(self) -> list[Held]:
        """The pools with all of every demand on its planned arm, whether that holds it or not."""
        return self._held(self._planned(1.0))

    def overflow_frac(self, held: Sequence[Held]) -> float:
        """The share of the tokens of the pools, in which the demands have the shares of their rates, on other arms
        than the planned ones.
        """
        there = sum((min(pool.tokens_per_s, planned) for pool, planned in self._planned_for(held)), 0.0)
        return max(0.0, 1.0 - there / sum((pool.tokens_per_s for pool in held), 0.0))

    def undisturbed(self, held: Sequence[Held]) -> frozenset[str]:
        """The arms of the pools that serve all that is planned for them and nothing else."""
        return frozenset(
            pool.arm for pool, planned in self._planned_for(held) if isclose(pool.tokens_per_s, planned, rel_tol=1e-6)
        )

    def _planned_for(self, held: Sequence[Held]) -> list[tuple[Held, float]]:
        """The pools, each with the part of the tokens of all of them that is planned for its arm."""
        planned = {arm: sum((rate for _, rate in mix), 0.0) for arm, mix in self._planned(1.0).items()}
        scale = sum((pool.tokens_per_s for pool in held), 0.0) / sum(planned.values(), 0.0)
        return [(pool, scale * planned.get(pool.arm, 0.0)) for pool in held]

    def _planned(self, scale: float) -> dict[str, list[tuple[Demand, float]]]:
        """All of every demand on its planned arm, at `scale` times the rates, by arm."""
        mixes: dict[str, list[tuple[Demand, float]]] = {}
        for demand in self.demands:
            mixes.setdefault(self.arms_of[demand.key][0], []).append((demand, demand.tokens_per_s * scale))
        return mixes

    def _placed(
        self, mixes: dict[str, list[tuple[Demand, float]]], rests: Mapping[DemandKey, float]
    ) -> tuple[list[Held], float]:
        """`mixes` with places for the rests added, on the arms for overflow; and what has none."""
        unserved = 0.0
        for demand in self.demands:
            rest = rests[demand.key]
            for arm in self.arms_of[demand.key][1:]:
                if rest <= 0.0:
                    break
                if arm in self.resting:
                    continue
                there = mixes.get(arm, [])
                room = self._room(arm, [*there, (demand, rest)])
                taken = min(rest, room - sum(rate for _, rate in there))
                if taken > 1e-9:
                    mixes[arm] = [*there, (demand, taken)]
                    rest -= taken
            unserved += max(0.0, rest)
        return self._held(mixes), unserved

    def _held(self, mixes: Mapping[str, Mix]) -> list[Held]:
        return [
            Held(arm, self.curve(arm, mix), sum(rate for _, rate in mix), self.usable.counts[arm])
            for arm, mix in mixes.items()
        ]

    def _room(self, arm: str, mix: Mix) -> float:
        """Tokens per second that all backends of the arm hold of a mix within the targets."""
        return self.usable.counts[arm] * self.curve(arm, mix).full.tokens_per_s
