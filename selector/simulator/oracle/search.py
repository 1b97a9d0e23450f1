"""The search for prices: one ascent over the sharing of steps, the end of the run and the attainment together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from selector.simulator.oracle.attained import Attained
from selector.simulator.oracle.end import End
from selector.simulator.oracle.kinds import FloatArray
from selector.simulator.oracle.sharing import Prices, Steps, cells_of
from selector.simulator.oracle.windows import sure_stalls_s, windows_of
from selector.simulator.oracle.work import Work

_BISECTIONS = 40

_OPERATING_BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to look for prices. Less of it gives a lower bound, never a wrong one."""

    scan_rounds: int = 12
    """For each way to split steps into a fixed part and even shares."""
    rounds: int = 150
    """For the best of them."""
    rates: tuple[float, ...] = (1.0, 0.3)
    """First steps of the ascents: bold ones find more with few requests, gentle ones with many."""
    cases: int = 40
    """With few requests, cases to split into (`branch`)."""


class Search:
    """The ascent over all prices."""

    def __init__(self, work: Work, attainment: float | None) -> None:
        self._attained = Attained(work, attainment)
        self._windows = windows_of(work)
        stalls_s = sure_stalls_s(work, self._windows)
        budget_s = np.where(work.budget_s < 0.0, work.budget_s, np.maximum(0.0, work.budget_s - stalls_s))
        self.work = work = replace(work, budget_s=budget_s)
        self._cells = cells_of(work, self._windows)
        self.starts = work.starts
        self._tokens = np.maximum.reduceat(work.tokens, self.starts)
        self._alike = bool(np.all(np.minimum.reduceat(work.tokens, self.starts) == self._tokens))
        self._steps = Steps(work, self._windows)
        self._end = End(work)

    def best(self, effort: Effort) -> Found:
        """The highest bound found."""
        scans = [self._ascend(fixed, effort.scan_rounds, effort.rates[0]) for fixed in self._fixed_choices()]
        best = max(scans, key=lambda found: found.energy_j)
        fixed = best.fixed
        for rate in effort.rates:
            best = max(best, self._ascend(fixed, effort.rounds, rate), key=lambda found: found.energy_j)
        return best

    def j_per_token(self, found: Found) -> float:
        """The highest λ for which `found` proves that energy − λ · tokens is at least 0."""
        if found.energy_j == inf:
            return inf
        least = found.energy_j / float(self._tokens.sum())
        return least if self._alike else max(least, self._by_ratio(found, least))

    def _by_ratio(self, best: Found, low: float) -> float:
        """Where answers are cut by small contexts, tokens depend on the choice too: bisection over λ."""
        high = 2.0 * low + 1e-9
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            if (
                self._attained.least_j(best.cost_free_j - middle * self.work.tokens, best.extra_j)[0] + best.end_j
                >= 0.0
            ):
                low = middle
            else:
                high = middle
        return low

    def _fixed_choices(self) -> list[Fixed]:
        """Nothing fixed; and the intercepts of the lower hulls at an operating batch, the same batch for all kinds."""
        most = int(self._windows.largest_batch.max())
        batches = [b for b in _OPERATING_BATCHES if b < most] + [most]
        nothing = np.zeros(len(self.work.kinds))
        choices = [Fixed(nothing, nothing)]
        for batch in batches:
            fixed_j, fixed_s = nothing.copy(), nothing.copy()
            for number, kind in enumerate(self.work.kinds):
                mine = self.work.kind == number
                top = int(self._windows.largest_batch[mine].max()) if np.any(mine) else 1
                fixed_j[number] = max(0.0, _intercept(kind.alpha_j[:top], min(batch, top)))
                fixed_s[number] = max(0.0, _intercept(kind.least_step_s[:top], min(batch, top)))
            if not any(np.allclose(fixed_j, other.j) for other in choices):
                choices.append(Fixed(fixed_j, fixed_s))
        return choices

    def _ascend(self, fixed: Fixed, rounds: int, first_rate: float) -> Found:
        work, end = self.work, self._end
        prices = Prices(work, self._cells)
        end.reset()
        best: Found | None = None
        extra_j = np.zeros(len(work.request))
        scale = 0.0
        for round_ in range(rounds):
            time_w = end.time_w()
            fixed_j = fixed.j + time_w * fixed.s
            free_j = self._steps.free_j(fixed_j, time_w)
            if self._attained.asked:
                extra_j = self._steps.timely_j(fixed_j, time_w) - free_j
            cost_j = work.own_j + free_j + prices.pay_j(fixed_j) + end.cost_j()
            scale = scale or float(np.mean(np.abs(free_j + work.own_j))) + 1e-12
            value_j, chosen_j = self._attained.least_j(cost_j, extra_j)
            total_j = value_j + end.constant_j()
            if best is None or total_j > best.energy_j:
                best = Found(fixed, total_j, cost_j, extra_j, end.constant_j())
            if total_j == inf:
                break
            progress = round_ / max(1, rounds - 1)
            share = self._share(chosen_j, scale * 0.1 * 0.03**progress)
            rate = first_rate * 0.03**progress
            prices.raise_used(share, rate, float(fixed_j.max()) * 0.2 * 0.1**progress)
            end.raise_late(share, rate)
        assert best is not None
        return best

    def _share(self, cost_j: FloatArray, temperature: float) -> FloatArray:
        """Per pair, how much of its request it gets: all to the cheapest, smoothed."""
        sizes = np.diff(np.append(self.starts, len(cost_j)))
        least = np.repeat(np.minimum.reduceat(cost_j, self.starts), sizes)
        weight = np.exp(-(cost_j - least) / temperature)
        found: FloatArray = weight / np.repeat(np.add.reduceat(weight, self.starts), sizes)
        return found


@dataclass(frozen=True, slots=True)
class Fixed:
    """Per kind, the part of α(b) and of θ(b) that is shared by prices."""

    j: FloatArray
    s: FloatArray


@dataclass(frozen=True, slots=True)
class Found:
    fixed: Fixed
    energy_j: float
    cost_free_j: FloatArray
    extra_j: FloatArray
    end_j: float


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
