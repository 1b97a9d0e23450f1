"""Notices when an arm no longer accepts what its estimate says, in either direction.

Each request gives z, its tokens less the expected ones over their standard deviation, the spread between requests and
the uncertainty of the estimate included. Page's cumulative sums (Continuous inspection schemes, Biometrika 41, 1954)

    up   ← max(0, up   + z − k)
    down ← max(0, down − z − k)                                    alarm at h

k is half of the shift, in standard deviations, that is to be seen soon. For independent normal z, one side alarms by
chance every (e^x − x − 1) / (2 k²) requests, x = 2k (h + 1.166) (Siegmund, Sequential Analysis, 1985, section 2.6):
more than 10⁸ at the values below. z is cut at ±`CUT`, so that no single odd request counts for much. The shift is taken
to have begun when the sum was last 0; what came since is what the estimate restarts from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from selector.core.acceptancesums import Sums

ALLOWANCE = 0.5
"""k above."""
THRESHOLD = 18.0
"""h above."""
CUT = 3.0
_MOVED = 0.75
"""A text type has moved with its arm if its own mean z since the shift began is beyond this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftAlarm:
    """What moved, and when."""

    arm: str
    text_types: tuple[str, ...]
    """Those that moved; all of them when the whole arm did."""
    whole_arm: bool
    direction: Literal["up", "down"]
    accept_length_before: float
    """Of the request's text type; as is the next one."""
    accept_length_after: float
    arm_requests: int
    """Requests of the arm when it was noticed."""
    requests_since_shift: int
    """About how many of them came after the shift."""
    at_s: float | None
    """When, on the clock of the caller."""


class _Side:
    """One of the two sums, and what was seen since it was last 0, by text type."""

    __slots__ = ("count", "level", "recent", "scores", "sign")

    def __init__(self, sign: float) -> None:
        self.sign = sign
        self.reset()

    def reset(self) -> None:
        self.level = 0.0
        self.count = 0
        self.recent: dict[str, Sums] = {}
        self.scores: dict[str, tuple[float, float]] = {}

    def add(self, z: float, shares: Mapping[str, float], passes: int, tokens: int) -> bool:
        level = self.level + self.sign * z - ALLOWANCE
        if level <= 0.0:
            if self.level > 0.0:
                self.reset()
            return False
        self.level = level
        self.count += 1
        for text_type, share in shares.items():
            self.recent.setdefault(text_type, Sums()).add(passes, tokens, share)
            score, weight = self.scores.get(text_type, (0.0, 0.0))
            self.scores[text_type] = (score + share * self.sign * z, weight + share)
        return level >= THRESHOLD

    def moved(self) -> tuple[str, ...]:
        """Text types whose own requests say that they moved."""
        return tuple(name for name, (score, weight) in self.scores.items() if weight > 0 and score / weight >= _MOVED)


class DriftDetector:
    """Page's test over a stream of requests: those of one text type on an arm, or all of the arm."""

    __slots__ = ("_down", "_up")

    def __init__(self) -> None:
        self._up, self._down = _Side(1.0), _Side(-1.0)

    def add(self, z: float, shares: Mapping[str, float], passes: int, tokens: int) -> Shift | None:
        """A request that belongs to text types by `shares`. The shift, when there is one; then the test starts anew."""
        z = min(max(z, -CUT), CUT)
        for side in (self._up, self._down):
            if side.add(z, shares, passes, tokens):
                shift = Shift(
                    direction="up" if side is self._up else "down",
                    requests=side.count,
                    recent=side.recent,
                    moved=side.moved(),
                )
                self.reset()
                return shift
        return None

    def reset(self) -> None:
        """Starts anew."""
        self._up.reset()
        self._down.reset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """What a detector saw since the shift began."""

    direction: Literal["up", "down"]
    requests: int
    recent: Mapping[str, Sums]
    """By text type."""
    moved: tuple[str, ...]
