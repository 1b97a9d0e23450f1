"""What a planner reckons with: a demand, and a backend of one arm under a mix of demands as a function of its batch.

The formulas are those of `planner`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from selector.core.livesettings import ArmSetting
from selector.core.plannedlengths import Lengths
from selector.core.policy import BackendSpec
from selector.core.stalls import SHORT_ANSWER_FRAC, miss_probability, normal_deviate, slow_factor, with_burst

DemandKey = tuple[str, float | None]
"""Text type and TBT target."""

_CURVE_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Batches at which a `PoolCurve` is computed; between them it is linear."""


class Demand(NamedTuple):
    """Requests of one text type and target, at their present rate. A tuple, since all are made anew at every look."""

    text_type: str
    tbt_target_ms: float | None
    requests_per_s: float
    prompt_tokens: float
    """Mean prompt to prefill."""
    output_tokens: float
    """Mean expected answer, at least 1."""
    prefill_dispersion_s: float = 0.0
    """D in `stalls`, of the prefill work of the whole fleet."""
    prefill_excess_s: float = 0.0
    """x in `stalls`."""

    @property
    def key(self) -> DemandKey:
        """What requests of this demand have in common."""
        return self.text_type, self.tbt_target_ms

    @property
    def tokens_per_s(self) -> float:
        """Rate of accepted tokens asked for."""
        return self.requests_per_s * self.output_tokens


Mix = Sequence[tuple[Demand, float]]
"""Demands with their tokens per second."""


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """A backend of a pool at one batch."""

    batch: float
    tokens_per_s: float
    power_w: float
    """Above idle, for decoding."""
    missed_frac: float = 0.0
    """Share of the tokens whose requests are expected to miss their target; 0 where all meet it at the quantile."""

    @property
    def within_targets(self) -> bool:
        """Whether every target is met at the quantile."""
        return self.missed_frac == 0.0

    @property
    def tbt_ms(self) -> float:
        """Mean over the tokens of the mix (Little's law)."""
        return 1e3 * self.batch / self.tokens_per_s


class _Limit:
    """What one demand with a target needs of a backend."""

    __slots__ = ("_accept", "_dispersion_s", "_excess_s", "_slowness", "_tokens", "share", "target_ms")

    def __init__(self, demand: Demand, share: float, accept: float, slowness: float) -> None:
        assert demand.tbt_target_ms is not None
        self.target_ms = demand.tbt_target_ms
        self.share = share
        self._accept = accept
        self._slowness = slowness
        self._tokens = SHORT_ANSWER_FRAC * demand.output_tokens
        self._dispersion_s = demand.prefill_dispersion_s
        self._excess_s = demand.prefill_excess_s

    def tbt_ms(self, step_ms: float, prefill_frac: float, deviate: float) -> tuple[float, float]:
        """(mean, at the quantile)."""
        mean_ms = step_ms / (self._accept * (1.0 - prefill_frac))
        work_s = self._tokens * step_ms / (1e3 * self._accept)
        factor = slow_factor(deviate, self._slowness, self._dispersion_s, prefill_frac, work_s)
        return with_burst(mean_ms, factor, 1e3 * prefill_frac * self._excess_s / self._tokens, deviate)


class PoolLoad:
    """One backend of an arm under a mix of demands, as a function of its batch.

    `slowdown` is how many servers take turns on its GPU: a step lasts that many times longer, for the same energy.
    `setting` is what its live settings are taken to be; without one, costs and accept lengths are the arm's.
    """

    def __init__(
        self,
        spec: BackendSpec,
        mix: Mix,
        acceptance: Lengths,
        quantile: float,
        slowdown: float = 1.0,
        setting: ArmSetting | None = None,
    ) -> None:
        self._spec = spec
        self._at_depth = {each.arm: PoolLoad(each, mix, acceptance, quantile, slowdown) for each in spec.depths}
        """The same backend fixed at each depth that its engine may choose; empty where its depth is fixed."""
        arm = spec.arm if setting is None else setting.named(spec.arm)
        total = sum(rate for _, rate in mix) or 1.0
        shares = [(demand, rate / total if rate else 1.0 / len(mix)) for demand, rate in mix]
        inverse = context = prefill_s = prefill_j = 0.0
        self._limits: list[_Limit] = []
        self._deviate = normal_deviate(quantile)
        for demand, share in shares:
            inverse += share / acceptance.accept_length(arm, demand.text_type)
            stall_ms, j = spec.cost.prefill.mean_stall(demand.prompt_tokens)
            prefill_s += share * stall_ms / 1e3 / demand.output_tokens
            prefill_j += share * j / demand.output_tokens
            if demand.tbt_target_ms is not None:
                mean, slow = acceptance.accept_lengths(arm, demand.text_type, None, demand.output_tokens, quantile)
                self._limits.append(_Limit(demand, share, mean, 1.0 - slow / mean))
        self._accept = 1.0 / inverse
        for demand, share in shares:
            in_system = share / acceptance.accept_length(arm, demand.text_type) * self._accept
            context += in_system * (demand.prompt_tokens + demand.output_tokens / 2)
        self._step = (setting or spec.cost).step
        self._context = context
        self._slowdown = slowdown
        self._prefill_s_per_token = prefill_s * slowdown
        self._idle_w = spec.cost.idle.watts(1)
        self._prefill_j_per_token = prefill_j - self._idle_w * prefill_s
        self.largest_batch = max(1, min(spec.max_running_requests, int(spec.max_kv_tokens / max(1.0, context))))

    def _rates(self, batch: float) -> tuple[float, float, float, float]:
        """(step_ms while alone on the GPU, step_j, tokens/s, prefill share)."""
        if self._at_depth:
            return self._chosen(batch)._rates(batch)
        step_ms, step_j = self._step.step(batch, self._context)
        decoding = batch * self._accept / (step_ms * self._slowdown / 1e3)
        tokens_per_s = decoding / (1.0 + decoding * self._prefill_s_per_token)
        return step_ms, step_j, tokens_per_s, tokens_per_s * self._prefill_s_per_token

    def _depths_at(self, batch: float) -> list[PoolLoad]:
        return [self._at_depth[each.arm] for each in self._spec.depths_at(batch)]

    def _chosen(self, batch: float) -> PoolLoad:
        """The depth that an engine settles at which knows what comes: least energy within the targets.

        Where none is within them, the one that misses least.
        """
        depths = self._depths_at(batch)
        within = [load for load in depths if load.within_targets(max(1, round(batch)))]
        if within:
            return min(within, key=lambda load: load._step.step(max(1.0, batch), load._context)[1] / load._accept)
        return min(depths, key=lambda load: load._missed_frac(max(1, round(batch))))

    def within_targets(self, batch: int, used_frac: float = 1.0) -> bool:
        """Whether every target is met at its quantile, by a backend that works for `used_frac` of its time."""
        if self._at_depth:
            return any(load.within_targets(batch, used_frac) for load in self._depths_at(batch))
        step_ms, prefill_frac = self._pace(batch, used_frac)
        return all(limit.tbt_ms(step_ms, prefill_frac, self._deviate)[1] <= limit.target_ms for limit in self._limits)

    def _pace(self, batch: int, used_frac: float) -> tuple[float, float]:
        step_ms, _, _, prefill_frac = self._rates(batch)
        return step_ms * self._slowdown, prefill_frac * used_frac

    def _missed_frac(self, batch: int) -> float:
        """Share of the tokens whose requests miss their target at a batch; above 0."""
        if self._at_depth:
            return self._chosen(batch)._missed_frac(batch)
        step_ms, prefill_frac = self._pace(batch, 1.0)
        missed = 0.0
        for limit in self._limits:
            mean_ms, slow_ms = limit.tbt_ms(step_ms, prefill_frac, self._deviate)
            missed += limit.share * miss_probability(mean_ms, slow_ms, limit.target_ms, self._deviate)
        return max(missed, 1e-6)

    def overrun(self, tokens_per_s: float) -> float:
        """Tokens per second of a rate that miss their targets, or are not served: it runs at the least batch for it."""
        low, high = 1, self.largest_batch
        while low < high:
            middle = (low + high) // 2
            if self._rates(middle)[2] >= tokens_per_s:
                high = middle
            else:
                low = middle + 1
        served = min(tokens_per_s, self._rates(low)[2])
        missed_frac = 0.0 if self.within_targets(low) else self._missed_frac(low)
        return tokens_per_s - served * (1.0 - missed_frac)

    def full(self) -> OperatingPoint:
        """The largest batch within every target; where not even batch 1 is, see `_part_time`."""
        low, high = 0, self.largest_batch
        if self._limits:
            while low < high:
                middle = (low + high + 1) // 2
                if self.within_targets(middle):
                    low = middle
                else:
                    high = middle - 1
        else:
            low = high
        return self.point(low) if low >= 1 else self._part_time()

    def _part_time(self) -> OperatingPoint:
        """Where even batch 1 without pause misses a target: the largest share of it that meets all, or all of it.

        A backend that rests part of the time prefills less, so fewer requests stall the one that runs.
        """
        low, high = 0.0, 1.0
        for _ in range(12):
            middle = 0.5 * (low + high)
            if self.within_targets(1, middle):
                low = middle
            else:
                high = middle
        full = self.point(1)
        if low < 0.01:
            return OperatingPoint(1.0, full.tokens_per_s, full.power_w, self._missed_frac(1))
        return OperatingPoint(low, full.tokens_per_s * low, full.power_w * low)

    def point(self, batch: float) -> OperatingPoint:
        """Rate and power above idle at a batch."""
        step_ms, step_j, tokens_per_s, prefill_frac = self._rates(batch)
        active_w = (step_j - self._idle_w * step_ms / 1e3) / (step_ms * self._slowdown / 1e3)
        prefill_w = tokens_per_s * self._prefill_j_per_token
        return OperatingPoint(batch, tokens_per_s, (1.0 - prefill_frac) * active_w + prefill_w)


class PoolCurve:
    """Batch and power of a backend over its rate, up to its `full` point: a chain of short lines."""

    __slots__ = ("_batches", "_powers_w", "_rates", "full")

    def __init__(self, load: PoolLoad, full: OperatingPoint) -> None:
        self.full = full
        points = [load.point(batch) for batch in _CURVE_BATCHES if batch < full.batch]
        self._batches, self._rates, self._powers_w = [0.0], [0.0], [0.0]
        for point in [*points, full]:
            # Where steps grow as fast as the batch, more requests bring no more tokens: such points are left out.
            if point.tokens_per_s > self._rates[-1] * (1.0 + 1e-9):
                self._batches.append(point.batch)
                self._rates.append(point.tokens_per_s)
                self._powers_w.append(point.power_w)

    @property
    def most_tokens_per_s(self) -> float:
        """The largest rate of the curve."""
        return self._rates[-1]

    @property
    def lines(self) -> tuple[Sequence[float], Sequence[float], Sequence[float]]:
        """Batches, rates and powers above idle of the ends of the lines, from 0 to the full point."""
        return self._batches, self._rates, self._powers_w

    def at(self, tokens_per_s: float) -> tuple[float, float]:
        """(batch, power above idle) at a rate; beyond the full point, in proportion to it.

        Below batch 1 the backend works for a part of its time.
        """
        right = bisect_right(self._rates, tokens_per_s)
        if right >= len(self._rates):
            over = tokens_per_s / self._rates[-1]
            return over * self._batches[-1], over * self._powers_w[-1]
        left = right - 1
        frac = (tokens_per_s - self._rates[left]) / (self._rates[right] - self._rates[left])
        return (
            self._batches[left] + frac * (self._batches[right] - self._batches[left]),
            self._powers_w[left] + frac * (self._powers_w[right] - self._powers_w[left]),
        )

    def rate_at(self, batch: float) -> float:
        """The rate at a batch up to the full one: what `at` inverts."""
        right = min(max(1, bisect_right(self._batches, batch)), len(self._batches) - 1)
        left = right - 1
        frac = min(1.0, (batch - self._batches[left]) / (self._batches[right] - self._batches[left]))
        return self._rates[left] + frac * (self._rates[right] - self._rates[left])

    def partial(self, tokens_per_s: float) -> tuple[float, float]:
        """(batch, power above idle), averaged over how the batch comes and goes when requests come at random.

        Requests that share a server whose total rate r(k) depends on their number k alone are there with probability
        π_k ∝ Π_{j ≤ k} R / r(j), whatever the distribution of their lengths (Kelly, Reversibility and Stochastic
        Networks, 1979, section 3.3). Power is not linear in k, so its mean is not its value at the mean. What a full
        batch turns away is served beyond the plan, at about this backend's price.
        """
        weight = total = 1.0
        batch = power_w = tokens = 0.0
        at_least = 1e-4
        for right in range(1, len(self._rates)):
            low, high = self._batches[right - 1], self._batches[right]
            rate, watts = self._rates[right], self._powers_w[right]
            rate_slope = (rate - self._rates[right - 1]) / (high - low)
            watts_slope = (watts - self._powers_w[right - 1]) / (high - low)
            k = math.floor(low) + 1.0
            while k <= high or (right == len(self._rates) - 1 and k < high + 1.0):
                here = min(k, high)
                rate_k = rate - rate_slope * (high - here)
                weight *= tokens_per_s / rate_k
                total += weight
                batch += weight * here
                power_w += weight * (watts - watts_slope * (high - here))
                tokens += weight * rate_k
                if tokens_per_s < rate_k and weight < at_least * total:
                    return self._scaled(tokens_per_s * total / tokens, batch / total, power_w / total)
                k += 1.0
        return self._scaled(tokens_per_s * total / tokens, batch / total, power_w / total)

    @staticmethod
    def _scaled(served: float, batch: float, power_w: float) -> tuple[float, float]:
        return batch, served * power_w

    def least_cost(self, holding_w: float) -> float:
        """Least joules per token over the batches, each request in the system priced at `holding_w` watts."""
        costs = zip(self._batches[1:], self._rates[1:], self._powers_w[1:], strict=True)
        return min((power_w + holding_w * batch) / rate for batch, rate, power_w in costs)
