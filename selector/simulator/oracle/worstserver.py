"""A server that treats every request worse than a real one of its kind does, whatever part of the requests that gets.

It gets every request that the kind can serve, and

    every arrival stalls it for the request's prefill, at once and even while that request waits for a place
    when not stalled, all running requests advance together, at the pace of the number and the final contexts of
        all who are there
    a request has to make its own steps and, before them, those that a real server may still make before it joins

A real server ends the step under way before it prefills, and the next one too where it plans ahead, so it may do work
in another order: decode first what the worst server decodes after its stall. The *lag* bounds how much, in seconds: the
steps at an arrival, and the prefill of those who had to wait for a place. While there is any, the worst server keeps to
the slowest pace it had since the lag began, so that what it advances in that time is no more than what a real one did
before. docs/oracle.md has the argument.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from math import inf

import numpy as np

from selector.simulator.oracle.kinds import FloatArray, Kind


class WorstServer:
    """One run. Times in s; the clock counts steps."""

    def __init__(self, kind: Kind) -> None:
        self.at_s: list[float] = [0.0]
        self.made: list[float] = [0.0]
        """Steps made at those times, linear in between."""
        self.present: list[int] = []
        """Requests that are there just after each arrival."""
        self.last_step: FloatArray = np.zeros(0)
        """Of the clock, the step with which each request ends."""
        self.ends_s: FloatArray = np.zeros(0)
        """Infinite where nothing can be said."""
        self._spec = kind.spec
        self._steps_first = 2 if kind.spec.overlaps else 1
        """That a real server may make before it prefills who comes: the one under way, and what it had launched."""
        self._step_s: list[float] = kind.most_step_s.tolist()
        self._s_per_token = kind.most_s_per_token
        self._now_s = self._clock = self._stall_s = 0.0
        self._running: list[tuple[float, int]] = []
        """(last step, request)."""
        self._waiting: deque[int] = deque()
        self._kv_tokens = 0.0
        """Final contexts of all who are there."""
        self._taken_tokens = 0.0
        """Of those running, with what they may generate."""
        self._lag_s = self._waiting_s = self._slowest_s = 0.0

    def run(
        self,
        arrival_s: FloatArray,
        steps: FloatArray,
        prefill_s: FloatArray,
        kv_tokens: FloatArray,
        reserved_tokens: FloatArray,
    ) -> None:
        """Serves all; arrays in order of arrival."""
        self._steps, self._prefill_s = steps.tolist(), prefill_s.tolist()
        self._kv, self._taken = kv_tokens.tolist(), (kv_tokens + reserved_tokens).tolist()
        arrivals, size = arrival_s.tolist(), len(arrival_s)
        self.last_step, self.ends_s = np.full(size, inf), np.full(size, inf)
        self.present = [size] * size
        following = 0
        while following < size or self._running:
            next_s = arrivals[following] if following < size else inf
            self._advance(next_s)
            if next_s < inf and self._now_s >= next_s:
                if not self._arrive(following):
                    break
                following += 1
        # The last of several arrivals at one instant counts for all of them.
        for index in range(size - 2, -1, -1):
            if arrivals[index] == arrivals[index + 1]:
                self.present[index] = max(self.present[index], self.present[index + 1])

    def _step_of_all_s(self) -> float:
        """A step's time if everybody who is there runs that can; not all may here, for want of KV cache."""
        there = len(self._running) + len(self._waiting)
        return self._step_s[min(there, self._spec.max_running_requests) - 1] + self._s_per_token * self._kv_tokens

    def _pace_s(self) -> float:
        """A step's time, with the lag; somebody must be there."""
        pace_s = self._step_of_all_s()
        if self._lag_s + self._waiting_s > 0.0:
            self._slowest_s = max(self._slowest_s, pace_s)
            return self._slowest_s
        return pace_s

    def _advance(self, until_s: float) -> None:
        """To the next end of a request or of the lag, but no further than `until_s`."""
        stalled_s = min(self._stall_s, until_s - self._now_s)
        self._now_s += stalled_s
        self._stall_s -= stalled_s
        self._tell()
        if not self._running:
            self._now_s = max(self._now_s, until_s)
            self._lag_s = 0.0
            return
        if self._now_s >= until_s:
            return
        pace_s = self._pace_s()
        left = self._running[0][0] - self._clock
        work_s = min(max(0.0, left) * pace_s, until_s - self._now_s)
        ends = work_s < until_s - self._now_s
        if 0.0 < self._lag_s < work_s and self._waiting_s == 0.0:
            work_s, ends = self._lag_s, False
        self._now_s += work_s
        self._clock = max(self._clock, self._running[0][0]) if ends else self._clock + work_s / pace_s
        if self._lag_s > 0.0:
            self._lag_s = max(0.0, self._lag_s - work_s)
            if self._lag_s + self._waiting_s == 0.0:
                self._slowest_s = 0.0
        self._tell()
        if ends:
            while self._running and self._running[0][0] <= self._clock:
                number = heappop(self._running)[1]
                self.ends_s[number] = self._now_s
                self._kv_tokens -= self._kv[number]
                self._taken_tokens -= self._taken[number]
            self._take()

    def _arrive(self, number: int) -> bool:
        """A request comes; False when from here on requests may be thrown out of the KV cache."""
        there = len(self._running) + len(self._waiting)
        if there > 0 and self._kv_tokens + self._kv[number] + 1.0 > self._spec.max_kv_tokens:
            return False
        if self._running:
            pace_s = self._step_of_all_s()
            self._slowest_s = max(self._slowest_s, pace_s)
            # Who comes during a pass of a real server waits for the step that is launched behind it, beside all others.
            self._lag_s = max(self._lag_s + (self._steps_first - 1) * pace_s, self._steps_first * pace_s)
        self._kv_tokens += self._kv[number]
        self._stall_s += self._prefill_s[number]
        self._waiting.append(number)
        self._waiting_s += self._prefill_s[number]
        self._take(arrived=number)
        self.present[number] = there + 1
        return True

    def _take(self, arrived: int = -1) -> None:
        """Whoever has a place, and KV cache with all that it and the others may generate, gets it, in order."""
        while self._waiting and len(self._running) < self._spec.max_running_requests:
            number = self._waiting[0]
            if self._running and self._taken_tokens + self._taken[number] >= self._spec.max_kv_tokens:
                return
            if number != arrived and self._running:
                # Its prefill was charged when it came; a real server may not have done it yet, and makes steps first.
                self._slowest_s = max(self._slowest_s, self._step_of_all_s())
                self._lag_s += self._prefill_s[number] + self._steps_first * self._slowest_s
            self._waiting.popleft()
            self._taken_tokens += self._taken[number]
            self._waiting_s = self._waiting_s - self._prefill_s[number] if self._waiting else 0.0
            before = self._lag_s / self._slowest_s if self._lag_s > 0.0 else 0.0
            self.last_step[number] = self._clock + before + self._steps[number]
            heappush(self._running, (float(self.last_step[number]), number))

    def _tell(self) -> None:
        self.at_s.append(self._now_s)
        self.made.append(self._clock)
