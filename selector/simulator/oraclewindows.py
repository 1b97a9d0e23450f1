"""When the steps of each request can happen on each kind, whatever the policy does.

Not before: prefill alone, then steps alone. Not after: a server works as long as it has work, prefill first, so a
request that is not kept waiting for a place or for KV cache ends by

    end of all prefill that came before it  +  its steps, each as long as the largest possible batch makes it
                                            +  all prefill that comes meanwhile

with every request that the kind can serve sent to the same server. The largest batch follows from how many requests
can be there at once, which follows from the ends: any ends that follow from themselves are valid, since in a run that
broke one, the first request to break its end would have had no more neighbours than were reckoned with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from selector.simulator.oraclework import FloatArray, IntArray, Kind, Work

_ROUNDS = 60
_GROWTH = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Per pair of `Work`."""

    latest_end_s: FloatArray
    """Infinite where a request may wait for a place."""
    largest_batch: IntArray
    """No step of it is shared by more."""
    most_step_s: FloatArray
    level_s: FloatArray
    """The k-th step ends by the first t at which t − (prefill that came by t) reaches level + k · step."""


class Backlog:
    """Prefill work of everything that a kind can serve, in order of arrival."""

    def __init__(self, arrival_s: FloatArray, prefill_s: FloatArray) -> None:
        self.arrival_s = arrival_s
        self.sums_s = np.cumsum(prefill_s)
        next_s = np.append(arrival_s[1:], np.inf)
        self._reached_s = np.maximum.accumulate(next_s - self.sums_s)

    def when(self, level_s: FloatArray) -> FloatArray:
        """First t at which t − (prefill that came by t) reaches a level."""
        before = np.searchsorted(self._reached_s, level_s, side="left")
        return level_s + self.sums_s[np.minimum(before, len(self.sums_s) - 1)]


def backlogs_of(work: Work) -> list[Backlog]:
    """One a kind; of a kind that can serve nothing, an empty one."""
    found = []
    for kind in range(len(work.kinds)):
        mine = work.kind == kind
        found.append(Backlog(work.arrival_s[work.request[mine]], work.prefill_s[mine]))
    return found


def windows_of(work: Work, backlogs: list[Backlog]) -> Windows:
    """The windows of every pair."""
    pairs = len(work.request)
    ends, batches = np.empty(pairs), np.empty(pairs, dtype=np.int64)
    steps_s, levels = np.empty(pairs), np.empty(pairs)
    for number, kind in enumerate(work.kinds):
        mine = np.flatnonzero(work.kind == number)
        if len(mine) > 0:
            ends[mine], batches[mine], steps_s[mine], levels[mine] = _windows_on(kind, work, mine, backlogs[number])
    return Windows(latest_end_s=ends, largest_batch=batches, most_step_s=steps_s, level_s=levels)


def _windows_on(
    kind: Kind, work: Work, mine: IntArray, backlog: Backlog
) -> tuple[FloatArray, IntArray, FloatArray, FloatArray]:
    arrival_s, steps, kv = backlog.arrival_s, work.steps[mine], work.kv_tokens[mine]
    places = kind.spec.max_running_requests
    worst_kv = np.maximum(float(kind.spec.max_kv_tokens), kv)
    ends = arrival_s + work.decode_s[mine]
    waits = np.zeros(len(mine), dtype=np.bool_)
    for round_ in range(_ROUNDS):
        count, held = _present(arrival_s, ends, kv)
        last = np.searchsorted(arrival_s, ends, side="right") - 1
        batch, tokens = _range_max(count, last), _range_max(held, last)
        waits = (batch > places) | ((tokens + 1.0 > kind.spec.max_kv_tokens) & (batch > 1)) | ~np.isfinite(ends)
        capped = np.minimum(batch, places).astype(np.int64)
        step_s = kind.most_step_s[capped - 1] + kind.most_s_per_token * np.where(
            waits, worst_kv, np.minimum(tokens, worst_kv)
        )
        # The end of all prefill up to each, were a step under way whenever one arrives.
        begun_s = np.maximum.accumulate(arrival_s + step_s - np.append(0.0, backlog.sums_s[:-1]))
        level_s = begun_s
        follow = np.where(waits, np.inf, backlog.when(level_s + steps * step_s))
        if np.all(follow <= ends):
            break
        # Ends only rise; those still rising late are given up, and then those that depend on them.
        rising = follow > ends
        ends = np.where(rising, follow * (1 + _GROWTH) if round_ < _ROUNDS // 2 else np.inf, ends)
    else:
        ends = np.full(len(mine), np.inf)
        capped = np.full(len(mine), places)
        step_s = kind.most_step_s[capped - 1] + kind.most_s_per_token * worst_kv
    return ends, capped, step_s, level_s


def _present(arrival_s: FloatArray, ends: FloatArray, kv: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Requests, and their tokens, that can be there just after each arrival."""
    order = np.argsort(ends, kind="stable")
    gone = np.searchsorted(ends[order], arrival_s, side="left")
    gone_kv = np.append(0.0, np.cumsum(kv[order]))[gone]
    # Of those that arrive at one instant, the first sees the others too.
    last = np.searchsorted(arrival_s, arrival_s, side="right")
    return last - gone.astype(np.float64), np.cumsum(kv)[last - 1] - gone_kv


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
