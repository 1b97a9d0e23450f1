"""The survival of each draft position, learnt from what the engine's verify passes accepted.

A pass at depth d tells of positions 1 … d: a request whose first n drafts were accepted reached position n + 1 and, if
n < d, failed there. With fading counts of reached and passed,

    h_k = (m · q_k^g + passed_k) / (m + reached_k)        s_k = h_1 · … · h_k

where q_k is the prior's rate at position k, m the requests that the prior weighs, and g = ln h_1 / ln q_1 (1 at k = 1):
what the first draft says of the text moves the positions that were not tried lately, as one curve bent to another text.
Counts fade per request and step seen, so that the estimate follows the text of the batch; nothing is seen at depth 0,
and nothing fades there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from selector.core.depthsurvival import SlowRequests, accept_lengths, slow_accept_lengths
from selector.errors import DomainError

PRIOR_REQUESTS = 32.0
HALF_LIFE_REQUESTS = 256.0
"""Requests × steps after which what was seen counts half: 4 steps of a batch of 64, some seconds of one request."""
_DERIVED_EVERY_FRAC = 1.0 / 16.0
"""Of the half-life: what is seen in less would move the accept lengths by less than they are known."""
_SURE = 1e-4
"""No rate is taken to be closer to 0 or 1 than this."""


class DepthAcceptance:
    """Accept lengths at every depth of one engine; deterministic, no clock. Not thread-safe."""

    __slots__ = (
        "_fade",
        "_half_life",
        "_passed",
        "_prior",
        "_prior_requests",
        "_reached",
        "_slow",
        "_unread",
        "lengths",
        "slow",
    )

    def __init__(
        self,
        prior: Sequence[float],
        slow: SlowRequests,
        *,
        prior_requests: float = PRIOR_REQUESTS,
        half_life_requests: float = HALF_LIFE_REQUESTS,
    ) -> None:
        """`prior` holds the survival of every position that may be drafted. Raises `DomainError` for no such curve."""
        rising = any(later > one for one, later in pairwise([1.0, *prior]))
        if not prior or rising or prior[-1] < 0.0 or prior_requests <= 0.0 or half_life_requests <= 0.0:
            raise DomainError(f"cannot learn from {list(prior)}, {prior_requests=}, {half_life_requests=}")
        self._prior = [_inside(s / before) if before > 0.0 else _SURE for before, s in pairwise([1.0, *prior])]
        self._prior_requests = prior_requests
        self._half_life = half_life_requests
        self._slow = slow
        self._reached = [0.0] * len(prior)
        self._passed = [0.0] * len(prior)
        self._fade: dict[int, float] = {}
        self._unread = 0
        self.lengths: list[float] = []
        """Mean accept length by depth, 0 to the deepest."""
        self.slow: list[float] = []
        """That of the request that targets are judged by."""
        self._derive()

    @property
    def deepest(self) -> int:
        """The last position that is known of."""
        return len(self._prior)

    def observe(self, depth: int, accepted: Sequence[int]) -> bool:
        """Drafts accepted of each request of one pass at `depth`; returns whether they were possible and used."""
        requests = len(accepted)
        if not 0 < depth <= len(self._prior) or not requests:
            return False
        stopped = [accepted.count(k) for k in range(depth)]
        if sum(stopped) + accepted.count(depth) != requests:
            return False  # some number is below 0 or above the depth
        fade = self._fade.get(requests)
        if fade is None:
            fade = self._fade[requests] = 0.5 ** (requests / self._half_life)
        reached, passed = self._reached, self._passed
        here = requests
        for k in range(len(reached)):
            reached[k] *= fade
            passed[k] *= fade
            if k < depth:
                reached[k] += here
                here -= stopped[k]
                passed[k] += here
        unread = self._unread
        self._unread += requests
        # Not from one pass alone: a large batch would have it worked out at every step.
        if unread and self._unread >= self._half_life * _DERIVED_EVERY_FRAC:
            self._derive()
        return True

    def survivals(self) -> list[float]:
        """s_k of every position."""
        power, survival, curve = 1.0, 1.0, []
        weight = self._prior_requests
        for k, prior in enumerate(self._prior):
            expected = prior if k == 0 else prior**power
            rate = _inside((weight * expected + self._passed[k]) / (weight + self._reached[k]))
            if k == 0:
                power = math.log(rate) / math.log(prior)
            survival *= rate
            curve.append(survival)
        return curve

    def _derive(self) -> None:
        self._unread = 0
        curve = self.survivals()
        self.lengths = accept_lengths(curve)
        self.slow = slow_accept_lengths(curve, self._slow)


def _inside(rate: float) -> float:
    return min(max(rate, _SURE), 1.0 - _SURE)
