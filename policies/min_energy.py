"""Least energy within the targets: a plan for the present load, and a choice per request that follows it.

The planner (selector/core/planner.py) decides, for each text type and target, which arm serves it, how many of the
arm's backends run and how full, at the least energy. Each request then goes to its planned arm where nobody's target
breaks: to the first backend below the planned batch or, when the plan shares the load between so many backends, to the
least loaded of them. If there is none, to the arm its overflow is planned for, and so on. With no feasible place left,
the least violation.

Under open arrivals the plan is for the rates: arrivals times expected answer lengths, not the throughput achieved,
since slower service must not look like less demand. Where clients wait for their answers it is for the requests in the
system (selector/core/demandestimate.py tells which). A plan in force is kept unless another saves more than
`keep_within_frac`, and more while little is known of its accept lengths. Where an arm has live settings, the plan says
at which of them its backends run, and decisions ask for them; an arm of which a backend refuses stays as it is.

The load is looked at and plans are made while requests end, a few assignments at a time: no decision waits for either
where ends are frequent. Only a change of the usable backends is planned for at once, in the decision; a demand that the
plan in force does not know is at first planned for with the arms of the others as they are.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from selector.core.contention import DRAINING
from selector.core.demandestimate import DemandEstimate
from selector.core.forecast import Forecast, Look
from selector.core.handover import Handover
from selector.core.livesettings import ArmSetting
from selector.core.placing import Placing
from selector.core.plan import Plan
from selector.core.plannedload import PlannedLoad
from selector.core.planner import Planner
from selector.core.policy import PolicyContext
from selector.core.poolload import DemandKey
from selector.core.prediction import Prediction
from selector.core.probing import Prober
from selector.core.sessions import Prefix, Sessions
from selector.core.surelengths import SureLengths
from selector.core.types import BackendView, Decision, FleetView, Outcome, RequestView
from selector.errors import PolicyError

_SCORED_AT_ONCE = 1
"""Assignments scored each time a request ends, and more when that is seldom: 0.2 to 1 ms each."""
_SCORED_PER_S = 100.0
_TOLD_WHOLE = 6
"""Fleets up to this size have every backend among a decision's candidates."""
_MOST_SCORED_AT_ONCE = 20
_UNSURE_DEVIATIONS = 0.5
"""Standard deviations of what is known of the accept length of all tokens."""
_AHEAD_S = 5.0
"""Where servers share a GPU, plans are for a rising load as it will be then: in a peak a change comes too late."""
_QUIET_S, _SCORED_WHEN_QUIET = 0.2, 5
"""Where nothing ends for so long, a decision scores some."""
_LOOK_WAITS_S = 0.05
"""So long a look that is due waits for an end; then the next decision looks. With few requests a second that is nearly
always so: looks that came by an end later would miss the start of a peak. Where servers share a GPU none waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """`rate_window_s`: memory of the arrival rates; shorter follows faster, longer flaps less.

    Every `replan_s` the load is looked at, as the last decision saw it; a plan is made when it moved by `shift_frac`,
    or an accept length by half as much, or after `renew_s`. At most `probe_frac` of requests and of energy is spent on
    learning whether arms that are not used have become better (selector/core/probing.py; 0 never probes). A session's
    prefix counts as cached for `prefix_kept_s`.
    """

    replan_s: float = 1.0
    renew_s: float = 10.0
    shift_frac: float = 0.2
    rate_window_s: float = 15.0
    keep_within_frac: float = 0.02
    probe_frac: float = 0.01
    prefix_kept_s: float = 300.0


class MinEnergy:
    """See the module."""

    def __init__(self, params: Params, context: PolicyContext) -> None:
        self._params = params
        self._forecast = Forecast(context, SureLengths)
        shared = any(self._forecast.neighbours)
        self._ahead_s = _AHEAD_S if shared else 0.0
        self._look_waits_s = 0.0 if shared else _LOOK_WAITS_S
        self._acceptance = context.acceptance
        self._planner = Planner(context.backends, context.acceptance, context.tbt_quantile)
        self._estimate = DemandEstimate(window_s=params.rate_window_s, sharing_gpus=shared)
        self._sessions = Sessions(kept_s=params.prefix_kept_s)
        self._specs = context.backends
        self._index = {spec.name: index for index, spec in enumerate(context.backends)}
        self._of_arm = self._forecast.of_arm
        self._prober = Prober(context, requests_frac=params.probe_frac, energy_frac=params.probe_frac)
        self._placing = Placing(context, self._forecast)
        self._plan: Plan | None = None
        self._planned_for = PlannedLoad([], None)
        self._available: list[bool] = []
        self._usable: dict[str, int] = {}
        self._wanted: Plan | None = None
        """A plan that waits for the servers that it leaves to have little to do."""
        self._handover = Handover(self._of_arm, self._forecast.neighbours, holds_s=params.renew_s)
        self._making: Generator[None, None, Plan] | None = None
        self._making_for = self._planned_for
        self._now_s = self._planned_s = self._looked_s = self._scored_s = -math.inf
        self._seen: FleetView | None = None
        """The fleet at the last decision."""

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """Follows the plan, which is renewed first where it knows nothing of the request or the fleet."""
        now_s = self._now_s = fleet.now_s
        prefix = self._sessions.prefix(request, now_s)
        key = self._estimate.arrived(request, now_s)
        look = self._forecast.look(request, fleet)
        plan = self._current_plan(look, key)
        self._seen = fleet
        found = self._placing.place(plan, key, look)
        if found is None:
            return Decision(backend=None, reason="no backend can serve it")
        best, reason = found
        if best.feasible:
            best, reason = self._where_its_prefix_is(look, prefix, best, reason)
        probe = self._prober.instead(look, best, now_s)
        if probe is not None:
            best, reason = probe, f"probe of an arm left: {probe.acceptance_samples:.0f} samples so far"
        cached = min(prefix.tokens, request.prompt_tokens - 1) if prefix and prefix.backend == best.backend else 0.0
        self._sessions.sent(request, best.backend, now_s)
        told = partial(self._told, look, plan.arms_of.get(key, ()))
        decision = self._forecast.decision(request, fleet, best, told, reason, cached_tokens=cached)
        wanted = plan.settings_of.get(best.arm)
        return decision if wanted is None else _asking_for(wanted, decision, fleet.backends[self._index[best.backend]])

    def _where_its_prefix_is(
        self, look: Look, prefix: Prefix | None, best: Prediction, reason: str
    ) -> tuple[Prediction, str]:
        """The backend that served the session last, if the prefill saved is worth what it costs to decode there."""
        if prefix is None or prefix.backend == best.backend:
            return best, reason
        index = self._index[prefix.backend]
        there = look.at(index)
        if there is None or not there.feasible:
            return best, reason
        cached = min(prefix.tokens, float(look.request.prompt_tokens - 1))
        _, saved_j = self._specs[index].cost.prefill.work(cached)
        if saved_j <= _extra_j(look.request, there, best):
            return best, reason
        return there, f"its prefix is there: saves {saved_j:.0f} J of prefill"

    def _told(self, look: Look, arms: Sequence[str]) -> list[Prediction]:
        """The candidates of a decision: every backend of a small fleet; of a large one those that were considered.

        Considered are the places that were looked at and, for comparison, one of the next arm by the plan's preference.
        """
        if len(self._specs) <= _TOLD_WHOLE:
            return look.all()
        made = look.made()
        known = {found.arm for found in made}
        for arm in arms:
            if arm not in known:
                for index in self._of_arm[arm]:
                    if (found := look.at(index)) is not None:
                        return [*made, found]
        return made

    # ---- planning

    def _current_plan(self, look: Look, key: DemandKey) -> Plan:
        fleet = look.fleet
        available = [view.available for view in fleet.backends]
        plan, now_s = self._plan, fleet.now_s
        if plan is None or available != self._available:
            self._available = available
            self._usable = {arm: sum(available[index] for index in indices) for arm, indices in self._of_arm.items()}
            self._begin(self._load(fleet), fleet)
            self._score(None)
            self._wanted = None
            assert self._plan is not None
            plan = self._plan
        if key not in plan.arms_of:
            return self._with_demand(plan, fleet, key)
        if self._making is not None:
            if now_s - self._scored_s >= _QUIET_S:
                self._score(_SCORED_WHEN_QUIET)
        elif self._wanted is not None and self._hands_over(self._wanted, plan, look):
            self._put_in_force(self._wanted, None)
        elif now_s - self._looked_s >= self._params.replan_s + self._look_waits_s:
            self._look_at_load(fleet)
        return self._plan or plan

    def _look_at_load(self, fleet: FleetView) -> None:
        """Begins a plan where the load has moved, or the one in force is old."""
        load = self._load(fleet)
        renewed = fleet.now_s - self._planned_s >= self._params.renew_s
        if renewed or load.moved_from(self._planned_for, self._params.shift_frac):
            self._begin(load, fleet)

    def _with_demand(self, plan: Plan, fleet: FleetView, key: DemandKey) -> Plan:
        """The plan in force with a demand that it does not know, until all are planned anew."""
        load = self._load(fleet)
        plan = self._planner.extended(
            plan,
            load.demands,
            key,
            usable=self._usable,
            population=load.population,
            settings=self._settings(fleet),
        )
        self._put_in_force(plan, self._wanted)
        self._begin(load, fleet)
        return plan

    def _load(self, fleet: FleetView) -> PlannedLoad:
        self._looked_s = fleet.now_s
        demands = self._estimate.demands(fleet.now_s, self._forecast.prefill_work, ahead_s=self._ahead_s)
        text_types = {demand.text_type for demand in demands}
        means = [(arm, self._acceptance.mean_accept_lengths(arm)) for arm in self._of_arm]
        lengths = {(arm, text_type): of_arm[text_type] for arm, of_arm in means for text_type in text_types}
        if not self._estimate.closed:
            return PlannedLoad(demands, None, lengths)
        return PlannedLoad(demands, 1.0 + sum(view.batch for view in fleet.backends), lengths)

    def _settings(self, fleet: FleetView) -> dict[str, list[ArmSetting]]:
        """Live settings that can be planned with by arm, those in force first."""
        choices = {}
        for arm, indices in self._of_arm.items():
            usable = [index for index in indices if fleet.backends[index].available] or indices
            spec, view = self._specs[usable[0]], fleet.backends[usable[0]]
            if (in_force := spec.setting(view.settings)) is not None:
                fixed = any(fleet.backends[index].settings_fixed for index in usable)
                others = [] if fixed else [setting for setting in spec.settings if setting is not in_force]
                choices[arm] = [in_force, *others]
        return choices

    def _begin(self, load: PlannedLoad, fleet: FleetView) -> None:
        self._making_for = load
        self._scored_s = self._now_s
        self._making = self._planner.solving(
            load.demands,
            usable=self._usable,
            population=load.population,
            settings=self._settings(fleet),
            current=self._plan,
            keep_within_frac=self._params.keep_within_frac + self._unsure_frac(load),
        )

    def _unsure_frac(self, load: PlannedLoad) -> float:
        """By how much more another plan has to be better where clients wait for answers.

        Requests that are there all go with a plan, and near plans would take turns with what each learns of its arms.
        """
        if self._plan is None or load.population is None:
            return 0.0
        rates: dict[tuple[str, str], float] = defaultdict(float)
        for (text_type, target_ms), arms in self._plan.arms_of.items():
            rates[arms[0], text_type] += load.rates.get((text_type, target_ms), 0.0)
        return _UNSURE_DEVIATIONS * self._planner.lengths.unsure_frac(rates)

    def _score(self, assignments: int | None) -> None:
        """Goes on making the plan: so many assignments, or to the end."""
        if self._making is None:
            return
        self._scored_s = self._now_s
        try:
            while assignments is None or assignments > 0:
                next(self._making)
                if assignments is not None:
                    assignments -= 1
        except StopIteration as end:
            self._planned_for, self._planned_s = self._making_for, self._now_s
            self._making = None
            self._follow(end.value)

    def _follow(self, plan: Plan) -> None:
        """Puts a new plan in force; one that wakes servers beside others that work waits, see `handover`."""
        if plan.instead_of is not None and self._handover.wakes(plan, plan.instead_of):
            self._put_in_force(plan.instead_of, plan)
        else:
            self._put_in_force(plan, None)

    def _put_in_force(self, plan: Plan, wanted: Plan | None) -> None:
        self._plan, self._wanted = plan, wanted
        self._forecast.draining = self._handover.left(plan, self._available)

    def _hands_over(self, wanted: Plan, in_force: Plan, look: Look) -> bool:
        return self._handover.is_due(
            wanted,
            in_force,
            look.fleet,
            output_tokens=self._planned_for.output_tokens,
            prefill_frac=self._planned_for.prefill_frac(self._specs[0].cost.prefill),
            keeps_targets=partial(look.keeps_targets, slowdown=DRAINING),
        )

    def state(self) -> dict[str, object]:
        """The plan in force."""
        if self._plan is None:
            return {"plan": [], "arms": []}
        return {**self._plan.state(self._planned_for.rates), "planned_s": self._planned_s}

    def observe(self, outcome: Outcome) -> None:
        """The acceptance model, which the planner reads, has learnt it already; a look or plan that is due is made."""
        self._estimate.ended(outcome)
        self._placing.ended(outcome)
        if self._making is not None:
            waited_s = self._now_s - self._scored_s
            self._score(min(_MOST_SCORED_AT_ONCE, _SCORED_AT_ONCE + int(waited_s * _SCORED_PER_S)))
        elif self._seen and self._look_waits_s and self._now_s - self._looked_s >= self._params.replan_s:
            self._look_at_load(self._seen)


def _asking_for(wanted: Mapping[str, float], decision: Decision, there: BackendView) -> Decision:
    """The decision with the live settings that the plan wants; the reason says so where others are in force."""
    if wanted == there.settings or there.settings_fixed:
        return replace(decision, settings=wanted)
    words = ", ".join(f"{name} {value:g}" for name, value in wanted.items())
    return replace(decision, settings=wanted, reason=f"{decision.reason}; the plan wants {words}")


def _extra_j(request: RequestView, one: Prediction, than: Prediction) -> float:
    """Joules of decoding that the request needs more on `one`."""
    per_token = one.marginal_j_per_accepted_token - than.marginal_j_per_accepted_token
    return per_token * request.expected_output_tokens


def make_policy(params: Params, context: PolicyContext) -> MinEnergy:
    """Raises `PolicyError` for times that are not above 0 and a share that is below it."""
    for name in ("replan_s", "renew_s", "rate_window_s", "prefix_kept_s"):
        value = getattr(params, name)
        if not 0 < value < math.inf:
            raise PolicyError(f"policy min_energy: {name}", f"is {value}", "give seconds above 0")
    for name in ("keep_within_frac", "shift_frac", "probe_frac"):
        value = getattr(params, name)
        if not 0 <= value < math.inf:
            raise PolicyError(f"policy min_energy: {name}", f"is {value}", "give a share such as 0.02, 0 for none")
    return MinEnergy(params, context)
