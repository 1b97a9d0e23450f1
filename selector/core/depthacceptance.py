"""The survival of each draft position on one text type, learnt from what the engine's verify passes accepted.

A pass at depth d tells of positions 1 … d: a request whose first n drafts were accepted reached position n + 1 and, if
n < d, failed there. Requests of a type differ, so two pairs of fading counts are kept: of all requests lately, and of
those that are in the batch now.

    L_k = (M · q_k^G + all passed_k) / (M + all reached_k)              the text type
    h_k = (m b · L_k^g + passed_k) / (m b + reached_k)                  the b requests that are there
    s_k = h_1 · … · h_k

where q_k is the prior's rate at position k, M the requests × steps that it weighs, m those that the type weighs in the
estimate of one request, and G = ln L_1 / ln q_1, g = ln h_1 / ln L_1 (1 at k = 1): what the first draft says moves the
positions that were not tried lately, as one curve bent to another text. Nothing is seen at depth 0, and nothing fades.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from selector.core.depthsurvival import SlowRequests, accept_lengths, slow_accept_lengths
from selector.errors import DomainError

PRIOR_REQUESTS = 128.0
HALF_LIFE_REQUESTS = 8_192.0
"""Requests × steps after which what was seen of the text type counts half: 128 steps of a batch of 64."""
_TYPE_WEIGHT = 32.0
"""m: about what a first draft varies by, squared, over what the rates of a type's requests do."""
_RECENT_STEPS = 64.0
"""Steps after which what was seen of the requests that are there counts half."""
_RECENT_FADE = 0.5 ** (1.0 / _RECENT_STEPS)
_DERIVED_AFTER = 8
"""Requests × steps, and one pass more: what is seen in less moves the accept lengths by less than they are known."""
_DERIVED_BELOW_FRAC = 0.7
"""… and so does what was seen of less than three in ten of the requests that have left."""
_SURE = 1e-4
"""No rate is taken to be closer to 0 or 1 than this."""


class DepthAcceptance:
    """Accept lengths at every depth of one engine; deterministic, no clock. Not thread-safe."""

    __slots__ = (
        "_all",
        "_fade",
        "_half_life",
        "_kept_frac",
        "_prior",
        "_prior_requests",
        "_recent",
        "_requests",
        "_slow",
        "_unread",
        "derived",
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
        self._all = _Counts(len(prior))
        self._recent = _Counts(len(prior))
        self._fade: dict[int, float] = {}
        self._requests = 1
        self._unread = 0
        self._kept_frac = 1.0
        self.derived = 0
        """How often the accept lengths were worked out."""
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
        self._all.add(stopped, requests, fade)
        self._recent.add(stopped, requests, _RECENT_FADE)
        self._requests = requests
        self._unread += requests
        if self._unread >= _DERIVED_AFTER + requests:
            self._derive()
        return True

    def renew(self, requests: int, fresh: int) -> None:
        """The batch has so many requests of the type now, `fresh` of which nothing has been seen of."""
        kept_frac = min(1.0, (requests - fresh) / self._requests)
        self._requests = max(1, requests)
        if kept_frac == 1.0:
            return
        self._recent.keep(kept_frac)
        self._kept_frac *= kept_frac
        if self._kept_frac < _DERIVED_BELOW_FRAC:
            self._derive()

    def survivals(self) -> list[float]:
        """s_k of every position."""
        of_type = self._all.rates(self._prior, self._prior_requests)
        rates = self._recent.rates(of_type, _TYPE_WEIGHT * self._requests)
        survival, curve = 1.0, []
        for rate in rates:
            survival *= rate
            curve.append(survival)
        return curve

    def _derive(self) -> None:
        self._unread = 0
        self._kept_frac = 1.0
        self.derived += 1
        curve = self.survivals()
        self.lengths = accept_lengths(curve)
        self.slow = slow_accept_lengths(curve, self._slow)


class _Counts:
    """How often each draft position was reached and passed, fading."""

    __slots__ = ("passed", "reached")

    def __init__(self, positions: int) -> None:
        self.reached = [0.0] * positions
        self.passed = [0.0] * positions

    def add(self, stopped: Sequence[int], requests: int, fade: float) -> None:
        """A pass of so many requests, of which `stopped[k]` had k drafts accepted and one refused."""
        reached, passed = self.reached, self.passed
        depth, here = len(stopped), requests
        for k in range(len(reached)):
            reached[k] *= fade
            passed[k] *= fade
            if k < depth:
                reached[k] += here
                here -= stopped[k]
                passed[k] += here

    def keep(self, frac: float) -> None:
        """Only that part of it counts on."""
        self.reached = [count * frac for count in self.reached]
        self.passed = [count * frac for count in self.passed]

    def rates(self, expected: Sequence[float], weight: float) -> list[float]:
        """By position, from what is expected and what was counted; the first bends what is expected of the others."""
        rates, power = list[float](), 1.0
        for k, rate in enumerate(expected):
            bent = rate if k == 0 else rate**power
            found = _inside((weight * bent + self.passed[k]) / (weight + self.reached[k]))
            if k == 0:
                power = math.log(found) / math.log(rate)
            rates.append(found)
        return rates


def _inside(rate: float) -> float:
    return min(max(rate, _SURE), 1.0 - _SURE)
