"""Which arms should serve which requests, and how full their backends should be, at least energy.

Energy jumps at a backend's first request (the weights are read for it alone) and then grows almost linearly, so judging
one request at a time finds no good operating point: the marginal request is always cheapest on the arm that is already
busy, whatever it costs there at the load to come. The plan therefore looks at the whole load. For demands g (text type,
target) with r_g tokens/s, prompt p_g and answer o_g, an arm's pool of equal backends holding rates r_g has

    ā  = Σ r_g / Σ (r_g / a_g)                       tokens per request and step (requests are there as r_g / a_g)
    x(b) = b ā / T(b, c)                             tokens/s while decoding;  c: mean of p_g + o_g / 2
    r(b) = x / (1 + x φ),  ρ = r φ                   with φ seconds of prefill per token that stop decoding
    power above idle = (1 − ρ) A(b) / T(b) + r ψ     A as in `cost`; ψ joules of prefill per token beyond idling

b* is the largest batch at which every target is met at the quantile q (z its normal deviate),

    T(b*) / (a (1 − ρ)) · (1 + z √(u² + v)) ≤ target,   v = D ρ / (w (1 − ρ)),   w = n T / a

u² is the relative variance between requests, v what prefill stalls add to an answer of n tokens (see `stalls`): short
answers on a backend that prefills much are what misses targets first. Where s servers share a GPU and work, T is s
times as long.

Where an arm has live settings, T, E and a are those of the settings, and a plan says which of them its backends run at.

What an assignment of demands to arms costs is told in `planscore`; the search for the best one (`plansearch`) is local,
from several starting points: the tests compare it with the exhaustive optimum.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace

from selector.core.acceptance import AcceptanceModel
from selector.core.demandmerge import FEW_DEMANDS, DemandMerge
from selector.core.livesettings import ArmSetting
from selector.core.plan import Plan
from selector.core.plannedlengths import PlannedLengths
from selector.core.planscore import PlanScore
from selector.core.plansearch import PlanSearch, finished
from selector.core.policy import BackendSpec
from selector.core.poolload import Demand, DemandKey
from selector.core.pools import UsablePools, pools_of


class Planner:
    """Solves for plans over a fixed fleet. Backends of one arm are taken to be equal; the smallest limits count."""

    def __init__(
        self,
        backends: Sequence[BackendSpec],
        acceptance: AcceptanceModel,
        quantile: float,
        *,
        halved_tbt_frac: float = 0.01,
    ) -> None:
        """With rates given, plans are compared by power · (1 + h log₂(1 + TBT in ms)), h being `halved_tbt_frac`:
        halving the TBT is worth about the share h of the power.
        """
        self._pools = pools_of(backends)
        self.idle_w = _idle_w(backends)
        """Of all GPUs of the fleet."""
        self.lengths = PlannedLengths(acceptance)
        """What it knows of accept lengths."""
        self._quantile = quantile
        self._halved_tbt_frac = halved_tbt_frac
        self._settings: Mapping[str, Sequence[ArmSetting]] = {
            arm: pool.spec.settings for arm, pool in self._pools.items() if pool.spec.settings
        }
        """All live settings by arm, as launched first."""
        self._merge = DemandMerge(tuple(self._pools), self.lengths)

    def solve(
        self,
        demands: Sequence[Demand],
        *,
        usable: Mapping[str, int] | None = None,
        population: float | None = None,
        settings: Mapping[str, Sequence[ArmSetting]] | None = None,
        current: Plan | None = None,
        keep_within_frac: float = 0.0,
    ) -> Plan:
        """The plan for `demands`: `solving`, run to its end."""
        return finished(
            self.solving(
                demands,
                usable=usable,
                population=population,
                settings=settings,
                current=current,
                keep_within_frac=keep_within_frac,
            )
        )

    def solving(
        self,
        demands: Sequence[Demand],
        *,
        usable: Mapping[str, int] | None = None,
        population: float | None = None,
        settings: Mapping[str, Sequence[ArmSetting]] | None = None,
        current: Plan | None = None,
        keep_within_frac: float = 0.0,
    ) -> Generator[None, None, Plan]:
        """Finds the plan for `demands` in small steps, one assignment scored in each.

        `usable` gives the available backends per arm (default: all). With a `population`, that many requests are in
        the system whatever the plan, and the rates tell only their shares; it is above 0. `settings` are the live
        settings to choose from by arm, those in force first (default: all, as launched first). With a `current` plan
        whose score would be within `keep_within_frac` of the best, its assignment is kept, and so are settings: moving
        traffic costs more than it gains; another plan says what it is `instead_of`. Demands may be empty.
        """
        counts = self._counts(usable)
        if not demands or not any(counts.values()):
            return Plan(arms_of={}, batch_of={}, power_w=0.0, score=0.0)
        merged, member_of = self._merge.merged(demands)
        scored = self._scored(merged, counts, population, settings, keep_within_frac)
        plan = yield from self._searched(merged, scored, current, keep_within_frac)
        return _for_all(plan, demands, member_of)

    def extended(
        self,
        current: Plan,
        demands: Sequence[Demand],
        key: DemandKey,
        *,
        usable: Mapping[str, int] | None = None,
        population: float | None = None,
        settings: Mapping[str, Sequence[ArmSetting]] | None = None,
    ) -> Plan:
        """`current` with the demand of that key, which it does not know, on the arm with which the whole costs least.

        The others keep their arms, and arms the live settings that `current` wants; an arm of which it knows none that
        may be chosen stays at those in force. What is best for the new demand alone is often a backend that nobody else
        needs. `demands` is the whole load, the new one included; others that `current` does not know are left out. The
        rest is as in `solving`.
        """
        counts = self._counts(usable)
        known = [d for d in demands if d.key == key or counts.get(next(iter(current.arms_of.get(d.key, ())), ""))]
        if not any(counts.values()):
            return current
        merged, member_of = self._merge.merged(known)
        member = member_of[key]
        if member != key:  # every arm serves it like one that is planned for
            return replace(current, arms_of={**current.arms_of, key: current.arms_of[member]})
        kept_settings = {
            arm: [next((each for each in choices if each.values == current.settings_of.get(arm)), choices[0])]
            for arm, choices in (self._settings if settings is None else settings).items()
        }
        scored = self._scored(merged, counts, population, kept_settings)
        kept = {demand.key: current.arms_of[demand.key][0] for demand in merged if demand.key != key}
        plans = [scored.plan({**kept, key: arm}) for arm in scored.arms]
        best = min(plans, key=lambda plan: plan.score)
        return replace(best, arms_of={**current.arms_of, key: best.arms_of[key]})

    def evaluate(
        self,
        demands: Sequence[Demand],
        arm_of: Mapping[DemandKey, str],
        *,
        usable: Mapping[str, int] | None = None,
        population: float | None = None,
    ) -> Plan:
        """The plan that gives each demand the usable arm that `arm_of` names: one of those that `solve` chooses from.

        What the arm cannot hold overflows to others. Raises `KeyError` for a demand that `arm_of` does not name.
        """
        return self._scored(demands, self._counts(usable), population).plan(arm_of)

    def _scored(
        self,
        demands: Sequence[Demand],
        counts: Mapping[str, int],
        population: float | None,
        settings: Mapping[str, Sequence[ArmSetting]] | None = None,
        keep_settings_within_frac: float = 0.0,
    ) -> PlanScore:
        return PlanScore(
            UsablePools(self._pools, counts, self.lengths, self._quantile),
            demands,
            idle_w=self.idle_w,
            population=population,
            halved_tbt_frac=self._halved_tbt_frac,
            settings=self._settings if settings is None else settings,
            keep_settings_within_frac=keep_settings_within_frac,
        )

    @staticmethod
    def _searched(
        demands: Sequence[Demand], scored: PlanScore, current: Plan | None, keep_within_frac: float
    ) -> Generator[None, None, Plan]:
        arms = scored.arms
        search: PlanSearch[DemandKey, Plan] = PlanSearch(arms, scored.plan)
        starts = [{demand.key: arm for demand in demands} for arm in arms]
        if len(demands) > FEW_DEMANDS:
            scores = []
            for start in starts:
                plan = yield from search.plan(start)
                scores.append(plan.score)
            starts = [starts[scores.index(min(scores))]]
        starts.append({demand.key: scored.ranked[demand.key][0] for demand in demands})
        kept: Plan | None = None
        if current is not None and all(d.key in current.arms_of and current.arms_of[d.key][0] in arms for d in demands):
            starts.append({demand.key: current.arms_of[demand.key][0] for demand in demands})
            kept = yield from search.plan(starts[-1])
        best = yield from search.best(starts)
        if kept is not None and kept.score <= best.score + keep_within_frac * abs(best.score):
            return kept
        return best if kept is None else replace(best, instead_of=kept)

    def _counts(self, usable: Mapping[str, int] | None) -> dict[str, int]:
        """Backends by arm that may be planned with."""
        counts = {arm: pool.backends for arm, pool in self._pools.items()}
        if usable is None:
            return counts
        return {arm: min(count, usable.get(arm, 0)) for arm, count in counts.items()}


def _for_all(plan: Plan, demands: Sequence[Demand], member_of: Mapping[DemandKey, DemandKey]) -> Plan:
    """The plan of merged demands as one for each of those that they stand for."""
    return replace(
        plan,
        arms_of={demand.key: plan.arms_of[member_of[demand.key]] for demand in demands},
        instead_of=None if plan.instead_of is None else _for_all(plan.instead_of, demands, member_of),
    )


def _idle_w(backends: Sequence[BackendSpec]) -> float:
    """Idle power of all distinct GPUs."""
    watts = {gpu: spec.cost.idle.watts(1) for spec in backends for gpu in spec.gpus}
    return sum(watts.values())
