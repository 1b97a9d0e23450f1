"""What an assignment of demands to arms costs: how many backends of each arm run, at what batch, at what power.

Demands get their places each on its own arm first. Independent requests do not come sorted: where those planned for
an arm are more than its backends hold within the targets, each demand has the same share of its requests there.
(Where clients wait for answers, places are given in the order of the rates: with equal shares, mixed texts cost up to
4 % more.) The rest goes, in the order of the rates, to the arm that serves so much of it at the least cost, and so
on. How a pool then runs depends on what decides the load:

    rates given          Clients come whatever happens. Backends are filled to b* one after the other and the rest
                         idles: a pool of rate R runs ⌊R / r(b*)⌋ full backends and a partial one. Score: the power,
                         with what it costs that requests come and go and wake the next arm (`openpools`).
    population given     N clients wait for answers before they ask again, in the shares of the rates. A pool runs k
                         equal backends; the rates are scaled by the one factor at which N requests are in the system.
                         Score: joules per token, idle power of the fleet included, since it is spent while they wait,
                         in the mean over how the pools' parts of the N come and go (`closedpools`).

Where an arm has live settings, it runs at those with the least score, tried one arm after the other; those in force are
kept unless others score better by a given share, since a change is not free.

In the fluid limit the second is to minimise, pool by pool, joules per token + (P_idle of the fleet / N) · TBT: a
request in the system is charged its part of the idle power. With rates given that price is 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from selector.core.closedpools import ClosedPool, mean_run
from selector.core.livesettings import ArmSetting
from selector.core.openpools import Asked, mean_open_run
from selector.core.plannedlengths import Lengths
from selector.core.plansearch import clearly_less
from selector.core.policy import BackendSpec
from selector.core.poolload import Demand, DemandKey, PoolCurve, PoolLoad

UNSERVED_J_PER_TOKEN = 1e3
"""Price of a token that no place is left for: above any real cost, so that serving always wins."""
VIOLATION_J_PER_TOKEN = 1e1
"""Price of a token served outside its target: above any real cost, below not serving."""
_GROWN = (2.0, 4.0)
"""Loads, as multiples of the present one, for which a choice among servers that share a GPU has to be good too."""
_TURNS_FRAC = 0.03
"""What servers of one GPU have to save by working together: they hold less of a peak, and prefills take turns too."""
_FEW_REQUESTS = 4.0
"""What overflows by chance alone comes to about so many requests at a time."""
_MOST_SWAYING = 512
"""Requests in the system up to which a score counts that pools' parts of them come and go: of more it is little."""
_BISECTIONS = 14
_CLEARLY_FRAC = 1e-6
"""By what share of the joules another number of backends must save to be taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the per-request choice follows."""

    arms_of: Mapping[DemandKey, tuple[str, ...]]
    """Arms by preference: the planned one first, then where its overflow goes."""
    batch_of: Mapping[str, int]
    """Requests up to which a backend of the arm is filled before the next one: its planned mean and a deviation."""
    backends_of: Mapping[str, int] = field(default_factory=dict)
    """Backends of the arm that share its requests evenly; an arm that is not named fills one after the other."""
    power_w: float
    """Power above idle of the whole plan, penalties included."""
    score: float
    """What plans are compared by."""
    tokens_per_s_of: Mapping[str, float] = field(default_factory=dict)
    """Planned rate by arm."""
    settings_of: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Live settings of the backends of each planned arm that has some."""
    within_targets: bool = True
    """Whether every demand has places within its target, and all clients do where they wait for answers."""
    hopeless: bool = False
    """Whether clients wait for answers to a demand that no batch of its arms serves within its target."""
    instead_of: Plan | None = None
    """The assignment in force planned for the same load, where this one costs less."""

    @property
    def closed(self) -> bool:
        """Whether it is for clients that wait for their answers: their requests are shared between backends."""
        return bool(self.backends_of)


@dataclass(frozen=True, slots=True)
class Pool:
    """The equal backends of one arm."""

    spec: BackendSpec
    """The one with the smallest batch limit stands for all."""
    backends: int
    neighbours: tuple[str, ...] = ()
    """Arms whose backends share a GPU with this arm's."""


@dataclass(frozen=True, slots=True)
class _Held:
    """One pool with its part of the demands."""

    arm: str
    curve: PoolCurve
    tokens_per_s: float
    backends: int
    """Those that are usable."""


class _Run(NamedTuple):
    """Pools that serve their parts of the demands at given rates."""

    power_w: float
    """Above idle."""
    score: float
    """The power, and what slower answers are worth less."""
    served: float
    """Tokens per second."""
    woken: tuple[str, ...] = ()
    """Arms that serve only what others turn away."""


class PlanScore:
    """Scores assignments of one set of demands over the usable backends."""

    def __init__(
        self,
        pools: Mapping[str, Pool],
        counts: Mapping[str, int],
        demands: Sequence[Demand],
        acceptance: Lengths,
        quantile: float,
        *,
        idle_w: float,
        population: float | None,
        halved_tbt_frac: float,
        settings: Mapping[str, Sequence[ArmSetting]],
        keep_settings_within_frac: float,
    ) -> None:
        """`settings` by arm are those to choose from, the ones in force first; an arm without is not named."""
        self._pools = pools
        self._counts = counts
        self._demands = demands
        self._acceptance = acceptance
        self._quantile = quantile
        self._idle_w = idle_w
        self._population = population
        self._holding_w = idle_w / population if population else 0.0
        """Price of a request in the system: its part of the idle power where clients wait."""
        self._halved_tbt_frac = halved_tbt_frac
        self._settings = settings
        self._keep_settings_within_frac = keep_settings_within_frac
        self._in_force = {arm: choices[0] for arm, choices in settings.items()}
        self._setting_of = self._in_force
        """Those of the plan being scored."""
        self._curves: dict[object, PoolCurve] = {}
        self.arms = [arm for arm, count in counts.items() if count > 0]
        self._order = sorted(range(len(demands)), key=lambda i: -demands[i].tokens_per_s)
        self.ranked = {demand.key: self._ranked(demand) for demand in demands}
        """Arms by the cost of a token of each demand alone, at the best batch."""

    def _ranked(self, demand: Demand) -> tuple[str, ...]:
        def price(arm: str) -> float:
            curves = [self._curve_at(arm, setting, [(demand, 1.0)], 1) for setting in self._settings.get(arm, (None,))]
            return min(
                curve.least_cost(self._holding_w) + VIOLATION_J_PER_TOKEN * curve.full.missed_frac for curve in curves
            )

        return tuple(sorted(self.arms, key=price))

    def plan(self, arm_of: Mapping[DemandKey, str]) -> Plan:
        """The plan of an assignment, at its best live settings. Raises `KeyError` for a demand it does not name."""
        self._setting_of = self._in_force
        kept = best = self._at_settings(arm_of)
        if self._settings:
            setting_of = self._in_force
            for arm in sorted(self._settings.keys() & set(arm_of.values())):
                for setting in self._settings[arm][1:]:
                    self._setting_of = {**setting_of, arm: setting}
                    found = self._at_settings(arm_of)
                    if clearly_less(found.score, best.score, _CLEARLY_FRAC):
                        best, setting_of = found, self._setting_of
        return best if clearly_less(best.score, kept.score, self._keep_settings_within_frac) else kept

    def _at_settings(self, arm_of: Mapping[DemandKey, str]) -> Plan:
        """The plan of an assignment at the live settings `_setting_of`."""
        arms_of = {demand.key: (arm_of[demand.key], *self._overflow(demand, arm_of)) for demand in self._demands}
        if self._population is not None:
            return self._shared(arms_of, self._population)
        plan, woken = self._filled(arms_of)
        if len(woken) > 1:  # what is best for the overflow of each alone may cost more than one arm for all
            for arm in woken:
                found, _ = self._filled({key: _overflowing_to(arm, arms) for key, arms in arms_of.items()})
                plan = min(plan, found, key=lambda each: each.score)
        return plan

    def _overflow(self, demand: Demand, arm_of: Mapping[DemandKey, str]) -> Sequence[str]:
        """The other arms for what the planned one cannot hold, by the cost of so much, a few requests at least.

        With several demands that wait for answers by the cost at the best batch: see `_most_in_system`.
        """
        chosen = arm_of[demand.key]
        others = [arm for arm in self.ranked[demand.key] if arm != chosen]
        if len(others) < 2 or (self._population is not None and len(self._demands) > 1):
            return others
        full = self._curve(chosen, [(demand, 1.0)], 1).full
        if self._population is None:
            rest_tokens_per_s = demand.tokens_per_s - self._counts[chosen] * full.tokens_per_s
        else:
            rest_requests = self._population - self._counts[chosen] * full.batch

        def cost(arm: str) -> float:
            curve = self._curve(arm, [(demand, 1.0)], 1)
            full = curve.full
            rest = rest_tokens_per_s / full.tokens_per_s if self._population is None else rest_requests / full.batch
            backends = max(rest, min(1.0, _FEW_REQUESTS / full.batch))
            whole = min(int(backends), self._counts[arm])
            part = min(backends - whole, 1.0)
            rate = part * full.tokens_per_s if self._population is None else curve.rate_at(part * full.batch)
            batch, watts = curve.at(rate)
            watts += whole * full.power_w + self._holding_w * (whole * full.batch + batch)
            return watts / (whole * full.tokens_per_s + rate) + VIOLATION_J_PER_TOKEN * full.missed_frac

        return sorted(others, key=cost)

    def _distributed(
        self, arms_of: Mapping[DemandKey, tuple[str, ...]], scale: float, *, limited: bool = True
    ) -> tuple[list[_Held], float]:
        """The pools with what each gets of the demands at `scale` times their rates; and what none can hold."""
        slowdowns, resting = self._taking_turns(arms_of)
        mixes: dict[str, list[tuple[Demand, float]]] = {}
        rests = {demand.key: demand.tokens_per_s * scale for demand in self._demands}
        alike = limited and self._population is None
        if alike:
            mixes, rests = self._first_places(arms_of, rests, slowdowns)
        unserved = 0.0
        for index in self._order:
            demand = self._demands[index]
            rest = rests[demand.key]
            for arm in arms_of[demand.key][1:] if alike else arms_of[demand.key]:
                if rest <= 0.0:
                    break
                if arm in resting:
                    continue
                there = mixes.get(arm, [])
                taken = rest
                if limited:
                    room = self._room(arm, [*there, (demand, rest)], slowdowns)
                    taken = min(rest, room - sum(rate for _, rate in there))
                if taken > 1e-9:
                    mixes[arm] = [*there, (demand, taken)]
                    rest -= taken
            unserved += max(0.0, rest)
        held = [
            _Held(arm, self._curve(arm, mix, slowdowns.get(arm, 1)), sum(r for _, r in mix), self._counts[arm])
            for arm, mix in mixes.items()
        ]
        return held, unserved

    def _first_places(
        self,
        arms_of: Mapping[DemandKey, tuple[str, ...]],
        rates: Mapping[DemandKey, float],
        slowdowns: Mapping[str, int],
    ) -> tuple[dict[str, list[tuple[Demand, float]]], dict[DemandKey, float]]:
        """What each arm gets of the demands planned for it, and what is left of each demand."""
        mixes: dict[str, list[tuple[Demand, float]]] = {}
        rests = dict.fromkeys(rates, 0.0)
        for index in self._order:
            demand = self._demands[index]
            mixes.setdefault(arms_of[demand.key][0], []).append((demand, rates[demand.key]))
        for arm, mix in mixes.items():
            wanted = sum(rate for _, rate in mix)
            room = self._room(arm, mix, slowdowns)
            if wanted > room:
                mixes[arm] = [(demand, rate * room / wanted) for demand, rate in mix]
                rests.update((demand.key, rate * (1.0 - room / wanted)) for demand, rate in mix)
        return mixes, rests

    def _room(self, arm: str, mix: Sequence[tuple[Demand, float]], slowdowns: Mapping[str, int]) -> float:
        """Tokens per second that all backends of the arm hold of a mix within the targets."""
        return self._counts[arm] * self._curve(arm, mix, slowdowns.get(arm, 1)).full.tokens_per_s

    def _taking_turns(self, arms_of: Mapping[DemandKey, tuple[str, ...]]) -> tuple[Mapping[str, int], Set[str]]:
        """How many servers take turns on the GPUs of each planned arm, when all planned arms work; and arms that rest.

        What planned arms cannot hold is not given to a server that would take turns with them: it would take as much
        time from them as it has itself.
        """
        planned = {arms[0] for arms in arms_of.values()}
        sharing = {arm: self._pools[arm].neighbours for arm in planned if self._pools[arm].neighbours}
        slowdowns = {arm: 1 + sum(other in planned for other in others) for arm, others in sharing.items()}
        return slowdowns, {other for others in sharing.values() for other in others} - planned

    def _curve(self, arm: str, mix: Sequence[tuple[Demand, float]], slowdown: int) -> PoolCurve:
        return self._curve_at(arm, self._setting_of.get(arm), mix, slowdown)

    def _curve_at(
        self, arm: str, setting: ArmSetting | None, mix: Sequence[tuple[Demand, float]], slowdown: int
    ) -> PoolCurve:
        total = sum(rate for _, rate in mix) or 1.0
        values = None if setting is None else tuple(setting.values.values())
        key = arm, values, slowdown, tuple([(demand.key, round(rate / total, 2)) for demand, rate in mix])
        curve = self._curves.get(key)
        if curve is None:
            load = self._load(arm, setting, mix, slowdown)
            curve = self._curves[key] = PoolCurve(load, load.full())
        return curve

    def _load(
        self, arm: str, setting: ArmSetting | None, mix: Sequence[tuple[Demand, float]], slowdown: int
    ) -> PoolLoad:
        return PoolLoad(self._pools[arm].spec, mix, self._acceptance, self._quantile, slowdown, setting)

    # ---- rates given

    def _filled(self, arms_of: Mapping[DemandKey, tuple[str, ...]]) -> tuple[Plan, tuple[str, ...]]:
        """Backends filled one after the other as requests come and go; and the arms that serve only overflow."""
        held, unserved = self._distributed(arms_of, 1.0)
        run = self._run(arms_of, held, 1.0)
        refused_w = unserved * UNSERVED_J_PER_TOKEN
        refused_w += sum(pool.tokens_per_s * VIOLATION_J_PER_TOKEN * pool.curve.full.missed_frac for pool in held)
        score = run.score
        if run.served > 0.0 and any(self._pools[pool.arm].neighbours for pool in held):
            score = self._score_on_shared_gpus(arms_of, run)
            refused_w = self._overrun(arms_of) * VIOLATION_J_PER_TOKEN if refused_w else 0.0
        plan = Plan(
            arms_of=arms_of,
            batch_of={pool.arm: self._limit(pool.arm, pool.curve.full.batch) for pool in held},
            power_w=run.power_w + refused_w,
            score=score + refused_w,
            tokens_per_s_of={pool.arm: pool.tokens_per_s for pool in held},
            settings_of=self._settings_of(held),
            within_targets=unserved <= 0.0 and all(pool.curve.full.within_targets for pool in held),
        )
        return plan, run.woken

    def _score_on_shared_gpus(self, arms_of: Mapping[DemandKey, tuple[str, ...]], run: _Run) -> float:
        """The score of what is served where servers share a GPU, at the present load and at larger ones.

        Another server cannot be woken any more when a larger load has come.
        """
        runs = [run, *(self._run(arms_of, self._distributed(arms_of, growth)[0], growth) for growth in _GROWN)]
        score = run.served * sum(each.score for each in runs) / sum(each.served for each in runs)
        slowdowns, _ = self._taking_turns(arms_of)
        return score * (1.0 + _TURNS_FRAC) if any(turns > 1 for turns in slowdowns.values()) else score

    def _overrun(self, arms_of: Mapping[DemandKey, tuple[str, ...]]) -> float:
        """Tokens per second outside their targets where servers share a GPU.

        What an arm cannot hold within the targets goes to no other: all of it is served there, at the batch it takes.
        """
        slowdowns, _ = self._taking_turns(arms_of)
        mixes: dict[str, list[tuple[Demand, float]]] = {}
        for demand in self._demands:
            mixes.setdefault(arms_of[demand.key][0], []).append((demand, demand.tokens_per_s))
        overrun = 0.0
        for arm, mix in mixes.items():
            load = self._load(arm, self._setting_of.get(arm), mix, slowdowns.get(arm, 1))
            overrun += self._counts[arm] * load.overrun(sum(rate for _, rate in mix) / self._counts[arm])
        return overrun

    def _run(self, arms_of: Mapping[DemandKey, tuple[str, ...]], held: Sequence[_Held], growth: float) -> _Run:
        """The pools that hold their parts of `growth` times the rates, and what they turn away by chance."""
        served = sum(pool.tokens_per_s for pool in held)
        if served <= 0.0:
            return _Run(0.0, 0.0, 0.0)
        slowdowns, resting = self._taking_turns(arms_of)
        asked = []
        for index in self._order:
            demand = self._demands[index]
            arms = tuple([arm for arm in arms_of[demand.key] if arm not in resting])
            asked.append(Asked(demand, growth * demand.tokens_per_s, arms))
        run = mean_open_run(asked, self._counts, lambda arm, mix: self._curve(arm, mix, slowdowns.get(arm, 1)))
        # What finds no place by chance alone is served beyond the plan, at about the price of the rest.
        power_w = run.power_w * max(1.0, served / run.tokens_per_s)
        paced = 1.0 + self._halved_tbt_frac * math.log2(1.0 + 1e3 * run.requests / run.tokens_per_s)
        return _Run(power_w, power_w * paced, served, run.woken)

    def _settings_of(self, held: Sequence[_Held]) -> dict[str, Mapping[str, float]]:
        return {pool.arm: self._setting_of[pool.arm].values for pool in held if pool.arm in self._setting_of}

    def _limit(self, arm: str, batch: float) -> int:
        """Planned batches are means: what comes on top by chance belongs there too."""
        return min(self._pools[arm].spec.max_running_requests, math.ceil(batch + math.sqrt(batch)))

    # ---- population given

    def _shared(self, arms_of: Mapping[DemandKey, tuple[str, ...]], population: float) -> Plan:
        """Every pool's requests shared evenly by the number of backends that costs least."""
        held, _ = self._distributed(arms_of, 1.0, limited=False)
        rates = sum(pool.tokens_per_s for pool in held)
        if sum(pool.backends * pool.curve.full.batch for pool in held) < population or not self._holds(
            held, population
        ):
            held = self._overflowing(arms_of, population)
            rates = sum(pool.tokens_per_s for pool in held) or 1.0
        fewest = [1] * len(held)
        best = self._best_backends(held, fewest, population)
        score, scale, backends = best
        batches = [
            pool.curve.at(scale * pool.tokens_per_s / count)[0] for pool, count in zip(held, backends, strict=True)
        ]
        within = self._holds(held, population) or all(demand.tbt_target_ms is None for demand in self._demands)
        # What overflows from one arm that is planned for all keeps that arm full: only the last pool comes and goes.
        if len({arms[0] for arms in arms_of.values()}) > 1 and population <= _MOST_SWAYING:
            pools = [ClosedPool(p.curve, n, scale * p.tokens_per_s) for p, n in zip(held, backends, strict=True)]
            run = mean_run(pools, self._places(pools, population))
            swaying = (self._idle_w + run.power_w) / run.tokens_per_s
            # Where there are fewer places than clients, no pool can gain by being fuller for a while.
            if swaying > score or within:
                score, scale = swaying, run.tokens_per_s / rates
        hopeless = not all(pool.curve.full.within_targets for pool in held)
        for pool in held:
            score += VIOLATION_J_PER_TOKEN * pool.curve.full.missed_frac * pool.tokens_per_s / rates
        return Plan(
            arms_of=arms_of,
            batch_of={pool.arm: self._limit(pool.arm, batch) for pool, batch in zip(held, batches, strict=True)},
            backends_of={pool.arm: count for pool, count in zip(held, backends, strict=True)},
            power_w=score * scale * rates - self._idle_w,
            score=score,
            tokens_per_s_of={pool.arm: scale * pool.tokens_per_s for pool in held},
            settings_of=self._settings_of(held),
            within_targets=within and not hopeless,
            hopeless=hopeless,
        )

    @staticmethod
    def _places(pools: Sequence[ClosedPool], population: float) -> int:
        """The requests in the system for which there are places, at least 1."""
        return max(1, round(min(population, sum(pool.backends * pool.curve.full.batch for pool in pools))))

    @staticmethod
    def _holds(held: Sequence[_Held], population: float) -> bool:
        """Whether the pools hold that many requests in the shares of their rates, with all their backends."""
        scale = min(pool.backends * pool.curve.full.tokens_per_s / pool.tokens_per_s for pool in held)
        most = sum(pool.backends * pool.curve.at(scale * pool.tokens_per_s / pool.backends)[0] for pool in held)
        return most >= population * (1.0 - 1e-6)

    def _overflowing(self, arms_of: Mapping[DemandKey, tuple[str, ...]], population: float) -> list[_Held]:
        """The pools at the smallest rates at which `population` requests are there or a place is lacking."""
        low, high = 0.0, 1.0
        for _ in range(40):
            held, unserved = self._distributed(arms_of, high)
            if unserved > 0.0 or self._most_in_system(held) >= population:
                break
            low, high = high, 2.0 * high
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            held, unserved = self._distributed(arms_of, middle)
            if unserved > 0.0 or self._most_in_system(held) >= population:
                high = middle
            else:
                low = middle
        return self._distributed(arms_of, high)[0]

    def _most_in_system(self, held: Sequence[_Held]) -> float:
        """Requests in the system when every pool's rate is shared evenly by as few backends as hold it.

        With several demands, when the rate is that of full backends and a part of one. That is more than they hold, and
        makes overflow dearer than it is: which texts it will be of is decided by the targets of those that run then,
        and plans that build on a certain one do not come about.
        """
        most = 0.0
        for pool in held:
            backends = pool.tokens_per_s / pool.curve.full.tokens_per_s
            if len(self._demands) > 1:
                most += backends * pool.curve.full.batch
                continue
            fewest = max(1, math.ceil(backends - 1e-9))
            most += fewest * pool.curve.at(pool.tokens_per_s / fewest)[0]
        return most

    def _best_backends(
        self, held: Sequence[_Held], fewest: Sequence[int], population: float
    ) -> tuple[float, float, list[int]]:
        """(joules per token, scale, backends by pool): one more or one less wherever that helps."""
        backends = list(fewest)
        best = self._joules(held, backends, population)
        while best is None:  # too few: more where it is fullest
            growing = [index for index, pool in enumerate(held) if backends[index] < pool.backends]
            if not growing:
                return self._saturated(held, backends)
            index = max(growing, key=lambda i: held[i].tokens_per_s / (backends[i] * held[i].curve.full.tokens_per_s))
            backends[index] += max(1, backends[index] // 8)
            backends[index] = min(backends[index], held[index].backends)
            best = self._joules(held, backends, population)
        improved = True
        while improved:
            improved = False
            for index, pool in enumerate(held):
                for change in (max(1, backends[index] // 8), 1, -1):
                    count = backends[index] + change
                    if not 1 <= count <= pool.backends:
                        continue
                    tried = [*backends[:index], count, *backends[index + 1 :]]
                    found = self._joules(held, tried, population)
                    if found is not None and clearly_less(found[0], best[0], _CLEARLY_FRAC):
                        best, backends, improved = found, tried, True
                        break
        return best[0], best[1], backends

    def _joules(self, held: Sequence[_Held], backends: Sequence[int], population: float) -> tuple[float, float] | None:
        """(joules per token above prefill, scale) with `population` requests there; `None` if they do not fit."""
        shares = [(pool.curve, pool.tokens_per_s / count, count) for pool, count in zip(held, backends, strict=True)]
        high = min(curve.full.tokens_per_s / rate for curve, rate, _ in shares)
        if sum(count * curve.at(high * rate)[0] for curve, rate, count in shares) < population * (1.0 - 1e-6):
            return None
        low = 0.0
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            if sum(count * curve.at(middle * rate)[0] for curve, rate, count in shares) < population:
                low = middle
            else:
                high = middle
        return self._spent(shares, high), high

    def _spent(self, shares: Sequence[tuple[PoolCurve, float, int]], scale: float) -> float:
        power_w = sum(count * curve.at(scale * rate)[1] for curve, rate, count in shares)
        return (self._idle_w + power_w) / (scale * sum(count * rate for _, rate, count in shares))

    def _saturated(self, held: Sequence[_Held], backends: list[int]) -> tuple[float, float, list[int]]:
        """The most that the pools can do within their targets."""
        shares = [(pool.curve, pool.tokens_per_s / count, count) for pool, count in zip(held, backends, strict=True)]
        scale = min(curve.full.tokens_per_s / rate for curve, rate, _ in shares)
        return self._spent(shares, scale), scale, backends


def _overflowing_to(arm: str, arms: tuple[str, ...]) -> tuple[str, ...]:
    """Arms by preference with `arm` as the first one for overflow."""
    return (arms[0], arm, *(other for other in arms[1:] if other != arm)) if arm in arms[1:] else arms
