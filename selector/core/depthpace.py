"""What a depth costs a server whose requests come by themselves: at the same tokens per second, not at the same batch.

    b · a_d / T_d(b) = λ        J_d(λ) = (E_d(b) − P_idle · T_d(b)) / (b · a_d)

A depth that serves faster is left with a smaller batch, over which its weight reads are shared: cheaper per token at
the batch that is there, it may be dearer at the one that it leads to. Where clients wait for their answers the batch
stays what it is, and the least J of a step at that batch is least. Idle power is sunk: a server that is faster than its
requests come idles the rest of the time.

Standard library only: an engine's own process reckons with it.
"""

from __future__ import annotations

from math import inf

from selector.core.depthtable import DepthTable

MOST_FILLED = 0.9
"""Of the largest batch: a depth that needs more of it leaves no room for chance, and requests would queue."""
_ROUNDS = 6


def j_at_rate(
    table: DepthTable,
    depth: int,
    tokens_per_step: float,
    rate: float,
    *,
    batch: int,
    context_tokens: float,
    idle_w: float = 0.0,
) -> float:
    """J above idle per accepted token where requests take `rate` tokens per ms together.

    `tokens_per_step` is what one request is expected to take in a step of that depth; `batch` is what is there now.
    Infinite where more than `MOST_FILLED` of the table's largest batch would be needed.
    """
    needed = batch_at_rate(table, depth, tokens_per_step, rate, batch=batch, context_tokens=context_tokens)
    if needed == inf:
        return inf
    ms, j = step_between(table, depth, needed, context_tokens)
    return (j - idle_w * ms / 1e3) / (needed * tokens_per_step)


def batch_at_rate(
    table: DepthTable, depth: int, tokens_per_step: float, rate: float, *, batch: int, context_tokens: float
) -> float:
    """The batch at which a depth serves `rate` tokens per ms, 1 at least; infinite and as for `j_at_rate`."""
    needed = float(batch)
    for _ in range(_ROUNDS):
        needed = max(1.0, rate * step_between(table, depth, needed, context_tokens)[0] / tokens_per_step)
        if needed > 2.0 * table.max_batch:
            return inf
    return needed if needed <= most_requests(table) else inf


def most_requests(table: DepthTable) -> float:
    """The largest batch that a load is expected to hold itself at."""
    return MOST_FILLED * table.max_batch


def step_between(table: DepthTable, depth: int, batch: float, context_tokens: float) -> tuple[float, float]:
    """(ms, J) of a step; between two whole batches linearly."""
    below = int(batch)
    ms, j = table.step(depth, below, context_tokens)
    part = batch - below
    if part == 0.0:
        return ms, j
    above_ms, above_j = table.step(depth, below + 1, context_tokens)
    return ms + part * (above_ms - ms), j + part * (above_j - j)
