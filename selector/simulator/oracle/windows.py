"""When the steps of each request can happen on each kind, whatever the policy does.

Not before: prefill alone, then steps alone. Not after: what a server that is worse than any real one makes of it
(`worstserver`). Where the KV cache could run full, nothing is said from then on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from selector.simulator.oracle.kinds import FloatArray, IntArray
from selector.simulator.oracle.work import Work
from selector.simulator.oracle.worstserver import WorstServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Per pair of `Work`, and per kind the clock of its worst server."""

    latest_end_s: FloatArray
    """Infinite where nothing can be said."""
    largest_batch: IntArray
    """No step of it is shared by more."""
    last_step: FloatArray
    """Of the worst server's clock, the step with which the request ends there."""
    clocks: tuple[Clock, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Steps that the worst server has made over time, linear between these points."""

    at_s: FloatArray
    steps: FloatArray

    def when(self, steps: FloatArray) -> FloatArray:
        """The first time at which that many steps are made; infinite beyond the last."""
        after = np.searchsorted(self.steps, steps * (1 - 1e-12), side="left")
        inside = np.minimum(after, len(self.steps) - 1)
        before = np.maximum(inside - 1, 0)
        made = self.steps[inside] - self.steps[before]
        part = np.divide(steps - self.steps[before], made, out=np.ones(len(steps)), where=made > 0)
        found = self.at_s[before] + np.clip(part, 0.0, 1.0) * (self.at_s[inside] - self.at_s[before])
        return np.where(after < len(self.steps), found, np.inf)

    def until(self, steps: FloatArray) -> FloatArray:
        """The last time at which no more than that many steps are made; infinite beyond the last."""
        after = np.searchsorted(self.steps, steps * (1 + 1e-12), side="right")
        inside = np.minimum(after, len(self.steps) - 1)
        return np.where(after < len(self.steps), np.maximum(self.at_s[inside - 1], self.when(steps)), np.inf)


def windows_of(work: Work) -> Windows:
    """The windows of every pair."""
    pairs = len(work.request)
    ends, last_step = np.full(pairs, np.inf), np.zeros(pairs)
    batches = np.ones(pairs, dtype=np.int64)
    clocks = []
    for number, kind in enumerate(work.kinds):
        mine = np.flatnonzero(work.kind == number)
        worst = WorstServer(kind)
        worst.run(
            work.arrival_s[work.request[mine]],
            work.steps[mine],
            work.prefill_s[mine],
            work.kv_tokens[mine],
            work.reserved_tokens[mine],
        )
        clocks.append(Clock(at_s=np.array(worst.at_s), steps=np.array(worst.made)))
        if len(mine) == 0:
            continue
        ends[mine], last_step[mine] = worst.ends_s, worst.last_step
        arrival_s = work.arrival_s[work.request[mine]]
        last = np.searchsorted(arrival_s, ends[mine], side="right") - 1
        present = _range_max(np.array(worst.present, dtype=np.float64), last)
        known = np.isfinite(ends[mine])
        places = kind.spec.max_running_requests
        batches[mine] = np.where(known, np.minimum(present, places), min(places, len(mine))).astype(np.int64)
    return Windows(latest_end_s=ends, largest_batch=batches, last_step=last_step, clocks=tuple(clocks))


def sure_stalls_s(work: Work, windows: Windows) -> FloatArray:
    """Per pair, prefill that surely stalls the decoding of its request, if it goes there.

    It is that of requests which have no other choice than the same server, and which arrive after the request's
    latest first token and more than a step before its earliest end, where nobody waits for a place.
    """
    found = np.zeros(len(work.request))
    fixed = np.bincount(work.request)[work.request] == 1
    for number, kind in enumerate(work.kinds):
        mine = np.flatnonzero(work.kind == number)
        there = mine[fixed[mine]]
        all_tokens = float(np.sum(work.kv_tokens[mine] + work.reserved_tokens[mine]))
        waits = len(mine) > kind.spec.max_running_requests or all_tokens >= kind.spec.max_kv_tokens
        if len(kind.backends) > 1 or len(there) == 0 or waits:
            continue
        arrival_s = work.arrival_s[work.request[there]]
        prefill_s = np.append(0.0, np.cumsum(work.first_token_s[there] - arrival_s))
        first_s = windows.clocks[number].until(windows.last_step[mine] - work.steps[mine])
        step_s = kind.most_step_s[windows.largest_batch[mine] - 1] + kind.most_s_per_token * float(
            np.sum(work.kv_tokens[mine])
        )
        end_s = work.first_token_s[mine] + work.decode_s[mine] - step_s
        before, after = np.searchsorted(arrival_s, end_s, side="left"), np.searchsorted(arrival_s, first_s, "right")
        found[mine] = np.maximum(0.0, prefill_s[before] - prefill_s[np.minimum(after, before)])
    return found


def _range_max(values: FloatArray, last: IntArray) -> FloatArray:
    """Of each index i, the largest value in i … last[i]."""
    first = np.arange(len(values))
    last = np.maximum(last, first)
    levels = [values]
    width = 1
    while 2 * width <= len(values):
        prior = levels[-1]
        levels.append(np.maximum(prior[:-width], prior[width:]))
        width *= 2
    level = np.floor(np.log2(last - first + 1)).astype(np.int64)
    found = np.empty(len(values))
    for number, table in enumerate(levels):
        at = np.flatnonzero(level == number)
        found[at] = np.maximum(table[first[at]], table[last[at] - (1 << number) + 1])
    return found
