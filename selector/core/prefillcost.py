"""What passes over prompts cost. Standard library only: an engine's own process reckons with it too."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from selector.errors import DomainError

_MOST_PADDED = 2
"""A graph of more than so many times the tokens of a pass is not used: the pass then runs without any
(`_MAX_PREFILL_CUDA_GRAPH_PADDING_FACTOR` of SGLang's `prefill_cuda_graph_runner.py`, from 0.5.17 on)."""


class PrefillCost:
    """Time and energy to prefill prompts: `work` by their length, and never less than a pass takes at all.

        pass over several prompts = max(floor, Σ work + padding + beside)
        stall of those who decode = pass + resuming

    `points` are (prompt tokens, ms, J) of a server kept busy, where short prompts share passes; the work is linear
    between them and from 0, and beyond the last by the last segment's slope. The floor is a pass over one short prompt:
    the weights are read and every kernel is launched for a few tokens as for hundreds. What a pass takes `beside` its
    work shows where a single longer prompt takes more than its share of a full pass: what a drafter does with a prompt
    begins when the target is done, and is launched anew for each pass. After a pass, the requests that were decoding
    wait a little longer: the engine prepares their next step anew, which it otherwise does while a step runs.

    A server that has CUDA graphs for passes of some numbers of tokens replays the smallest that holds a pass, and a
    replay computes every token of its graph. Such a token costs what one does at least: attention is over the prompts
    alone. Passes beyond the largest graph are not padded, nor where no `graphs` are given. The list that SGLang makes
    by itself is dense: it pads the prompts of the Azure conversation trace by 78 tokens of 1,028 in the mean, where one
    of 64, 256, 512, 768, 1,024, 1,536 and 2,048 pads them by 179.
    """

    __slots__ = (
        "_beside_j", "_floor_j", "_floor_ms", "_graphs", "_lines", "_most_graph", "_starts", "beside_ms",
        "resume_ms", "token_j", "token_ms",
    )  # fmt: skip

    def __init__(
        self,
        points: Sequence[tuple[float, float, float]],
        *,
        floor_ms: float = 0.0,
        floor_j: float = 0.0,
        beside_ms: float = 0.0,
        beside_j: float = 0.0,
        resume_ms: float = 0.0,
        graphs: Sequence[int] = (),
    ) -> None:
        """`graphs` are the tokens of the graphs that the server has, in any order.

        Raises `DomainError` without points, for points that do not rise, for anything below 0, and for a graph of no
        token.
        """
        if not points:
            raise DomainError("a prefill cost needs at least one point")
        least = (floor_ms, floor_j, beside_ms, beside_j, resume_ms)
        if min(least) < 0.0:
            raise DomainError(f"a prefill pass takes no less than nothing: {least}")
        if graphs and min(graphs) < 1:
            raise DomainError(f"a prefill graph holds at least one token: {list(graphs)}")
        ordered = [(0.0, 0.0, 0.0), *sorted(points)]
        for (t0, m0, j0), (t1, m1, j1) in pairwise(ordered):
            if t1 <= t0 or m1 < m0 or j1 < j0:
                raise DomainError(f"prefill cost must rise with the prompt: {(t0, m0, j0)} then {(t1, m1, j1)}")
        self._lines = [(t0, t1 - t0, m0, m1 - m0, j0, j1 - j0) for (t0, m0, j0), (t1, m1, j1) in pairwise(ordered)]
        """Between two points: the first (tokens, ms, J), each with the way to the second."""
        self._starts = [line[0] for line in self._lines]
        self.token_ms = min(ms / tokens for _, tokens, _, ms, _, _ in self._lines)
        self.token_j = min(j / tokens for _, tokens, _, _, _, j in self._lines)
        """What a token more adds at least: one of padding."""
        self._floor_ms, self._floor_j = floor_ms, floor_j
        self.beside_ms, self._beside_j = beside_ms, beside_j
        self._graphs = sorted(graphs)
        self._most_graph = self._graphs[-1] if graphs else 0
        self.resume_ms = resume_ms

    def cost(self, tokens: float, *, after: float = 0.0) -> tuple[float, float]:
        """(ms, J) of a pass over `tokens` of one prompt whose first `after` tokens are in the cache; 0 for none."""
        if tokens <= 0.0:
            return 0.0, 0.0
        return self.of_pass(*self.work(tokens, after=after), tokens)

    def stall(self, tokens: float, *, after: float = 0.0) -> tuple[float, float]:
        """(ms that such a pass keeps others from decoding, J of the pass); 0 for none."""
        ms, j = self.cost(tokens, after=after)
        return (ms + self.resume_ms, j) if tokens > 0.0 else (ms, j)

    def stall_ms(self, tokens: float, *, after: float = 0.0) -> float:
        """The time of `stall`."""
        return self.stall(tokens, after=after)[0]

    def mean_stall(self, mean_tokens: float) -> tuple[float, float]:
        """Like `stall`, of passes over prompts of that length in the mean, whose own lengths nobody knows.

        They are taken to lie evenly between the two graphs around the mean, so that some are padded, and by how much is
        no matter of where in between the mean is.
        """
        if mean_tokens <= 0.0:
            return 0.0, 0.0
        ms, j = self.work(mean_tokens)
        if mean_tokens <= self._most_graph:
            graphs = self._graphs
            at = bisect_left(graphs, mean_tokens)
            between = graphs[at] - (graphs[at - 1] if at else 0)
            padded = min(between, graphs[at] * (1.0 - 1.0 / _MOST_PADDED))
            padding = 0.5 * padded * padded / between
            ms, j = ms + padding * self.token_ms, j + padding * self.token_j
        ms, j = self._whole(ms, j)
        return ms + self.resume_ms, j

    def work(self, tokens: float, *, after: float = 0.0) -> tuple[float, float]:
        """(ms, J) that `tokens` of a prompt add to a pass that is above its floor."""
        end_ms, end_j = self._total(after + tokens)
        if after == 0.0:
            return end_ms, end_j
        start_ms, start_j = self._total(after)
        return end_ms - start_ms, end_j - start_j

    def of_pass(self, work_ms: float, work_j: float, tokens: float) -> tuple[float, float]:
        """(ms, J) of a pass with so much work, over so many tokens of one or several prompts."""
        if tokens <= self._most_graph:
            padding = self.padding(tokens)
            work_ms += padding * self.token_ms
            work_j += padding * self.token_j
        return self._whole(work_ms, work_j)

    def padding(self, tokens: float) -> float:
        """Tokens that a pass over so many computes beside them."""
        if tokens > self._most_graph:
            return 0.0
        graph = self._graphs[bisect_left(self._graphs, tokens)]
        return graph - tokens if graph <= _MOST_PADDED * tokens else 0.0

    @property
    def graphs(self) -> tuple[int, ...]:
        """Tokens of the graphs, rising."""
        return tuple(self._graphs)

    def most_beside_work_ms(self) -> float:
        """What a pass takes at most beyond its work, with the wait after it."""
        padding = max(
            (min(graph - below, graph * (1.0 - 1.0 / _MOST_PADDED)) for below, graph in pairwise([0, *self._graphs])),
            default=0.0,
        )
        return max(self._floor_ms, padding * self.token_ms + self.beside_ms) + self.resume_ms

    def _whole(self, ms: float, j: float) -> tuple[float, float]:
        ms += self.beside_ms
        j += self._beside_j
        return ms if ms > self._floor_ms else self._floor_ms, j if j > self._floor_j else self._floor_j

    def _total(self, tokens: float) -> tuple[float, float]:
        start, length, ms, more_ms, j, more_j = self._lines[bisect_right(self._starts, tokens) - 1]
        frac = (tokens - start) / length
        return ms + frac * more_ms, j + frac * more_j
