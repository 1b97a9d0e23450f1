"""Which arms should serve which requests, and how full their backends should be, at least total power.

Energy jumps at a backend's first request (the weights are read for it alone) and then grows almost linearly, so judging
one request at a time finds no good operating point: the marginal request is always cheapest on the arm that is already
busy, whatever it costs there at the load to come. The plan therefore looks at rates. For demands g (text type, target)
with r_g tokens/s, prompt p_g and answer o_g, an arm's pool of equal backends holding rates r_g has

    ā  = Σ r_g / Σ (r_g / a_g)                       tokens per request and step (requests are there as r_g / a_g)
    x(b) = b ā / T(b, c)                             tokens/s while decoding;  c: mean of p_g + o_g / 2
    r(b) = x / (1 + x φ),  ρ = r φ                   with φ seconds of prefill per token that stop decoding
    power above idle = (1 − ρ) A(b) / T(b)           A as in `cost`; prefill energy, the same on every arm, is left out

b* is the largest batch at which every target is met at the quantile q (z its normal deviate),

    T(b*) / (a_q (1 − ρ)) · (1 + z √v) ≤ target,   v = c² ρ² / (w (1 − ρ)),   w = n T / a

v is the relative variance that prefill stalls add to an answer of n tokens (see `stalls`): short answers on a backend
that prefills much are what misses targets first. Backends are filled to b* one after the other (the rest idles): a pool
of rate R runs ⌊R / r(b*)⌋ full backends and a partial one.

The search (`plansearch`) is local, from several starting points: the tests compare it with the exhaustive optimum. What
a pool cannot hold flows to the demand's next-best arm.

Plans are compared by power · (1 + h log₂(1 + TBT in ms)): halving the TBT is worth about the share h of the power.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from selector.core.acceptance import AcceptanceModel
from selector.core.plansearch import PlanSearch
from selector.core.policy import BackendSpec
from selector.core.poolload import Demand, DemandKey, OperatingPoint, PoolLoad

__all__ = ["Demand", "DemandKey", "Plan", "Planner"]

_FEW_DEMANDS = 4
_MOST_DEMANDS = 10
"""Searching takes time: more demands than this are not told apart, however many targets clients ask for."""
_ALIKE_FRAC = 0.05
"""Accept lengths closer than this on every arm are one demand to the planner: profiles are no better known."""
_UNSERVED_J_PER_TOKEN = 1e3
"""Price of a token that no place is left for: above any real cost, so that serving always wins."""
_VIOLATION_J_PER_TOKEN = 1e1
"""Price of a token served outside its target: above any real cost, below not serving."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the per-request choice follows."""

    arms_of: Mapping[DemandKey, tuple[str, ...]]
    """Arms by preference: the planned one first, then where its overflow goes."""
    batch_of: Mapping[str, int]
    """Requests up to which a backend of the arm is filled before the next one: its planned mean and a deviation."""
    power_w: float
    """Power above idle of the whole plan, penalties included."""
    score: float
    """What plans are compared by: power with a small price on TBT."""
    tokens_per_s_of: Mapping[str, float] = field(default_factory=dict)
    """Planned rate by arm."""


@dataclass(frozen=True, slots=True)
class _Pool:
    """The equal backends of one arm."""

    spec: BackendSpec
    backends: int


class Planner:
    """Solves for plans over a fixed fleet. Backends of one arm are taken to be equal; the smallest limits count."""

    def __init__(
        self,
        backends: Sequence[BackendSpec],
        acceptance: AcceptanceModel,
        quantile: float,
        *,
        halved_tbt_frac: float = 0.03,
    ) -> None:
        """`halved_tbt_frac` is h above."""
        pools: dict[str, _Pool] = {}
        for spec in backends:
            known = pools.get(spec.arm)
            if known is None:
                pools[spec.arm] = _Pool(spec, 1)
            else:
                smaller = min(known.spec, spec, key=lambda each: each.max_running_requests)
                pools[spec.arm] = _Pool(smaller, known.backends + 1)
        self._pools = pools
        self._acceptance = acceptance
        self._quantile = quantile
        self._halved_tbt_frac = halved_tbt_frac
        self._points: dict[object, OperatingPoint] = {}
        self._held: dict[object, OperatingPoint] = {}

    def solve(
        self,
        demands: Sequence[Demand],
        *,
        usable: Mapping[str, int] | None = None,
        current: Plan | None = None,
        keep_within_frac: float = 0.0,
    ) -> Plan:
        """The plan for `demands`. `usable` gives the available backends per arm (default: all).

        With a `current` plan whose score would be within `keep_within_frac` of the best, its assignment is kept: moving
        traffic costs more than it gains. Demands may be empty. Of many, those that every arm serves alike are planned
        as one, and the smallest follow the likest of the largest, since the search costs about the square of their
        number or more.
        """
        counts = self._counts(usable)
        arms = [arm for arm, count in counts.items() if count > 0]
        if not arms or not demands:
            return Plan(arms_of={}, batch_of={}, power_w=0.0, score=0.0)
        few = len(demands) <= _FEW_DEMANDS
        merged, member_of = (list(demands), {d.key: d.key for d in demands}) if few else self._merged(demands)
        plan = self._solved(merged, arms, counts, current, keep_within_frac)
        arms_of = {demand.key: plan.arms_of[member_of[demand.key]] for demand in demands}
        return replace(plan, arms_of=arms_of)

    def _merged(self, demands: Sequence[Demand]) -> tuple[list[Demand], dict[DemandKey, DemandKey]]:
        """Demands of one target and nearly equal accept lengths on every arm, added up; and where each went."""
        merged: dict[DemandKey, Demand] = {}
        lengths_of: dict[DemandKey, list[float]] = {}
        member_of: dict[DemandKey, DemandKey] = {}
        for demand in demands:
            lengths = [self._acceptance.accept_length(arm, demand.text_type) for arm in self._pools]
            alike = next(
                (
                    key
                    for key, known in lengths_of.items()
                    if key[1] == demand.tbt_target_ms and _alike(lengths, known) and _similar(demand, merged[key])
                ),
                None,
            )
            if alike is None:
                merged[demand.key], lengths_of[demand.key], alike = demand, lengths, demand.key
            else:
                merged[alike] = _sum(merged[alike], demand)
            member_of[demand.key] = alike
        largest, follows = self._largest(list(merged.values()))
        return largest, {key: follows[member] for key, member in member_of.items()}

    def _largest(self, demands: Sequence[Demand]) -> tuple[list[Demand], dict[DemandKey, DemandKey]]:
        """The largest `demands`, each with the smaller ones that are likest it added; and where each went."""
        order = _by_rate(demands)
        largest = {demands[index].key: demands[index] for index in order[:_MOST_DEMANDS]}
        follows = {key: key for key in largest}
        for index in order[_MOST_DEMANDS:]:
            follower = demands[index]
            likest = min(largest, key=lambda key: self._unlikeness(follower, largest[key]))
            largest[likest] = _sum(largest[likest], follower)
            follows[follower.key] = likest
        return list(largest.values()), follows

    def _unlikeness(self, one: Demand, other: Demand) -> float:
        """How differently two demands are to be served: relative distances of accept lengths and targets, summed up."""
        length = self._acceptance.accept_length
        lengths_apart = sum(_apart(length(arm, one.text_type), length(arm, other.text_type)) for arm in self._pools)
        if one.tbt_target_ms is None or other.tbt_target_ms is None:
            return lengths_apart + (one.tbt_target_ms != other.tbt_target_ms)
        return lengths_apart + _apart(one.tbt_target_ms, other.tbt_target_ms)

    def _solved(
        self,
        demands: Sequence[Demand],
        arms: Sequence[str],
        counts: Mapping[str, int],
        current: Plan | None,
        keep_within_frac: float,
    ) -> Plan:
        self._points, self._held = {}, {}
        order = _by_rate(demands)
        ranked = {demand.key: self._ranked(demand, arms) for demand in demands}
        search: PlanSearch[DemandKey, Plan] = PlanSearch(
            arms, lambda arm_of: self._evaluate(demands, order, arm_of, ranked, counts)
        )
        starts = [{demand.key: arm for demand in demands} for arm in arms]
        if len(demands) > _FEW_DEMANDS:
            starts = [min(starts, key=lambda one: search.plan(one).score)]
        starts.append({demand.key: ranked[demand.key][0] for demand in demands})
        kept: Plan | None = None
        if current is not None and all(d.key in current.arms_of and current.arms_of[d.key][0] in arms for d in demands):
            starts.append({demand.key: current.arms_of[demand.key][0] for demand in demands})
            kept = search.plan(starts[-1])
        best = search.best(starts)
        if kept is not None and kept.score <= best.score * (1.0 + keep_within_frac):
            return kept
        return best

    def evaluate(
        self, demands: Sequence[Demand], arm_of: Mapping[DemandKey, str], *, usable: Mapping[str, int] | None = None
    ) -> Plan:
        """The plan that gives each demand the usable arm that `arm_of` names: one of those that `solve` chooses from.

        What the arm cannot hold overflows to others. Raises `KeyError` for a demand that `arm_of` does not name.
        """
        counts = self._counts(usable)
        arms = [arm for arm, count in counts.items() if count > 0]
        self._points, self._held = {}, {}
        ranked = {demand.key: self._ranked(demand, arms) for demand in demands}
        return self._evaluate(demands, _by_rate(demands), arm_of, ranked, counts)

    def _counts(self, usable: Mapping[str, int] | None) -> dict[str, int]:
        """Backends by arm that may be planned with."""
        counts = {arm: pool.backends for arm, pool in self._pools.items()}
        if usable is None:
            return counts
        return {arm: min(count, usable.get(arm, 0)) for arm, count in counts.items()}

    def _ranked(self, demand: Demand, arms: Sequence[str]) -> tuple[str, ...]:
        """Arms by the power that a full backend needs per token of this demand alone."""

        def price(arm: str) -> float:
            full = self._full(arm, [(demand, demand.tokens_per_s)])
            return full.power_w / full.tokens_per_s + (0.0 if full.within_targets else _VIOLATION_J_PER_TOKEN)

        return tuple(sorted(arms, key=price))

    def _evaluate(
        self,
        demands: Sequence[Demand],
        order: Sequence[int],
        choice: Mapping[DemandKey, str],
        ranked: Mapping[DemandKey, tuple[str, ...]],
        counts: Mapping[str, int],
    ) -> Plan:
        held: dict[str, list[tuple[Demand, float]]] = {}
        arms_of: dict[DemandKey, tuple[str, ...]] = {}
        unserved = 0.0
        for index in order:
            demand = demands[index]
            chosen = choice[demand.key]
            preference = (chosen, *(arm for arm in ranked[demand.key] if arm != chosen))
            arms_of[demand.key] = preference
            rest = demand.tokens_per_s
            for arm in preference:
                if rest <= 0.0:
                    break
                there = held.get(arm, [])
                full = self._full(arm, [*there, (demand, rest)])
                room = counts.get(arm, 0) * full.tokens_per_s - sum(rate for _, rate in there)
                taken = min(rest, room)
                if taken > 1e-9:
                    held[arm] = [*there, (demand, taken)]
                    rest -= taken
            unserved += max(0.0, rest)
        power_w = unserved * _UNSERVED_J_PER_TOKEN
        tbt_tokens = served = 0.0
        batch_of: dict[str, int] = {}
        rates: dict[str, float] = {}
        for arm, mix in held.items():
            pool = self._holding(arm, mix)
            power_w += pool.power_w
            tbt_tokens += pool.tokens_per_s * pool.tbt_ms
            served += pool.tokens_per_s
            # Planned batches are means: what comes on top by chance belongs there too.
            limit = self._pools[arm].spec.max_running_requests
            batch_of[arm] = min(limit, math.ceil(pool.batch + math.sqrt(pool.batch)))
            rates[arm] = pool.tokens_per_s
        score = power_w
        if served > 0.0:
            score *= 1.0 + self._halved_tbt_frac * math.log2(1.0 + tbt_tokens / served)
        return Plan(arms_of=arms_of, batch_of=batch_of, power_w=power_w, score=score, tokens_per_s_of=rates)

    def _holding(self, arm: str, mix: Sequence[tuple[Demand, float]]) -> OperatingPoint:
        """The whole pool of an arm holding `mix`; its batch is that of a full backend."""
        key = _mix_key(arm, mix)
        found = self._held.get(key)
        if found is None:
            full = self._full(arm, mix)
            rate = sum(tokens for _, tokens in mix)
            whole = int(rate / full.tokens_per_s + 1e-9)
            partial = self._partial(arm, mix, rate - whole * full.tokens_per_s, full)
            power_w = whole * full.power_w + partial.power_w
            if not full.within_targets:
                power_w += rate * _VIOLATION_J_PER_TOKEN
            tbt_tokens = whole * full.tokens_per_s * full.tbt_ms + partial.tokens_per_s * partial.tbt_ms
            found = OperatingPoint(full.batch, rate, power_w, tbt_tokens / rate, full.within_targets)
            self._held[key] = found
        return found

    def _full(self, arm: str, mix: Sequence[tuple[Demand, float]]) -> OperatingPoint:
        """A backend of the arm holding `mix` at the largest batch within every target.

        Where not even batch 1 is, at batch 1 for a part of its time (see `PoolLoad.fractional_point`).
        """
        key = _mix_key(arm, mix)
        found = self._points.get(key)
        if found is not None:
            return found
        load = PoolLoad(self._pools[arm].spec, mix, self._acceptance, self._quantile)
        low, high = 0, load.largest_batch
        while low < high:
            middle = (low + high + 1) // 2
            if load.within_targets(middle):
                low = middle
            else:
                high = middle - 1
        point = load.point(low) if low >= 1 else load.fractional_point()
        self._points[key] = point
        return point

    def _partial(
        self, arm: str, mix: Sequence[tuple[Demand, float]], rate: float, full: OperatingPoint
    ) -> OperatingPoint:
        """The one backend that is not full, averaged over how its batch comes and goes.

        Requests that share a server whose total rate r(k) depends on their number k alone are there with probability
        π_k ∝ Π_{j ≤ k} R / r(j), whatever the distribution of their lengths (Kelly, Reversibility and Stochastic
        Networks, 1979, section 3.3). Power is not linear in k, so its mean is not its value at the mean.
        """
        if rate <= 1e-9:
            return OperatingPoint(0.0, 0.0, 0.0, 0.0, True)
        load = PoolLoad(self._pools[arm].spec, mix, self._acceptance, self._quantile)
        weight = total = 1.0
        batch = power_w = tokens = tbt_tokens = 0.0
        for k in range(1, max(1, math.ceil(full.batch)) + 1):
            point = load.point(k)
            weight *= rate / point.tokens_per_s
            total += weight
            batch += weight * k
            power_w += weight * point.power_w
            tokens += weight * point.tokens_per_s
            tbt_tokens += weight * point.tokens_per_s * point.tbt_ms
            if rate < point.tokens_per_s and weight < 1e-4 * total:
                break
        # What a full batch turns away is served beyond the plan, at about this backend's price.
        served = rate / (tokens / total)
        return OperatingPoint(batch / total, rate, served * power_w / total, tbt_tokens / tokens, full.within_targets)


def _by_rate(demands: Sequence[Demand]) -> list[int]:
    """Indices of the demands, those of the most tokens per second first: the order in which they get their places."""
    return sorted(range(len(demands)), key=lambda i: -demands[i].tokens_per_s)


def _mix_key(arm: str, mix: Sequence[tuple[Demand, float]]) -> object:
    return arm, tuple([(demand.key, round(rate, 3)) for demand, rate in mix])


def _apart(one: float, other: float) -> float:
    """Relative distance, in [0, 1]."""
    return abs(one - other) / max(one, other)


def _alike(lengths: Sequence[float], others: Sequence[float]) -> bool:
    return all(abs(one - other) <= _ALIKE_FRAC * other for one, other in zip(lengths, others, strict=True))


def _similar(one: Demand, other: Demand) -> bool:
    """Prompts and answers of the same order: a mean of the two stands for both."""
    return (
        0.5 <= one.prompt_tokens / other.prompt_tokens <= 2.0 and 0.5 <= one.output_tokens / other.output_tokens <= 2.0
    )


def _sum(one: Demand, other: Demand) -> Demand:
    """Both demands as one: rates add up, lengths are the means per request."""
    requests_per_s = one.requests_per_s + other.requests_per_s
    share = other.requests_per_s / requests_per_s
    return replace(
        one,
        requests_per_s=requests_per_s,
        prompt_tokens=one.prompt_tokens + share * (other.prompt_tokens - one.prompt_tokens),
        output_tokens=one.output_tokens + share * (other.output_tokens - one.output_tokens),
    )
