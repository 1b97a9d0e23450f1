"""The verify passes of one request in an engine that changes its draft depth while it runs.

    leading drafts that would survive     2  0  3  1  0  3  2 …       drawn once, cut at the deepest depth
    depth in force                        3  3  1  1  1  0  3 …
    tokens of the pass                    3  1  2  2  1  1  3 …       1 + what both allow

A pass at depth d accepts what would have survived, at most d. So a change of depth draws nothing anew: tokens up to any
pass are differences of sums that are kept per depth, and where the request ends is found by bisection.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate


class DepthPasses:
    """Like `draws.Passes`, at a depth that may be turned."""

    __slots__ = ("_before", "_depths", "_starts", "_sums", "_surviving", "_tokens", "count", "surplus")

    def __init__(self, surviving: Sequence[int], tokens: int, depth: int) -> None:
        """`surviving` by pass, of `tokens` passes at least: that many are needed where none is accepted."""
        self._surviving = surviving
        self._tokens = tokens
        self._sums: dict[int, list[int]] = {}
        self._starts: list[int] = []
        """Passes done when a depth came into force, and those depths and the tokens delivered by then."""
        self._depths: list[int] = []
        self._before: list[int] = []
        self.count = 0
        """How many it takes to deliver all tokens, if the depth in force stays."""
        self.surplus = 0
        """What the last of them accepts beyond the end."""
        self.turn(0, depth)

    @property
    def depth(self) -> int:
        """In force."""
        return self._depths[-1]

    def turn(self, done: int, depth: int) -> None:
        """After so many passes, no fewer than at the last turn, the depth is another."""
        before = self.after(done) if done else 0
        if self._starts and self._starts[-1] == done:
            self._starts.pop()
            self._depths.pop()
            self._before.pop()
        self._starts.append(done)
        self._depths.append(depth)
        self._before.append(before)
        sums = self._sums_at(depth)
        wanted = self._tokens - before + sums[done]
        self.count = bisect_left(sums, wanted, done)
        self.surplus = sums[self.count] - wanted

    def after(self, passes: int) -> int:
        """Tokens delivered after the first `passes`."""
        turn = bisect_right(self._starts, passes) - 1
        sums = self._sums_at(self._depths[turn])
        return min(self._tokens, self._before[turn] + sums[passes] - sums[self._starts[turn]])

    def accepted(self, start: int, end: int) -> list[int]:
        """Drafts accepted in the passes from `start` up to `end`, at the depth in force; those beyond the end too."""
        depth = self.depth
        return [min(surviving, depth) for surviving in self._surviving[start:end]]

    def _sums_at(self, depth: int) -> list[int]:
        """Tokens of the first 0, 1, 2 … passes, were all at that depth."""
        sums = self._sums.get(depth)
        if sums is None:
            tokens = [1 + min(surviving, depth) for surviving in self._surviving]
            sums = self._sums[depth] = list(accumulate(tokens, initial=0))
        return sums
