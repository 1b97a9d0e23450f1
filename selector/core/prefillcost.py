"""What passes over prompts cost. Standard library only: an engine's own process reckons with it too."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from selector.errors import DomainError


class PrefillCost:
    """Time and energy to prefill prompts: `work` by their length, and never less than a pass takes at all.

        pass over several prompts = max(floor, Σ work)        stall of those who decode = pass + resuming

    `points` are (prompt tokens, ms, J) of a server kept busy, where short prompts share passes; the work is linear
    between them and from 0, and beyond the last by the last segment's slope. The floor is a pass over one short prompt:
    the weights are read and every kernel is launched for a few tokens as for hundreds. After a pass, the requests that
    were decoding wait a little longer: the engine prepares their next step anew, which it otherwise does while a step
    runs.
    """

    __slots__ = ("_floor_j", "_floor_ms", "_lines", "_starts", "resume_ms")

    def __init__(
        self,
        points: Sequence[tuple[float, float, float]],
        *,
        floor_ms: float = 0.0,
        floor_j: float = 0.0,
        resume_ms: float = 0.0,
    ) -> None:
        """Raises `DomainError` without points, for points that do not rise, and for a floor or pause below 0."""
        if not points:
            raise DomainError("a prefill cost needs at least one point")
        if min(floor_ms, floor_j, resume_ms) < 0.0:
            raise DomainError(f"a prefill pass takes no less than nothing: {(floor_ms, floor_j, resume_ms)}")
        ordered = [(0.0, 0.0, 0.0), *sorted(points)]
        for (t0, m0, j0), (t1, m1, j1) in pairwise(ordered):
            if t1 <= t0 or m1 < m0 or j1 < j0:
                raise DomainError(f"prefill cost must rise with the prompt: {(t0, m0, j0)} then {(t1, m1, j1)}")
        self._lines = [(t0, t1 - t0, m0, m1 - m0, j0, j1 - j0) for (t0, m0, j0), (t1, m1, j1) in pairwise(ordered)]
        """Between two points: the first (tokens, ms, J), each with the way to the second."""
        self._starts = [line[0] for line in self._lines]
        self._floor_ms, self._floor_j = floor_ms, floor_j
        self.resume_ms = resume_ms

    def cost(self, tokens: float, *, after: float = 0.0) -> tuple[float, float]:
        """(ms, J) of a pass over `tokens` of one prompt whose first `after` tokens are in the cache; 0 for none."""
        if tokens <= 0.0:
            return 0.0, 0.0
        return self.of_pass(*self.work(tokens, after=after))

    def stall(self, tokens: float, *, after: float = 0.0) -> tuple[float, float]:
        """(ms that such a pass keeps others from decoding, J of the pass); 0 for none."""
        ms, j = self.cost(tokens, after=after)
        return (ms + self.resume_ms, j) if tokens > 0.0 else (ms, j)

    def stall_ms(self, tokens: float, *, after: float = 0.0) -> float:
        """The time of `stall`."""
        return self.stall(tokens, after=after)[0]

    def work(self, tokens: float, *, after: float = 0.0) -> tuple[float, float]:
        """(ms, J) that `tokens` of a prompt add to a pass that is above its floor."""
        end_ms, end_j = self._total(after + tokens)
        if after == 0.0:
            return end_ms, end_j
        start_ms, start_j = self._total(after)
        return end_ms - start_ms, end_j - start_j

    def of_pass(self, work_ms: float, work_j: float) -> tuple[float, float]:
        """(ms, J) of a pass with so much work."""
        return (
            work_ms if work_ms > self._floor_ms else self._floor_ms,
            work_j if work_j > self._floor_j else self._floor_j,
        )

    def _total(self, tokens: float) -> tuple[float, float]:
        start, length, ms, more_ms, j, more_j = self._lines[bisect_right(self._starts, tokens) - 1]
        frac = (tokens - start) / length
        return ms + frac * more_ms, j + frac * more_j
