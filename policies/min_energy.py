"""Least energy within the targets: a plan for the present rates, and a choice per request that follows it.

The planner (selector/core/planner.py) decides, for the arrival rates of each text type and target, which arm serves
them and how full its backends should run, at the least total power. Each request then goes to its planned arm, to the
first backend in the fleet's order that is below the planned batch and where nobody's target breaks; if there is none,
to the arm its overflow is planned for, and so on. With no feasible place left, the least violation.

Rates are arrivals times expected answer lengths, not the throughput achieved: slower service must not look like less
demand. The plan in force is kept unless another saves more than `keep_within_frac` of the power above idle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from selector.core.forecast import Forecast, least_violation
from selector.core.planner import Demand, DemandKey, Plan, Planner
from selector.core.policy import PolicyContext
from selector.core.prediction import Prediction
from selector.core.probing import Prober
from selector.core.types import Decision, FleetView, Outcome, RequestView
from selector.errors import PolicyError

_MOST_DEMANDS = 32
"""Text types × targets that are planned for. Clients may ask for any target; each new one makes a new plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """`rate_window_s`: memory of the arrival rates; shorter follows faster, longer flaps less.

    Every `replan_s` the rates are looked at; a plan is made when they moved by `shift_frac`, or after `renew_s`.
    """

    replan_s: float = 1.0
    renew_s: float = 10.0
    shift_frac: float = 0.2
    rate_window_s: float = 15.0
    keep_within_frac: float = 0.02
    probe_frac: float = 0.01
    """Bound of what is spent on learning whether arms that are not used have become better, as a share of requests and
    of energy (selector/core/probing.py); 0 never probes."""


class _Arrivals:
    """Arrival rate and mean lengths of one demand; older arrivals fade over the window."""

    __slots__ = ("count", "output_tokens", "prompt_tokens", "since_s", "then_s")

    def __init__(self, now_s: float) -> None:
        self.count = self.prompt_tokens = self.output_tokens = 0.0
        self.since_s = self.then_s = now_s

    def add(self, request: RequestView, now_s: float, window_s: float) -> None:
        keep = math.exp((self.then_s - now_s) / window_s)
        self.count = self.count * keep + 1.0
        self.prompt_tokens = self.prompt_tokens * keep + request.prompt_tokens
        self.output_tokens = self.output_tokens * keep + request.expected_output_tokens
        self.then_s = now_s

    def demand(self, key: DemandKey, now_s: float, window_s: float, burstiness: float) -> Demand | None:
        faded = self.count * math.exp((self.then_s - now_s) / window_s)
        if faded < 0.05:
            return None
        # A window that has not filled yet holds 1 − e^(−age/window) of what it would at this rate.
        filled = 1.0 - math.exp(-max(now_s - self.since_s, 1.0) / window_s)
        return Demand(
            text_type=key[0],
            tbt_target_ms=key[1],
            requests_per_s=faded / (window_s * filled),
            prompt_tokens=self.prompt_tokens / self.count,
            output_tokens=max(1.0, self.output_tokens / self.count),
            burstiness=burstiness,
        )


class MinEnergy:
    """See the module."""

    def __init__(self, params: Params, context: PolicyContext) -> None:
        self._params = params
        self._forecast = Forecast(context)
        self._prober = Prober(context, requests_frac=params.probe_frac, energy_frac=params.probe_frac)
        self._planner = Planner(context.backends, context.acceptance, context.tbt_quantile)
        self._arrivals: dict[DemandKey, _Arrivals] = {}
        self._plan: Plan | None = None
        self._planned_s = self._looked_s = -math.inf
        self._planned_for: dict[DemandKey, float] = {}
        self._usable: dict[str, int] = {}

    def decide(self, request: RequestView, fleet: FleetView) -> Decision:
        """Follows the plan, which is renewed first when it is due."""
        key = self._planned_with(request)
        now_s = fleet.now_s
        arrivals = self._arrivals.get(key)
        if arrivals is None:
            arrivals = self._arrivals[key] = _Arrivals(now_s)
        arrivals.add(request, now_s, self._params.rate_window_s)
        plan = self._current_plan(fleet, key)
        predictions = self._forecast.predictions(request, fleet)
        if not predictions:
            return Decision(backend=None, reason="no backend can serve it")
        best, reason = self._following(plan, key, predictions) or least_violation(request, predictions)
        probe = self._prober.instead(request, predictions, best, fleet.now_s)
        if probe is not None:
            best, reason = probe, f"probe of an arm left: {probe.acceptance_samples:.0f} samples so far"
        return self._forecast.decision(request, fleet, best, predictions, reason)

    def _planned_with(self, request: RequestView) -> DemandKey:
        """The demand that the request belongs to: with many of them, the nearest known one."""
        key = text_type, target_ms = request.text_type, request.tbt_target_ms
        if key in self._arrivals or len(self._arrivals) < _MOST_DEMANDS:
            return key

        def apart(known: DemandKey) -> tuple[bool, float]:
            return known[0] != text_type, abs(_tokens_per_ms(known[1]) - _tokens_per_ms(target_ms))

        return min(self._arrivals, key=apart)

    def _following(self, plan: Plan, key: DemandKey, predictions: list[Prediction]) -> tuple[Prediction, str] | None:
        """The first place by the plan's preference; beyond planned batches, the least marginal energy; else `None`."""
        feasible = [found for found in predictions if found.feasible]
        for rank, arm in enumerate(plan.arms_of.get(key, ())):
            limit = plan.batch_of.get(arm)
            for found in feasible:
                if found.arm == arm and limit is not None and found.batch <= limit:
                    words = "planned" if rank == 0 else f"overflow of {plan.arms_of[key][0]}"
                    return found, f"{words}: request {found.batch} of {limit}"
        if not feasible:
            return None
        best = min(feasible, key=lambda found: found.marginal_j_per_accepted_token)
        return best, f"beyond the plan, least marginal energy: {best.marginal_j_per_accepted_token:.3f} J/token"

    def _current_plan(self, fleet: FleetView, key: DemandKey) -> Plan:
        usable: dict[str, int] = {}
        for view in fleet.backends:
            usable[view.arm] = usable.get(view.arm, 0) + view.available
        plan, now_s = self._plan, fleet.now_s
        forced = plan is None or usable != self._usable or key not in plan.arms_of
        if forced or now_s - self._looked_s >= self._params.replan_s:
            self._looked_s = now_s
            demands: list[Demand] = []
            for known, arrivals in list(self._arrivals.items()):
                demand = arrivals.demand(known, fleet.now_s, self._params.rate_window_s, self._forecast.burstiness)
                if demand is None:
                    del self._arrivals[known]
                else:
                    demands.append(demand)
            if forced or now_s - self._planned_s >= self._params.renew_s or self._shifted(demands):
                plan = self._planner.solve(
                    demands, usable=usable, current=plan, keep_within_frac=self._params.keep_within_frac
                )
                self._plan, self._planned_s, self._usable = plan, now_s, usable
                self._planned_for = {demand.key: demand.tokens_per_s for demand in demands}
        assert plan is not None
        return plan

    def _shifted(self, demands: list[Demand]) -> bool:
        """Whether the rates differ from those planned for by more than `shift_frac` of them."""
        rates = {demand.key: demand.tokens_per_s for demand in demands}
        moved = sum(abs(rates.get(key, 0.0) - self._planned_for.get(key, 0.0)) for key in {*rates, *self._planned_for})
        return moved > self._params.shift_frac * sum(self._planned_for.values())

    def observe(self, outcome: Outcome) -> None:
        """The acceptance model, which the planner reads, has learnt it already."""


def _tokens_per_ms(tbt_target_ms: float | None) -> float:
    """The pace that a target asks for: none without one."""
    return 0.0 if tbt_target_ms is None else 1.0 / tbt_target_ms


def make_policy(params: Params, context: PolicyContext) -> MinEnergy:
    """Raises `PolicyError` for times that are not above 0 and a share that is below it."""
    for name in ("replan_s", "renew_s", "rate_window_s"):
        value = getattr(params, name)
        if not 0 < value < math.inf:
            raise PolicyError(f"policy min_energy: {name}", f"is {value}", "give seconds above 0")
    for name in ("keep_within_frac", "shift_frac", "probe_frac"):
        value = getattr(params, name)
        if not 0 <= value < math.inf:
            raise PolicyError(f"policy min_energy: {name}", f"is {value}", "give a share such as 0.02, 0 for none")
    return MinEnergy(params, context)
