"""Idle power up to the end of the run, by weights over what the end cannot precede.

For any run, its end D is at least each of

    the last arrival
    the earliest end of request i on the backend it gets
    arrival of i + all prefill of i and later ones on server k + the decoding of i, if it is there
    first arrival + the time that the servers of kind k need for all their work, over their number

(prefill stops decoding on the same server, so the times of the third add up). Weights that sum to the idle power turn
that into a cost of each pair and a constant; any weights give a valid bound.
"""

from __future__ import annotations

import numpy as np

from selector.simulator.oracle.kinds import FloatArray
from selector.simulator.oracle.work import Work

_SHARPNESS = 20.0
_DECADES = 60.0


class End:
    """The weights of one ascent."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._starts = starts = work.starts
        kinds, requests = len(work.kinds), len(starts)
        self._servers = np.array([len(kind.backends) for kind in work.kinds])
        self._end_s = work.first_token_s + work.decode_s
        self._prefill_s = work.first_token_s - work.arrival_s[work.request]
        self._first_s = float(work.arrival_s.min())
        steps_s = np.array([np.min(k.least_step_s / np.arange(1, len(k.least_step_s) + 1)) for k in work.kinds])
        first_step_s = np.array([k.least_step_s[0] for k in work.kinds])
        self._own_s = work.decode_s - work.steps * first_step_s[work.kind] + self._prefill_s
        """Time of its server that no sharing of steps lessens."""
        self._load_s = self._own_s + work.steps * steps_s[work.kind]
        self._pair_at = work.request * kinds + work.kind
        """Place of each pair in a table of (request, kind)."""
        self._lone = np.tile(self._servers == 1, requests)
        self._arrival_s = np.repeat(work.arrival_s, kinds)
        self._shape = (requests, kinds)
        least, most = np.minimum.reduceat(self._end_s, starts), np.maximum.reduceat(self._end_s, starts)
        self._surely_s = max(work.last_arrival_s, float(least.max()))
        typical_s = float(np.median(work.decode_s))
        self._span_s = max(float(most.max()) - self._surely_s, 0.2 * typical_s, 1e-9)
        self._log = np.zeros(0)
        self.reset()

    def reset(self) -> None:
        """Most weight on what is latest when each request has its earliest end."""
        least = np.minimum.reduceat(self._end_s, self._starts)
        sizes = np.diff(np.append(self._starts, len(self._end_s)))
        chosen = np.where(self._end_s == np.repeat(least, sizes), 1.0, 0.0)
        self._log = np.zeros(len(self._bounds_s(chosen)))
        self._log = _SHARPNESS * (self._bounds_s(chosen) - self._surely_s) / self._span_s
        self._log = np.maximum(self._log - self._log.max(), -_SHARPNESS)

    def _bounds_s(self, share: FloatArray) -> FloatArray:
        """What the end cannot precede when each pair has that share of its request."""
        work = self._work
        ends = np.add.reduceat(share * self._end_s, self._starts)
        prefill = np.bincount(self._pair_at, weights=share * self._prefill_s, minlength=len(self._lone))
        decode = np.bincount(self._pair_at, weights=share * work.decode_s, minlength=len(self._lone))
        later = np.cumsum(prefill.reshape(self._shape)[::-1], axis=0)[::-1].reshape(-1)
        alone = np.where(self._lone, self._arrival_s + later + decode, -np.inf)
        loads = np.bincount(work.kind, weights=share * self._load_s, minlength=len(self._servers)) / self._servers
        found: FloatArray = np.concatenate([[work.last_arrival_s], ends, alone, self._first_s + loads])
        return found

    def _weights(self) -> tuple[float, FloatArray, FloatArray, FloatArray]:
        weight = np.exp(self._log - self._log.max())
        weight *= self._work.idle_w / weight.sum()
        requests, kinds = self._shape
        return (
            float(weight[0]),
            weight[1 : requests + 1],
            weight[requests + 1 : -kinds],
            weight[-kinds:],
        )

    def time_w(self) -> FloatArray:
        """Price of the time of one server, per kind."""
        found: FloatArray = self._weights()[3] / self._servers
        return found

    def cost_j(self) -> FloatArray:
        """Per pair, without what its steps pay for time."""
        work = self._work
        _, ends, alone, loads = self._weights()
        earlier = np.cumsum(alone.reshape(self._shape), axis=0).reshape(-1)
        found: FloatArray = (
            ends[work.request] * self._end_s
            + earlier[self._pair_at] * self._prefill_s
            + alone[self._pair_at] * work.decode_s
            + (loads / self._servers)[work.kind] * self._own_s
        )
        return found

    def constant_j(self) -> float:
        """What no choice changes."""
        last, _, alone, loads = self._weights()
        constant = last * self._work.last_arrival_s + float(loads.sum()) * self._first_s
        return constant + float(np.sum(alone * self._arrival_s))

    def raise_late(self, share: FloatArray, rate: float) -> None:
        """More weight on what came latest under the choice made."""
        bounds = self._bounds_s(share)
        log = self._log + 3.0 * rate * np.maximum((bounds - bounds.max()) / self._span_s, -3.0)
        self._log = np.maximum(log - log.max(), -_DECADES)
