"""Steps on a server that has CUDA graphs for some batches alone: it replays the smallest that holds a batch.

    T(b, c) = T(g, c b / g)        g: the least graph of at least b requests

A replay puts every token of its graph through the weights, those of nobody too, and reads the context that there is.
The more tokens are verified, the more that costs: a batch of 17 in a graph of 24 takes up to 28 % longer than in one of
its own where a drafter verifies 16 tokens (dflash-16 of Qwen3-8B on an H200), and 2 % without a drafter.
(`_pad_to_bucket` in SGLang's `decode_cuda_graph_runner.py`. What passes over prompts are padded to: `prefillcost`.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from selector.core.cost import StepCost
from selector.core.depthtable import Line


def padded_steps(step: StepCost, graphs: Sequence[int]) -> StepCost:
    """The cost with graphs for those batches, in any order; without any it is the same.

    The formula is kept at the knots. Batches beyond the largest graph are not padded, nor are any to a graph beyond the
    measured batches. A batch between two whole ones lies between their costs. What was covered stays so.
    """
    if not graphs:
        return step
    graphs, largest = sorted(graphs), step.max_batch
    rows: list[Sequence[Line]] = []
    for batch in range(step.min_batch, largest + 1):
        at = bisect_left(graphs, batch)
        graph = graphs[at] if at < len(graphs) and graphs[at] <= largest else batch
        row = step.lines(graph) if graph == batch else _spread_over(step, graph, batch / graph)
        rows.append(_no_less(row, rows[-1]) if rows else row)
    return step.with_lines([*rows, _no_less(step.lines(largest + 1), rows[-1])])


def _spread_over(step: StepCost, graph: int, frac: float) -> list[Line]:
    """The lines of a batch of which the share `frac` has the context and the rest has none."""
    costs = [step.step(graph, frac * knot) for knot in step.context_knots]
    *_, (_, _, ms_rise, _, j_rise) = step.lines(graph)
    return _lines(step.context_knots, costs, (frac * ms_rise, frac * j_rise))


def _no_less(row: Sequence[Line], least: Sequence[Line]) -> list[Line]:
    """The lines, raised to those of a smaller batch: of noisy measurements, a graph with little context in each of its
    requests may cost less than a smaller one with more."""
    costs = [(max(line[1], low[1]), max(line[3], low[3])) for line, low in zip(row, least, strict=True)]
    beyond = (max(row[-1][2], least[-1][2]), max(row[-1][4], least[-1][4]))
    return _lines([line[0] for line in row], costs, beyond)


def _lines(knots: Sequence[float], costs: Sequence[tuple[float, float]], beyond: tuple[float, float]) -> list[Line]:
    """A chain of lines through (ms, J) at the knots, with the rise `beyond` the last."""
    rises = [
        ((next_ms - ms) / (end - start), (next_j - j) / (end - start))
        for (start, end), ((ms, j), (next_ms, next_j)) in zip(pairwise(knots), pairwise(costs), strict=True)
    ]
    return [
        (knot, ms, ms_rise, j, j_rise)
        for knot, (ms, j), (ms_rise, j_rise) in zip(knots, costs, [*rises, beyond], strict=True)
    ]
