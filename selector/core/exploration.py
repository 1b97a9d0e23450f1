"""Which arms should get a request now and then although the plan does not send them any.

An arm whose accept length on a text type was never seen, or not for long, may be better than the plan believes; only
requests sent there can tell. Requests so sent are bounded twice: to a share of all requests, and to the same share of
the energy that requests are expected to need, since a probe on an idle backend pays for the weight reads alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from selector.core.types import Outcome

ENOUGH_SAMPLES = 20
"""After so many finished requests an accept length is known, until it is stale."""
_MOST_CREDIT_REQUESTS = 3.0


@dataclass(slots=True)
class _Seen:
    samples: int
    last_s: float


class Exploration:
    """Keeps the budget and what was seen. `unknown` are (arm, text type) pairs that the profile says nothing of."""

    def __init__(self, unknown: Iterable[tuple[str, str]], *, budget_frac: float, stale_s: float) -> None:
        self._unknown = frozenset(unknown)
        self._budget_frac = budget_frac
        self._stale_s = stale_s
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._requests = 0.0
        self._joules = 0.0

    def sent(self, expected_j: float) -> None:
        """A request that is expected to need `expected_j` was sent as planned."""
        self._requests = min(_MOST_CREDIT_REQUESTS, self._requests + self._budget_frac)
        self._joules += self._budget_frac * max(0.0, expected_j)

    def probed(self, extra_j: float) -> None:
        """A request was sent to an arm for the sake of what it tells, at `extra_j` more than planned."""
        self._requests -= 1.0
        self._joules -= max(0.0, extra_j)

    def affords(self, extra_j: float) -> bool:
        """Whether the budget has room for a probe that needs `extra_j` more than planned."""
        return self._requests >= 1.0 and extra_j <= self._joules

    def may_probe(self) -> bool:
        """Whether there is room for a probe at all."""
        return self._requests >= 1.0

    def due(self, arm: str, text_type: str, now_s: float) -> bool:
        """Whether the arm's accept length on the text type is unknown or stale."""
        pair = arm, text_type
        seen = self._seen.get(pair)
        if seen is None:
            # What the profile knows is as old as the first look at it.
            self._seen[pair] = _Seen(0, now_s)
            return pair in self._unknown
        if pair in self._unknown and seen.samples < ENOUGH_SAMPLES:
            return True
        return now_s - seen.last_s > self._stale_s

    def observe(self, outcome: Outcome, now_s: float) -> None:
        """A request ended."""
        if outcome.verify_passes is None:
            return
        seen = self._seen.setdefault((outcome.arm, outcome.text_type), _Seen(0, now_s))
        seen.samples += 1
        seen.last_s = now_s
