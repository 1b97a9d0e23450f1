"""Which fleet serves a load at the least energy: ranked by the planner's model, then simulated.

    load ──▶ four levels (quarters of the time, by how busy they are) ──▶ search over fleets, each scored by the planner
         ──▶ the best few, and the best that runs one arm alone ──▶ simulated with `min_energy` ──▶ best and runner-up

The model is fluid and says nothing of what happens in the seconds around a burst; that is why its favourites are
simulated before one is named. The search changes one backend's arm at a time, from every fleet of a single arm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from selector.core.plan import Plan
from selector.core.planner import Planner
from selector.files.fleet import Backend, Fleet, LoadedFleet
from selector.files.profile import Profile
from selector.simulator.arrivals import Load
from selector.simulator.loadlevels import LoadLevel, load_levels
from selector.simulator.report import PolicyResult
from selector.simulator.run import WHOLE_RUN, Window
from selector.simulator.trial import simulate_policy

_NEGLIGIBLE = 1e-9
_ABOUT_AS_SHORT_FRAC = 0.01
"""Attainments that differ by less are not told apart."""
TTFT_P99_MS = 2_000.0
"""A fleet that lets requests wait longer than this is too small, however well it serves those that got in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLimits:
    """What every backend of a planned fleet has."""

    max_running_requests: int = 64
    max_kv_tokens: int = 400_000
    max_context_tokens: int = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOption:
    """A fleet with what the model expects of it and, once it was tried, what its simulation gave."""

    arms: tuple[str, ...]
    """The arm of each backend, sorted."""
    expected_j_per_accepted_token: float
    """Without prefill, with penalties for missed targets."""
    expected_within_targets: bool
    result: PolicyResult | None = None

    @property
    def in_words(self) -> str:
        """`3 × dspark-8, 1 × none`."""
        return ", ".join(f"{self.arms.count(arm)} × {arm}" for arm in dict.fromkeys(self.arms))

    @property
    def worst_attainment(self) -> float:
        """Of any text type; 1 where nobody has a target. 0 before it was simulated, and where requests were lost."""
        if self.result is None or self.result.requests_rejected or self.result.requests_unfinished:
            return 0.0
        return min(self.result.attainment_by_text_type.values(), default=1.0)

    def shortfall(self, quantile: float) -> float:
        """What text types attain less than the quantile asked for, in their mean; 1 as `worst_attainment` is 0."""
        if self.result is None or self.result.requests_rejected or self.result.requests_unfinished:
            return 1.0
        met = self.result.attainment_by_text_type.values()
        return sum(max(0.0, quantile - each) for each in met) / max(1, len(met))

    @property
    def ttft_p99_ms(self) -> float:
        """Infinite before it was simulated."""
        if self.result is None or self.result.ttft_p99_ms is None:
            return float("inf")
        return self.result.ttft_p99_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """The options that were simulated, the best one first."""

    options: tuple[FleetOption, ...]
    feasible: bool
    """Whether the best one meets the targets at the quantile asked for, on every text type, loses no request and lets
    none queue beyond the bound on the time to the first token.
    """

    @property
    def best(self) -> FleetOption:
        """The fleet to run."""
        return self.options[0]

    @property
    def runner_up(self) -> FleetOption | None:
        """The next best, if there is another."""
        return self.options[1] if len(self.options) > 1 else None


def plan_fleet(
    profile_name: str,
    profile: Profile,
    load: Load,
    gpus: int,
    *,
    limits: FleetLimits | None = None,
    arms: Sequence[str] | None = None,
    quantile: float = 0.9,
    ttft_p99_ms: float = TTFT_P99_MS,
    tried: int = 8,
    window: Window = WHOLE_RUN,
    until_s: float = float("inf"),
    seed: int = 0,
) -> FleetPlan:
    """The fleet of `gpus` GPUs, one backend each, that serves `load` at least energy.

    `tried` fleets are simulated, those with the least expected cost and one that runs a single arm. Where none is
    expected to meet the targets, most of them are those that would be best if there were none. `arms` leaves out the
    other arms of the profile. Raises `FleetError` for an arm that is not in the profile.
    """
    search = _FleetSearch(
        profile_name, profile, tuple(arms or profile.arms), load_levels(load, profile, window), limits or FleetLimits()
    )
    simulated = [
        replace(
            option,
            result=simulate_policy(
                search.fleet(option.arms), load, "min_energy", seed=seed, window=window, until_s=until_s
            ),
        )
        for option in _worth_trying(search, gpus, tried)
    ]
    return _judged(simulated, quantile, ttft_p99_ms)


def plan_fleet_size(
    profile_name: str,
    profile: Profile,
    load: Load,
    most_gpus: int,
    *,
    limits: FleetLimits | None = None,
    arms: Sequence[str] | None = None,
    quantile: float = 0.9,
    ttft_p99_ms: float = TTFT_P99_MS,
    tried: int = 8,
    seed: int = 0,
) -> FleetPlan:
    """`plan_fleet` for as many GPUs as need least energy: one more each time until that is no longer less.

    Where even `most_gpus` do not meet the targets it is the plan for so many.
    """
    best: FleetPlan | None = None
    for gpus in range(1, most_gpus + 1):
        plan = plan_fleet(
            profile_name,
            profile,
            load,
            gpus,
            limits=limits,
            arms=arms,
            quantile=quantile,
            ttft_p99_ms=ttft_p99_ms,
            tried=tried,
            seed=seed,
        )
        if best is not None and best.feasible and not (plan.feasible and _joules(plan.best) < _joules(best.best)):
            break
        best = plan
    assert best is not None
    return best


def _joules(option: FleetOption) -> float:
    joules = option.result.j_per_accepted_token if option.result is not None else None
    return float("inf") if joules is None else joules


def _worth_trying(search: _FleetSearch, gpus: int, tried: int) -> list[FleetOption]:
    """See `plan_fleet`."""
    ranked = search.ranked(gpus)
    if not ranked[0].expected_within_targets:
        # What misses least by the model need not in the seconds of a run, and may need much more energy.
        without = [search.option(each.arms) for each in search.without_targets().ranked(gpus)]
        missing_least = ranked[: tried // 4]
        ranked = [*missing_least, *(option for option in without if option not in missing_least)]
    chosen = list(ranked[:tried])
    single = next((option for option in ranked if len(set(option.arms)) == 1), None)
    if single is not None and single not in chosen:
        chosen = [*chosen[: max(1, tried - 1)], single]
    return chosen


def _judged(options: Sequence[FleetOption], quantile: float, ttft_p99_ms: float) -> FleetPlan:
    """By energy among those that meet the targets at the quantile asked for; the others after.

    Where none does, by energy among those that serve no worse than the best fleet of one arm: their text types fall
    short of the quantile by no more, in the mean, so that one type that no fleet can serve does not decide for all. A
    fleet that meets the targets by letting requests queue comes last.
    """
    prompt = [option for option in options if option.ttft_p99_ms <= ttft_p99_ms]
    bar = min((option.shortfall(quantile) for option in prompt), default=1.0)
    if bar > 0.0:
        single = [option.shortfall(quantile) for option in prompt if len(set(option.arms)) == 1]
        bar = max(bar, min(single, default=0.0)) + _ABOUT_AS_SHORT_FRAC

    def rank(option: FleetOption) -> tuple[bool, bool, float]:
        return option.ttft_p99_ms > ttft_p99_ms, option.shortfall(quantile) > bar, _joules(option)

    ordered = tuple(sorted(options, key=rank))
    best = ordered[0]
    return FleetPlan(options=ordered, feasible=best.worst_attainment >= quantile and best.ttft_p99_ms <= ttft_p99_ms)


class _FleetSearch:
    def __init__(
        self, profile_name: str, profile: Profile, arms: Sequence[str], levels: Sequence[LoadLevel], limits: FleetLimits
    ) -> None:
        self._profile_name = profile_name
        self._profile = profile
        self._arms = arms
        self._levels = levels
        self._limits = limits
        self._options: dict[tuple[str, ...], FleetOption] = {}

    def fleet(self, arms: Sequence[str]) -> LoadedFleet:
        """A fleet with one backend per arm named, each on a GPU of its own."""
        backends = tuple(
            Backend(
                name=f"b{index}-{arm}",
                arm=arm,
                gpus=(f"gpu{index}",),
                profile=self._profile_name,
                max_running_requests=self._limits.max_running_requests,
                max_kv_tokens=self._limits.max_kv_tokens,
                max_context_tokens=self._limits.max_context_tokens,
            )
            for index, arm in enumerate(arms)
        )
        fleet = Fleet(version=1, target=self._profile.target.name, backends=backends)
        return LoadedFleet(fleet, "plan", {self._profile_name: self._profile})

    def without_targets(self) -> _FleetSearch:
        """The same search for the same load without its targets."""
        levels = [
            replace(level, demands=tuple(demand._replace(tbt_target_ms=None) for demand in level.demands))
            for level in self._levels
        ]
        return _FleetSearch(self._profile_name, self._profile, self._arms, levels, self._limits)

    def ranked(self, gpus: int) -> list[FleetOption]:
        """Every fleet of that many GPUs that the search looked at, the best one first."""
        singles = [self.option((arm,) * gpus) for arm in self._arms]
        best = min(singles, key=_cost)
        while True:
            moved = [self.option(arms) for arms in self._neighbours(best.arms)]
            better = min(moved, key=_cost, default=best)
            if _cost(better) >= _cost(best):
                break
            best = better
        return sorted((option for option in self._options.values() if len(option.arms) == gpus), key=_cost)

    def _neighbours(self, arms: tuple[str, ...]) -> set[tuple[str, ...]]:
        """Fleets with the arm of one or two backends changed for another one."""
        found = set()
        for given in set(arms):
            kept = list(arms)
            kept.remove(given)
            for taken in self._arms:
                found.add(tuple(sorted([*kept, taken])))
                if given in kept:
                    twice = list(kept)
                    twice.remove(given)
                    found.add(tuple(sorted([*twice, taken, taken])))
        return found - {arms}

    def option(self, arms: Sequence[str]) -> FleetOption:
        """The fleet of those arms as the planner expects it."""
        key = tuple(sorted(arms))
        option = self._options.get(key)
        if option is None:
            option = self._options[key] = self._scored(key)
        return option

    def _scored(self, arms: tuple[str, ...]) -> FleetOption:
        context = self.fleet(arms).policy_context()
        planner = Planner(context.backends, context.acceptance, context.tbt_quantile)
        power_w = tokens_per_s = 0.0
        within = True
        for level in self._levels:
            plan = planner.solve(level.demands, population=level.population)
            power_w += plan.power_w + planner.idle_w
            tokens_per_s += _served(plan)
            within = within and plan.within_targets
        return FleetOption(
            arms=arms,
            expected_j_per_accepted_token=power_w / max(tokens_per_s, _NEGLIGIBLE),
            expected_within_targets=within,
        )


def _cost(option: FleetOption) -> tuple[bool, float]:
    return not option.expected_within_targets, option.expected_j_per_accepted_token


def _served(plan: Plan) -> float:
    return sum(plan.tokens_per_s_of.values())
