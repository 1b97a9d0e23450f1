"""The least cost of all requests when a share of those with a target must meet it.

A request that meets its target costs at least what its kind charges within its step time, one that misses at least
what it charges otherwise. A reward ψ ≥ 0 is paid for meeting and a fee for missing, so that whoever attains the share
α asked for pays no more than he gets:

    Σ cost ≥ Σ_i min(cost within target − ψ (1 − α),  cost otherwise + ψ α) + ψ α · (misses before any choice)

Any ψ gives a valid bound, and the right-hand side is concave in ψ: the best one is found by bisection.
"""

from __future__ import annotations

from math import inf

import numpy as np

from selector.simulator.oracle.kinds import FloatArray
from selector.simulator.oracle.work import Work

_BISECTIONS = 30


class Attained:
    """For one share, between 0 and 1; `None` asks for nothing."""

    def __init__(self, work: Work, share: float | None) -> None:
        self.asked = share is not None
        # A share that was computed as met / judged must not round to one request more.
        self._share = (share or 0.0) * (1.0 - 1e-9)
        self._starts = work.starts
        self._sizes = np.diff(np.append(self._starts, len(work.request)))
        self._judged = np.isfinite(work.budget_s) & (work.budget_s >= 0.0)
        self._missed = work.judged_elsewhere

    def least_j(self, cost_j: FloatArray, extra_j: FloatArray) -> tuple[float, FloatArray]:
        """The bound, infinite if the share cannot be attained, and what each pair costs under it.

        Per pair, `cost_j` at any pace and what meeting the target costs more, infinite where it cannot be met.
        """
        if not self.asked:
            return float(np.minimum.reduceat(cost_j, self._starts).sum()), cost_j
        value_j, slope, least_j = self._at(0.0, cost_j, extra_j)
        if slope <= 0.0:
            return value_j, least_j
        best = value_j, least_j
        # With more than this, whoever can meet his target does.
        finite = extra_j[np.isfinite(extra_j)]
        low, high = 0.0, 2.0 * float(np.ptp(cost_j)) + 2.0 * float(np.max(finite, initial=0.0)) + 1.0
        value_j, slope, least_j = self._at(high, cost_j, extra_j)
        if slope > 0.0:
            return inf, least_j
        for _ in range(_BISECTIONS):
            psi = 0.5 * (low + high)
            value_j, slope, least_j = self._at(psi, cost_j, extra_j)
            if value_j > best[0]:
                best = value_j, least_j
            if slope > 0.0:
                low = psi
            else:
                high = psi
        return best

    def _at(self, psi: float, cost_j: FloatArray, extra_j: FloatArray) -> tuple[float, float, FloatArray]:
        """The bound at ψ, its slope there, and what each pair costs."""
        share, judged = self._share, self._judged
        missing = np.where(judged, cost_j + psi * share, cost_j)
        meeting = np.where(judged, cost_j + extra_j - psi * (1.0 - share), inf)
        least = np.minimum(missing, meeting)
        each = np.minimum.reduceat(least, self._starts)
        chosen = (least == np.repeat(each, self._sizes)) & judged
        met = np.logical_or.reduceat(chosen & (meeting <= missing), self._starts)
        counted = np.logical_or.reduceat(chosen, self._starts)
        slope = share * float(counted.sum() + self._missed) - float(met.sum())
        return float(each.sum()) + psi * share * self._missed, slope, least
