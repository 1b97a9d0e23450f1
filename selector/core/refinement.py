"""How requests of one key (a tenant, a system prompt) differ from their text types, on each arm.

For t tokens a key's requests took n passes where the estimates of arm × type expected n', each request counted by its
length as in `acceptancesums`. The log of the ratio of accepted drafts per pass,

    ln r = ln[(Σ t / Σ n − 1) / (Σ t / Σ n' − 1)]

is shrunk to 0, the ratio that a key without requests has, by its variance against `KEY_DEVIATION`² (normal-normal
empirical Bayes; Efron and Morris, Data analysis using Stein's estimator, JASA 70, 1975). Keys come from clients, so
there may be any number of them: the least recently used are forgotten.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

KEY_DEVIATION = 0.25
"""Standard deviation, between keys, of the log of accepted drafts per pass."""
MOST_FACTOR = 3.0
_KEEP = 0.5 ** (1.0 / 200.0)
"""A key's requests count half after 200 further ones of it."""
_GUARD_DRAFTS = 0.02


@dataclass(slots=True)
class _Seen:
    tokens: float = 0.0
    passes: float = 0.0
    expected_passes: float = 0.0
    variance: float = 0.0
    requests: float = 0.0


class Refinement:
    """Ratios by key and arm, for at most `most_keys` keys."""

    def __init__(self, most_keys: int) -> None:
        self._most_keys = most_keys
        self._keys: OrderedDict[str, dict[str, _Seen]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def factor(self, key: str, arm: str) -> float:
        """Accepted drafts per pass of the key on `arm`, over those of its text types; 1 for an unknown key."""
        arms = self._keys.get(key)
        seen = arms.get(arm) if arms else None
        if seen is None:
            return 1.0
        drafts = seen.tokens / seen.passes - 1.0 + _GUARD_DRAFTS
        expected = max(0.0, seen.tokens / seen.expected_passes - 1.0) + _GUARD_DRAFTS
        deviation = seen.tokens / (seen.passes * seen.passes * drafts)
        variance = seen.variance * deviation * deviation
        known = KEY_DEVIATION**2 / (KEY_DEVIATION**2 + variance)
        return min(max(math.exp(known * math.log(drafts / expected)), 1.0 / MOST_FACTOR), MOST_FACTOR)

    def requests(self, key: str, arm: str) -> float:
        """Requests behind `factor`, faded ones by what is left of them."""
        seen = self._keys.get(key, {}).get(arm)
        return seen.requests if seen else 0.0

    def add(self, key: str, arm: str, tokens: float, passes: float, expected_passes: float, variance: float) -> None:
        """A request of the key took `passes` where `expected_passes` were expected, with that `variance` by chance.

        All four are as a request of its length counts.
        """
        arms = self._keys.get(key)
        if arms is None:
            arms = self._keys[key] = {}
            if len(self._keys) > self._most_keys:
                self._keys.popitem(last=False)
        else:
            self._keys.move_to_end(key)
        seen = arms.setdefault(arm, _Seen())
        seen.tokens = seen.tokens * _KEEP + tokens
        seen.passes = seen.passes * _KEEP + passes
        seen.expected_passes = seen.expected_passes * _KEEP + expected_passes
        seen.variance = seen.variance * _KEEP * _KEEP + variance
        seen.requests = seen.requests * _KEEP + 1.0

    def forget_arm(self, arm: str) -> None:
        """The arm is another one now: what keys were to it before says nothing."""
        for arms in self._keys.values():
            arms.pop(arm, None)

    def state(self) -> tuple[tuple[str, str, tuple[float, ...]], ...]:
        """(key, arm, numbers), the least recently used key first."""
        return tuple(
            (key, arm, (seen.tokens, seen.passes, seen.expected_passes, seen.variance, seen.requests))
            for key, arms in self._keys.items()
            for arm, seen in arms.items()
        )

    def restore(self, state: Iterable[tuple[str, str, tuple[float, ...]]]) -> None:
        """Takes what `state` gave instead of all it knows."""
        self._keys.clear()
        for key, arm, numbers in state:
            self._keys.setdefault(key, {})[arm] = _Seen(*numbers)
        while len(self._keys) > self._most_keys:
            self._keys.popitem(last=False)
