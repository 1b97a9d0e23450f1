"""The plan of an assignment with a population given: N clients wait for answers before they ask again.

Their shares are those of the rates. A pool runs k equal backends; the rates are scaled by the one factor at which N
requests are in the system. Score: joules per token, idle power of the fleet included, since it is spent while they
wait, in the mean over how the pools' parts of the N come and go (`closedpools`). Clients of a single demand are split
between arms (`closedsplit`). Of several demands planned for an arm that is too small for them, each has the same share
of its requests there, since every end makes room for a random text; the rest overflows.

In the fluid limit this is to minimise, pool by pool, joules per token + (P_idle of the fleet / N) · TBT: a request in
the system is charged its part of the idle power.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from selector.core.assignment import Assignment, Held
from selector.core.closedpools import ClosedPool, mean_run
from selector.core.closedsplit import rate, split
from selector.core.plan import VIOLATION_J_PER_TOKEN, Plan
from selector.core.plansearch import clearly_less
from selector.core.poolload import PoolCurve

_MOST_SWAYING = 512
"""Requests in the system up to which a score counts that pools' parts of them come and go: of more it is little."""
_OVERFLOW_DEARER_FRAC = 0.05
"""By what share of itself a score is raised if all overflows. Which texts do is decided by the targets of those that
run then: an arm fills with the loose ones, for which it can be fuller than is best. Ten types with 64 clients and 10 ms
on four arms cost 5 % more than the scores of plans that overflow, and 6 % less than those of plans that do not."""
_NO_OVERFLOW_FRAC = 1e-6
_NONE = 1e-6
"""Requests up to which a pool counts as unused."""
_BISECTIONS = 14
_CLEARLY_FRAC = 1e-6
"""By what share of the joules another number of backends must save to be taken."""


def closed_plan(assignment: Assignment, population: float, idle_w: float) -> Plan:
    """Every pool's requests shared evenly by the number of backends that costs least.

    `population` is above 0; `idle_w` is the idle power of the whole fleet.
    """
    alone = len(assignment.demands) == 1
    held, within = _split(assignment, population, idle_w) if alone else _several(assignment, population)
    divided = alone and len(held) > 1
    rates = sum(pool.tokens_per_s for pool in held) or 1.0
    score, scale, backends = _Sharing(held, population, idle_w).best()
    batches = [pool.curve.at(scale * pool.tokens_per_s / count)[0] for pool, count in zip(held, backends, strict=True)]
    # What overflows from one arm that is planned for all keeps that arm full: only the last pool comes and goes.
    if len(assignment.planned_arms) > 1 and population <= _MOST_SWAYING:
        pools = [ClosedPool(p.curve, n, scale * p.tokens_per_s) for p, n in zip(held, backends, strict=True)]
        run = mean_run(pools, _places(pools, population))
        swaying = (idle_w + run.power_w) / run.tokens_per_s
        # Where there are fewer places than clients, no pool can gain by being fuller for a while.
        if swaying > score or within:
            score, scale = swaying, run.tokens_per_s / rates
    overflowing = 0.0 if alone else assignment.overflow_frac(held)
    score *= 1.0 + _OVERFLOW_DEARER_FRAC * overflowing
    able = frozenset(pool.arm for pool in held if pool.curve.full.within_targets)
    hopeless = len(able) < len(held)
    # One client alone is kept apart from nobody; what has no place in time is wherever others are if it overflows.
    apart = able if within and population >= 2.0 else frozenset()
    if overflowing > _NO_OVERFLOW_FRAC:
        apart = apart & assignment.undisturbed(held) if assignment.planned_arms <= able else frozenset()
    for pool in held:
        score += VIOLATION_J_PER_TOKEN * pool.curve.full.missed_frac * pool.tokens_per_s / rates
    return Plan(
        arms_of=assignment.arms_of,
        batch_of={
            pool.arm: max(1, round(batch)) if divided else assignment.usable.of_arm[pool.arm].limit(batch)
            for pool, batch in zip(held, batches, strict=True)
        },
        backends_of={pool.arm: count for pool, count in zip(held, backends, strict=True)},
        split=divided,
        power_w=score * scale * rates - idle_w,
        score=score,
        tokens_per_s_of={pool.arm: scale * pool.tokens_per_s for pool in held},
        settings_of=assignment.settings_of(held),
        within_targets=within and not hopeless,
        hopeless=hopeless,
        apart=apart,
    )


def _places(pools: Sequence[ClosedPool], population: float) -> int:
    """The requests in the system for which there are places, at least 1."""
    return max(1, round(min(population, sum(pool.backends * pool.curve.full.batch for pool in pools))))


def _several(assignment: Assignment, population: float) -> tuple[list[Held], bool]:
    """The pools with several demands; and whether they hold all clients in time."""
    held = assignment.on_planned_arms()
    if sum(pool.backends * pool.curve.full.batch for pool in held) >= population and _holds(held, population):
        return held, True
    held = _overflowing(assignment, population)
    return held, _holds(held, population) or all(demand.tbt_target_ms is None for demand in assignment.demands)


def _split(assignment: Assignment, population: float, idle_w: float) -> tuple[list[Held], bool]:
    """The pools with one demand, at the rates at which it costs least; and whether they hold all clients in time.

    Split is between those that have to work when one is filled after the other, and the one after them.
    """
    demand = assignment.demands[0]
    pools: list[Held] = []
    places = 0.0
    for arm in assignment.arms_of[demand.key]:
        curve = assignment.curve(arm, [(demand, 1.0)])
        if arm in assignment.resting or (places >= population and not curve.full.within_targets):
            continue
        pools.append(Held(arm, curve, 0.0, assignment.usable.counts[arm]))
        if places >= population:
            break
        places += pools[-1].backends * curve.full.batch
    parts = zip(pools, split(pools, population, idle_w), strict=True)
    held = [replace(pool, tokens_per_s=rate(pool, part)) for pool, part in parts if part.requests > _NONE]
    return held, places >= population or demand.tbt_target_ms is None


def _holds(held: Sequence[Held], population: float) -> bool:
    """Whether the pools hold that many requests in the shares of their rates, with all their backends."""
    scale = min(pool.backends * pool.curve.full.tokens_per_s / pool.tokens_per_s for pool in held)
    most = sum(pool.backends * pool.curve.at(scale * pool.tokens_per_s / pool.backends)[0] for pool in held)
    return most >= population * (1.0 - 1e-6)


# ---- more clients than one arm has places for


def _overflowing(assignment: Assignment, population: float) -> list[Held]:
    """The pools at the smallest rates at which `population` requests are there or a place is lacking."""
    low, high = 0.0, 1.0
    for _ in range(40):
        held, unserved = assignment.alike(high)
        if unserved > 0.0 or _in_system(held) >= population:
            break
        low, high = high, 2.0 * high
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        held, unserved = assignment.alike(middle)
        if unserved > 0.0 or _in_system(held) >= population:
            high = middle
        else:
            low = middle
    return assignment.alike(high)[0]


def _in_system(held: Sequence[Held]) -> float:
    """Requests in the system where all backends of every pool share its rate."""
    return sum(pool.backends * pool.curve.at(pool.tokens_per_s / pool.backends)[0] for pool in held)


# ---- how many backends share


class _Sharing:
    """Pools that share a population in the shares of their rates."""

    def __init__(self, held: Sequence[Held], population: float, idle_w: float) -> None:
        self._held = held
        self._population = population
        self._idle_w = idle_w

    def best(self) -> tuple[float, float, list[int]]:
        """(joules per token, scale of the rates, backends by pool) at the least cost.

        From the fewest backends on, one more or one less wherever that helps.
        """
        held = self._held
        backends = [1] * len(held)
        best = self._joules(backends)
        while best is None:  # too few: more where it is fullest
            growing = [index for index, pool in enumerate(held) if backends[index] < pool.backends]
            if not growing:
                return self._saturated(backends)
            index = max(growing, key=lambda i: held[i].tokens_per_s / (backends[i] * held[i].curve.full.tokens_per_s))
            backends[index] += max(1, backends[index] // 8)
            backends[index] = min(backends[index], held[index].backends)
            best = self._joules(backends)
        improved = True
        while improved:
            improved = False
            for index, pool in enumerate(held):
                for change in (max(1, backends[index] // 8), 1, -1):
                    count = backends[index] + change
                    if not 1 <= count <= pool.backends:
                        continue
                    tried = [*backends[:index], count, *backends[index + 1 :]]
                    found = self._joules(tried)
                    if found is not None and clearly_less(found[0], best[0], _CLEARLY_FRAC):
                        best, backends, improved = found, tried, True
                        break
        return best[0], best[1], backends

    def _joules(self, backends: Sequence[int]) -> tuple[float, float] | None:
        """(joules per token, scale) with all of the population there; `None` if it does not fit."""
        shares = self._shares(backends)
        high = min(curve.full.tokens_per_s / rate for curve, rate, _ in shares)
        if sum(count * curve.at(high * rate)[0] for curve, rate, count in shares) < self._population * (1.0 - 1e-6):
            return None
        low = 0.0
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            if sum(count * curve.at(middle * rate)[0] for curve, rate, count in shares) < self._population:
                low = middle
            else:
                high = middle
        return self._spent(shares, high), high

    def _saturated(self, backends: list[int]) -> tuple[float, float, list[int]]:
        """The most that the pools can do within their targets."""
        shares = self._shares(backends)
        scale = min(curve.full.tokens_per_s / rate for curve, rate, _ in shares)
        return self._spent(shares, scale), scale, backends

    def _shares(self, backends: Sequence[int]) -> list[tuple[PoolCurve, float, int]]:
        """(curve, rate of each backend, backends) of each pool."""
        return [(pool.curve, pool.tokens_per_s / n, n) for pool, n in zip(self._held, backends, strict=True)]

    def _spent(self, shares: Sequence[tuple[PoolCurve, float, int]], scale: float) -> float:
        """Joules per token, idle power included."""
        power_w = sum(count * curve.at(scale * rate)[1] for curve, rate, count in shares)
        return (self._idle_w + power_w) / (scale * sum(count * rate for _, rate, count in shares))
