"""What an assignment of demands to arms costs: how many backends of each arm run, at what batch, at what power.

Demands get their places each on its own arm first. The rest goes, in the order of the rates, to the arm that serves so
much of it at the least cost, and so on (`assignment`). How a pool then runs, and by what plans are compared, depends on
what decides the load: the rates (`openplan`) or a population that waits for answers (`closedplan`).

Where an arm has live settings, it runs at those with the least score, tried one arm after the other; those in force are
kept unless others score better by a given share, since a change is not free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from selector.core.assignment import Assignment
from selector.core.closedplan import closed_plan
from selector.core.livesettings import ArmSetting
from selector.core.openplan import open_plan
from selector.core.plan import VIOLATION_J_PER_TOKEN, Plan
from selector.core.plansearch import clearly_less
from selector.core.poolload import Demand, DemandKey, PoolCurve
from selector.core.pools import UsablePools

_FEW_REQUESTS = 4.0
"""What overflows by chance alone comes to about so many requests at a time."""
_CLEARLY_FRAC = 1e-6
"""By what share of the score another setting of an arm must save to be taken."""


class PlanScore:
    """Scores assignments of one set of demands over the usable backends."""

    def __init__(
        self,
        pools: UsablePools,
        demands: Sequence[Demand],
        *,
        idle_w: float,
        population: float | None,
        halved_tbt_frac: float,
        settings: Mapping[str, Sequence[ArmSetting]],
        keep_settings_within_frac: float,
    ) -> None:
        """`settings` by arm are those to choose from, the ones in force first; an arm without is not named."""
        self._pools = pools
        self._demands = demands
        self._by_rate = sorted(demands, key=lambda demand: -demand.tokens_per_s)
        self._idle_w = idle_w
        self._population = population
        self._holding_w = idle_w / population if population else 0.0
        """Price of a request in the system: its part of the idle power where clients wait."""
        self._halved_tbt_frac = halved_tbt_frac
        self._settings = settings
        self._keep_settings_within_frac = keep_settings_within_frac
        self._in_force = {arm: choices[0] for arm, choices in settings.items()}
        self.arms = pools.arms
        self.ranked = {demand.key: self._ranked(demand) for demand in demands}
        """Arms by the cost of a token of each demand alone, at the best batch."""

    def _ranked(self, demand: Demand) -> tuple[str, ...]:
        def price(arm: str) -> float:
            curves = [self._alone(arm, demand, setting) for setting in self._settings.get(arm, (None,))]
            return min(
                curve.least_cost(self._holding_w) + VIOLATION_J_PER_TOKEN * curve.full.missed_frac for curve in curves
            )

        return tuple(sorted(self.arms, key=price))

    def plan(self, arm_of: Mapping[DemandKey, str]) -> Plan:
        """The plan of an assignment, at its best live settings. Raises `KeyError` for a demand it does not name."""
        setting_of = self._in_force
        kept = best = self._at_settings(arm_of, setting_of)
        if self._settings:
            for arm in sorted(self._settings.keys() & set(arm_of.values())):
                for setting in self._settings[arm][1:]:
                    tried = {**setting_of, arm: setting}
                    found = self._at_settings(arm_of, tried)
                    if clearly_less(found.score, best.score, _CLEARLY_FRAC):
                        best, setting_of = found, tried
        return best if clearly_less(best.score, kept.score, self._keep_settings_within_frac) else kept

    def _at_settings(self, arm_of: Mapping[DemandKey, str], setting_of: Mapping[str, ArmSetting]) -> Plan:
        arms_of = {
            demand.key: (arm_of[demand.key], *self._overflow(demand, arm_of[demand.key], setting_of))
            for demand in self._demands
        }
        assignment = Assignment(self._pools, self._by_rate, arms_of, setting_of)
        if self._population is None:
            return open_plan(assignment, self._halved_tbt_frac)
        return closed_plan(assignment, self._population, self._idle_w)

    def _overflow(self, demand: Demand, chosen: str, setting_of: Mapping[str, ArmSetting]) -> Sequence[str]:
        """The other arms for what the planned one cannot hold, by the cost of so much, a few requests at least.

        With several demands that wait for answers by the cost at the best batch: of which texts the overflow will be is
        not certain then, see `closedplan`.
        """
        others = [arm for arm in self.ranked[demand.key] if arm != chosen]
        if len(others) < 2 or (self._population is not None and len(self._demands) > 1):
            return others
        counts = self._pools.counts
        full = self._alone(chosen, demand, setting_of.get(chosen)).full
        if self._population is None:
            rest_tokens_per_s = demand.tokens_per_s - counts[chosen] * full.tokens_per_s
        else:
            rest_requests = self._population - counts[chosen] * full.batch

        def cost(arm: str) -> float:
            curve = self._alone(arm, demand, setting_of.get(arm))
            full = curve.full
            rest = rest_tokens_per_s / full.tokens_per_s if self._population is None else rest_requests / full.batch
            backends = max(rest, min(1.0, _FEW_REQUESTS / full.batch))
            whole = min(int(backends), counts[arm])
            part = min(backends - whole, 1.0)
            rate = part * full.tokens_per_s if self._population is None else curve.rate_at(part * full.batch)
            batch, watts = curve.at(rate)
            watts += whole * full.power_w + self._holding_w * (whole * full.batch + batch)
            return watts / (whole * full.tokens_per_s + rate) + VIOLATION_J_PER_TOKEN * full.missed_frac

        return sorted(others, key=cost)

    def _alone(self, arm: str, demand: Demand, setting: ArmSetting | None) -> PoolCurve:
        """A backend of the arm with a GPU of its own, for that demand only."""
        return self._pools.curve(arm, [(demand, 1.0)], 1, setting)
