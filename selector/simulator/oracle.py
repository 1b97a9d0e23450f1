"""A clairvoyant lower bound on the joules per accepted token that any policy can reach on a trace, fleet and seed.

It knows what no policy knows (arrivals, lengths, accept lengths) and is proved under the simulator's own model; the
proof is in docs/oracle.md. Three relaxations, each with prices, any of which give a valid bound:

    shared steps    the fixed part of a step is shared among the requests that can be there at all (`oraclesharing`)
    the end         idle power runs to the last end: D ≥ Σ ω(i) · earliest end of i for any weights that sum to 1
    attainment      ψ is paid for a request within its target, so that the share asked for is met at least cost

It bounds runs in which every request that some backend can serve is served to its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from selector.core.acceptance import AcceptancePrior
from selector.core.policy import BackendSpec
from selector.errors import DomainError
from selector.simulator.engine import SimulatedRequest
from selector.simulator.oraclesharing import Cells, Prices, Steps, cells_of
from selector.simulator.oraclewindows import Windows, turns_of, windows_of
from selector.simulator.oraclework import FloatArray, Work, work_of

_SCAN_ROUNDS = 12
_ROUNDS = 150
_BISECTIONS = 40
_OPERATING_BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)

_RATES = (1.0, 0.3)
"""First steps of the ascent: bold ones find more with few requests, gentle ones with many."""

_ROUNDING = 1e-6
"""Share of the bound given away to the rounding of sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleBound:
    """No policy does better."""

    j_per_accepted_token: float | None
    """`None` when no request can be served; infinite when no policy reaches the attainment."""
    energy_j: float
    """Of the whole run at least, idle included, at the most tokens that can be delivered."""
    accepted_tokens: int
    """At most."""
    attainment: float | None
    """The share of requests within their target that was asked for; `None` when any would do."""


def oracle(
    specs: Sequence[BackendSpec],
    acceptance: Mapping[tuple[str, str], AcceptancePrior],
    requests: Sequence[SimulatedRequest],
    *,
    seed: int = 0,
    attainment: float | None = None,
) -> OracleBound:
    """Bounds every run of `Simulation` on the same backends, true acceptance, requests (in order of arrival) and seed.

    With `attainment` (0–1) it bounds the runs in which at least that share of the requests with a target met it, as
    `report.attainment` counts. Raises `DomainError` for a share outside 0–1.
    """
    if attainment is not None and not 0.0 <= attainment <= 1.0:
        raise DomainError(f"attainment is {attainment}; must be between 0 and 1")
    work = work_of(specs, acceptance, requests, seed)
    if len(work.arrival_s) == 0:
        return OracleBound(j_per_accepted_token=None, energy_j=0.0, accepted_tokens=0, attainment=attainment)
    search = _Search(work, attainment)
    rate = search.best_rate()
    tokens = int(np.maximum.reduceat(work.tokens, search.starts).sum())
    return OracleBound(
        j_per_accepted_token=rate, energy_j=rate * tokens, accepted_tokens=tokens, attainment=attainment
    )


class _Search:
    """The ascent over all prices."""

    def __init__(self, work: Work, attainment: float | None) -> None:
        self.work = work
        self._attainment = attainment
        self._windows: Windows = windows_of(work)
        self._cells: Cells = cells_of(work, self._windows)
        self.starts = np.flatnonzero(np.diff(work.request, prepend=-1))
        self._tokens = np.maximum.reduceat(work.tokens, self.starts)
        self._alike = bool(np.all(np.minimum.reduceat(work.tokens, self.starts) == self._tokens))
        self._steps = Steps(work, self._windows)
        self._end = _End(work, self.starts)
        # A prefill that begins while neighbours work lasts as if they went on, and the step under way of a server is
        # slowed from its beginning when a neighbour starts: the GPU may work that much longer than its servers need.
        others = turns_of(work, self._windows) - 1
        turns = np.array([kind.turns for kind in work.kinds])[work.kind]
        idle_w = np.array([kind.idle_w for kind in work.kinds])[work.kind]
        self._own_j = work.own_j - idle_w * others * (work.prefill_s / turns + 0.5 * work.longest_step_s)
        # A server may end in the past when a neighbour's end makes its last step short.
        self._early_j = work.idle_w * float(others.max(initial=0)) * work.longest_step_s

    def best_rate(self) -> float:
        """The highest λ for which energy − λ · tokens is proved to be at least 0."""
        scans = [self._ascend(fixed, _SCAN_ROUNDS, _RATES[0]) for fixed in self._fixed_choices()]
        best = max(scans, key=lambda found: found.energy_j)
        fixed = best.fixed
        for rate in _RATES:
            best = max(best, self._ascend(fixed, _ROUNDS, rate), key=lambda found: found.energy_j)
        if best.energy_j == inf:
            return inf
        least = best.energy_j / float(self._tokens.sum())
        if not self._alike:
            least = max(least, self._by_ratio(best, least))
        return max(0.0, least - abs(least) * _ROUNDING)

    def _by_ratio(self, best: _Found, low: float) -> float:
        """Where answers are cut by small contexts, tokens depend on the choice too: bisection over λ."""
        high = 2.0 * low + 1e-9
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            if self._bound(best.cost_free_j - middle * self.work.tokens, best.extra_j)[0] + best.end_j >= 0.0:
                low = middle
            else:
                high = middle
        return low

    def _fixed_choices(self) -> list[_Fixed]:
        """Nothing fixed; and the intercepts of the lower hulls at an operating batch, the same batch for all kinds."""
        most = int(self._windows.largest_batch.max())
        batches = [b for b in _OPERATING_BATCHES if b < most] + [most]
        nothing = np.zeros(len(self.work.kinds))
        choices = [_Fixed(nothing, nothing)]
        for batch in batches:
            fixed_j, fixed_s = nothing.copy(), nothing.copy()
            for number, kind in enumerate(self.work.kinds):
                mine = self.work.kind == number
                top = int(self._windows.largest_batch[mine].max()) if np.any(mine) else 1
                fixed_j[number] = max(0.0, _intercept(kind.alpha_j[:top], min(batch, top)))
                fixed_s[number] = max(0.0, _intercept(kind.least_step_s[:top], min(batch, top)))
            if not any(np.allclose(fixed_j, other.j) for other in choices):
                choices.append(_Fixed(fixed_j, fixed_s))
        return choices

    def _ascend(self, fixed: _Fixed, rounds: int, first_rate: float) -> _Found:
        work, end = self.work, self._end
        prices = Prices(work, self._cells)
        end.reset()
        best: _Found | None = None
        extra_j = np.zeros(len(work.request))
        scale = 0.0
        for round_ in range(rounds):
            time_w = end.time_w()
            fixed_j = fixed.j + time_w * fixed.s
            free_j = self._steps.free_j(fixed_j, time_w)
            if self._attainment is not None:
                extra_j = self._steps.timely_j(fixed_j, time_w) - free_j
            cost_j = self._own_j + free_j + prices.pay_j(fixed_j) + end.cost_j()
            scale = scale or float(np.mean(np.abs(free_j + self._own_j))) + 1e-12
            value_j, chosen_j = self._bound(cost_j, extra_j)
            total_j = value_j + end.constant_j() - self._early_j
            if best is None or total_j > best.energy_j:
                best = _Found(fixed, total_j, cost_j, extra_j, end.constant_j() - self._early_j)
            if total_j == inf:
                break
            progress = round_ / max(1, rounds - 1)
            share = self._share(chosen_j, scale * 0.1 * 0.03**progress)
            rate = first_rate * 0.03**progress
            prices.raise_used(share, rate, float(fixed_j.max()) * 0.2 * 0.1**progress)
            end.raise_late(share, rate)
        assert best is not None
        return best

    def _bound(self, cost_j: FloatArray, extra_j: FloatArray) -> tuple[float, FloatArray]:
        """Σ over requests of the least cost at the best ψ, and each pair's cost at that ψ."""
        work, share = self.work, self._attainment
        if share is None:
            return float(np.minimum.reduceat(cost_j, self.starts).sum()), cost_j
        judged = np.isfinite(work.budget_s) & (work.budget_s >= 0.0)
        elsewhere = work.judged_elsewhere

        def at(psi: float) -> tuple[float, float, FloatArray]:
            missed = np.where(judged, cost_j + psi * share, cost_j)
            met = np.where(judged, cost_j + extra_j - psi * (1.0 - share), inf)
            least = np.minimum(missed, met)
            each = np.minimum.reduceat(least, self.starts)
            # The slope: what is paid for meeting, of the choice made; ties count for the smaller ψ.
            first = least == np.repeat(each, np.diff(np.append(self.starts, len(least))))
            met_first = np.logical_or.reduceat(first & judged & (met <= missed), self.starts)
            judged_first = np.logical_or.reduceat(first & judged, self.starts)
            slope = share * float(judged_first.sum() + elsewhere) - float(met_first.sum())
            return float(each.sum()) + psi * share * elsewhere, slope, least

        low, high = 0.0, 1.0
        value, slope, least = at(0.0)
        if slope <= 0.0:
            return value, least
        best = (value, least)
        for _ in range(60):
            value, slope, least = at(high)
            if value > best[0]:
                best = value, least
            if slope <= 0.0:
                break
            low, high = high, 4.0 * high
        else:
            return inf, least
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            value, slope, least = at(middle)
            if value > best[0]:
                best = value, least
            if slope > 0.0:
                low = middle
            else:
                high = middle
        return best

    def _share(self, cost_j: FloatArray, temperature: float) -> FloatArray:
        """Per pair, how much of its request it gets: all to the cheapest, smoothed."""
        sizes = np.diff(np.append(self.starts, len(cost_j)))
        least = np.repeat(np.minimum.reduceat(cost_j, self.starts), sizes)
        weight: npt.NDArray[np.float64] = np.exp(-(cost_j - least) / temperature)
        return weight / np.repeat(np.add.reduceat(weight, self.starts), sizes)


@dataclass(frozen=True, slots=True)
class _Fixed:
    """Per kind, the part of α(b) and of θ(b) that is shared by prices."""

    j: FloatArray
    s: FloatArray


@dataclass(frozen=True, slots=True)
class _Found:
    fixed: _Fixed
    energy_j: float
    cost_free_j: FloatArray
    extra_j: FloatArray
    end_j: float


class _End:
    """Idle power up to the end of the run, by weights over what the end cannot precede.

    Those are: the last arrival, the earliest end of each late request on the kind it gets, and for each kind the time
    that its servers need for the work they get.
    """

    def __init__(self, work: Work, starts: npt.NDArray[np.int64]) -> None:
        self._work = work
        self._starts = starts
        self._end_s = work.first_token_s + work.decode_s
        least, most = np.minimum.reduceat(self._end_s, starts), np.maximum.reduceat(self._end_s, starts)
        surely_s = max(work.last_arrival_s, float(least.max()))
        late = np.flatnonzero(most >= surely_s)
        self._slot = np.full(len(least), -1)
        self._slot[late] = np.arange(len(late))
        self._pair_slot = self._slot[work.request]
        self._servers = np.array([len(kind.backends) for kind in work.kinds])
        self._first_s = float(work.arrival_s.min())
        per_step_s = np.array([np.min(k.least_step_s / np.arange(1, len(k.least_step_s) + 1)) for k in work.kinds])
        context_s = work.decode_s - work.steps * np.array([k.least_step_s[0] for k in work.kinds])[work.kind]
        self._own_s = context_s + work.first_token_s - work.arrival_s[work.request]
        """Time of its server that no sharing of steps lessens."""
        self._load_s = self._own_s + work.steps * per_step_s[work.kind]
        typical_s = float(np.median(work.decode_s))
        self._span_s = max(float(most.max()) - surely_s, 0.2 * typical_s, 1e-9)
        self._start = np.concatenate([least[late], [work.last_arrival_s], np.full(len(work.kinds), self._first_s)])
        self._start = np.maximum((self._start - surely_s) / self._span_s * 20.0, -20.0)
        self._log = self._start

    def reset(self) -> None:
        """Most weight on the latest."""
        self._log = self._start

    def _weights(self) -> FloatArray:
        weight = np.exp(self._log - self._log.max())
        found: FloatArray = weight / weight.sum() * self._work.idle_w
        return found

    def time_w(self) -> FloatArray:
        """Price of the time of one server, per kind."""
        found: FloatArray = self._weights()[-len(self._servers) :] / self._servers
        return found

    def cost_j(self) -> FloatArray:
        """Per pair, without what its steps pay for time."""
        weights = self._weights()
        late = np.where(self._pair_slot >= 0, weights[np.maximum(self._pair_slot, 0)], 0.0)
        found: FloatArray = late * self._end_s + self.time_w()[self._work.kind] * self._own_s
        return found

    def constant_j(self) -> float:
        """What no choice changes."""
        weights, kinds = self._weights(), len(self._servers)
        first = weights[-kinds - 1] * self._work.last_arrival_s + weights[-kinds:].sum() * self._first_s
        return float(first)

    def raise_late(self, share: FloatArray, rate: float) -> None:
        """More weight on what came latest under the choice made."""
        requests = np.add.reduceat(share * self._end_s, self._starts)
        loads = np.bincount(self._work.kind, weights=share * self._load_s, minlength=len(self._servers))
        ends = np.concatenate(
            [requests[self._slot >= 0], [self._work.last_arrival_s], self._first_s + loads / self._servers]
        )
        log = self._log + 3.0 * rate * np.maximum((ends - ends.max()) / self._span_s, -3.0)
        self._log = np.maximum(log - log.max(), -40.0)


def _intercept(alpha_j: FloatArray, batch: int) -> float:
    """Where the lower convex hull of (b, α(b)), at `batch`, meets b = 0."""
    b = np.arange(1, len(alpha_j) + 1)
    if len(b) == 1:
        return float(alpha_j[0])
    below, above = b < batch, b > batch
    at = float(alpha_j[batch - 1])
    if batch < len(b):
        slope = float(np.min((alpha_j[above] - at) / (b[above] - batch)))
    else:
        slope = float(np.max((at - alpha_j[below]) / (batch - b[below])))
    return at - slope * batch
