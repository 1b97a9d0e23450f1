"""When the steps of each request can happen on each kind, whatever the policy does.

Not before: prefill alone, then steps alone. Not after: what a *worst server* of the kind makes of it, which gets
every request that the kind can serve and treats all of them worse than a real one treats any part of them:

    every arrival stalls the server for the request's prefill, even while it waits for a place
    when not stalled, all running requests advance together, at the pace of their number and their final contexts
    a request has to make its own steps and besides wait for one step under way, the longest there can be

Then at every moment each request on a real server has advanced at least as far as on the worst one: the argument is in
docs/oracle.md. Where the KV cache could run full, nothing is said from then on.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from selector.simulator.oracle.kinds import FloatArray, IntArray, Kind
from selector.simulator.oracle.work import Work


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
        worst = _WorstServer(kind)
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
        present = _range_max(np.array(worst.present), last)
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


class _WorstServer:
    """See the module. Times in s, the clock in steps."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._step_s = kind.most_step_s.tolist()
        self.at_s: list[float] = [0.0]
        self.made: list[float] = [0.0]
        self._taken: list[float] = []
        """Per request, its KV cache at the end and what it may generate."""
        self._running_tokens = 0.0
        """Of those running."""
        self.present: list[float] = []
        """Requests that are there just after each arrival."""
        self.last_step: npt.NDArray[np.float64] = np.zeros(0)
        self.ends_s: npt.NDArray[np.float64] = np.zeros(0)

    def run(
        self,
        arrival_s: FloatArray,
        steps: FloatArray,
        prefill_s: FloatArray,
        kv_tokens: FloatArray,
        reserved_tokens: FloatArray,
    ) -> None:
        """Serves all; arrays in order of arrival."""
        arrivals, needs, prefills, kvs = arrival_s.tolist(), steps.tolist(), prefill_s.tolist(), kv_tokens.tolist()
        self._taken = (kv_tokens + reserved_tokens).tolist()
        size = len(arrivals)
        self.last_step, self.ends_s = np.full(size, np.inf), np.full(size, np.inf)
        most_kv = float(self._kind.spec.max_kv_tokens)
        per_token_s, step_s = self._kind.most_s_per_token, self._step_s
        now_s = clock = stall_s = held_kv = under_way_s = 0.0
        running: list[tuple[float, int]] = []
        waiting: deque[int] = deque()
        following = 0
        self.present = [0.0] * size
        while following < size or running:
            next_s = arrivals[following] if following < size else float("inf")
            pace_s = step_s[len(running) - 1] + per_token_s * held_kv if running else 0.0
            event_s = now_s + stall_s + max(0.0, running[0][0] - clock) * pace_s if running else float("inf")
            if next_s < event_s:
                worked_s = max(0.0, next_s - now_s - stall_s)
                stall_s = max(0.0, stall_s - (next_s - now_s))
                if worked_s > 0.0 and running:
                    self._tell(next_s - worked_s, clock)
                    clock += worked_s / pace_s
                now_s = next_s
                count = len(running) + len(waiting)
                if stall_s == 0.0:
                    under_way_s = 0.0
                if running:
                    under_way_s = max(under_way_s, pace_s)
                held_kv += kvs[following]
                if held_kv + 1.0 > most_kv and count > 0:
                    # From here on requests may be thrown out of the KV cache.
                    break
                stall_s += prefills[following]
                needs[following] += under_way_s / (step_s[0] + per_token_s * kvs[following])
                waiting.append(following)
                self._take(waiting, clock, needs, running)
                self.present[following] = count + 1.0
                following += 1
            else:
                self._tell(now_s + stall_s, clock)
                now_s, stall_s = event_s, 0.0
                clock = max(clock, running[0][0])
                while running and running[0][0] <= clock:
                    number = heappop(running)[1]
                    self.ends_s[number] = now_s
                    held_kv -= kvs[number]
                    self._running_tokens -= self._taken[number]
                self._take(waiting, clock, needs, running)
            self._tell(now_s, clock)
        # The last of several arrivals at one instant counts for all of them.
        for index in range(size - 2, -1, -1):
            if arrivals[index] == arrivals[index + 1]:
                self.present[index] = max(self.present[index], self.present[index + 1])

    def _take(self, waiting: deque[int], clock: float, needs: list[float], running: list[tuple[float, int]]) -> None:
        """Whoever has a place, and KV cache with all that it and the others may generate, gets it, in order."""
        spec = self._kind.spec
        while waiting and len(running) < spec.max_running_requests:
            number = waiting[0]
            if running and self._running_tokens + self._taken[number] >= spec.max_kv_tokens:
                return
            waiting.popleft()
            self._running_tokens += self._taken[number]
            # Its last step ends when all it needs is made; its first ones may be what it waits for.
            self.last_step[number] = clock + needs[number]
            heappush(running, (clock + needs[number], number))

    def _tell(self, at_s: float, clock: float) -> None:
        self.at_s.append(at_s)
        self.made.append(clock)


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
