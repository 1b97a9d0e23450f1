"""What one finished request means to its arm: how far it is from what was expected, and whether that is a drift.

A request of t tokens that belongs to types x by shares π_x is expected to take t Σ π_x / a_x passes (the tokens are
given, see `acceptancesums`), with the variance of its steps and of requests, of the estimate itself, and between the
types it may be of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from selector.core.acceptancearm import Arm
from selector.core.acceptancesums import length_weight
from selector.core.drift import Shift
from selector.core.labelbias import LabelBias
from selector.core.types import TEXT_TYPES, RequestView

TESTED_AFTER_REQUESTS = 20.0
"""Samples behind an estimate before deviations from it are a drift of the arm and not of the estimate."""
_MOSTLY = 0.95
"""Share of `TESTED_AFTER_REQUESTS` that fading and small shares may leave."""
_WHOLE = 0.8
"""Share of the requests since a shift whose types moved, from which on the whole arm did."""
_ONE_TYPE = 0.9
_LEAST_SPREAD = 0.05
_UNSURE_CUT = 2.0
"""Most |z| of a request whose type is uncertain: one that is of its less likely type is far off, and no drift."""
_SURE = 0.99
_LEAST_SHARE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """A request against what was expected of it."""

    z: float
    """Passes it saved over the expected ones, over their standard deviation: above 0 it was accepted better."""
    expected_passes: float
    """By its text types alone."""
    variance: float
    """Of its passes."""
    tested: bool
    """Whether enough is behind the estimate for `z` to say something about the arm."""


def shares_of(text_type: str, probabilities: Sequence[float] | None) -> dict[str, float]:
    """The types that a request teaches and by how much, summing to 1; small shares are left out."""
    if probabilities is None or max(probabilities) >= _SURE:
        return {text_type if probabilities is None else TEXT_TYPES[_largest(probabilities)]: 1.0}
    kept = {name: share for name, share in zip(TEXT_TYPES, probabilities, strict=True) if share >= _LEAST_SHARE}
    total = math.fsum(kept.values())
    return {name: share / total for name, share in kept.items()}


def _main(shares: Mapping[str, float]) -> str:
    return max(shares, key=shares.__getitem__)


def _largest(probabilities: Sequence[float]) -> int:
    return max(range(len(probabilities)), key=probabilities.__getitem__)


def deviation(arm: Arm, shares: Mapping[str, float], passes: int, tokens: int, factor: float) -> Deviation:
    """How far a request is from what was expected; `factor` is what is known of its accept length beyond its types."""
    cells = [(arm.cells[name], share) for name, share in shares.items()]
    inverse = math.fsum(share / cell.mean for cell, share in cells)
    variance = samples = 0.0
    for cell, share in cells:
        spread = max(cell.spread, _LEAST_SPREAD) / cell.mean
        unsure = cell.deviation / (cell.mean * cell.mean)
        apart = 1.0 / cell.mean - inverse
        between = spread * spread + unsure * unsure + apart * apart
        variance += share * (cell.step_variance * tokens / cell.mean**3 + between * tokens * tokens)
        samples += share * min(cell.samples, TESTED_AFTER_REQUESTS)
    expected = tokens * inverse
    ratio, cut = 1.0, math.inf
    if len(shares) > 1:
        cut = _UNSURE_CUT
        bias = arm.biases.get(_main(shares))
        ratio = bias.ratio if bias else 1.0
        samples = min(samples, bias.requests if bias else 0.0)
    z = (expected * ratio / factor - passes) / math.sqrt(variance)
    return Deviation(
        z=min(max(z, -cut), cut),
        expected_passes=expected,
        variance=variance,
        tested=samples >= TESTED_AFTER_REQUESTS * _MOSTLY,
    )


def add(
    arm: Arm,
    shares: Mapping[str, float],
    passes: int,
    tokens: int,
    expected_passes: float,
    half_life_requests: float,
) -> None:
    """Adds a request to the sums of its types; `arm.derive` is due after it."""
    arm.requests += 1
    if len(shares) > 1:
        bias = arm.biases.setdefault(_main(shares), LabelBias())
        weight = length_weight(tokens)
        bias.add(weight * passes, weight * expected_passes, 0.5 ** (1.0 / half_life_requests))
    for name, share in shares.items():
        cell = arm.cells[name]
        cell.own.add(passes, tokens, share, 0.5 ** (share / half_life_requests))
        cell.seen += share
        cell.refresh()


def add_to_effects(arm: Arm, shares: Mapping[str, float], request: RequestView, seen: Deviation, passes: int) -> None:
    """Lets a request of one text type say what its context and temperature do; one of several types cannot tell."""
    main = _main(shares)
    if shares[main] >= _ONE_TYPE:
        expected = seen.expected_passes
        arm.effects.add(
            main,
            request.prompt_tokens,
            request.temperature,
            relative_residual=1.0 - passes / expected,
            relative_variance=seen.variance / (expected * expected),
        )


def shift_of(arm: Arm, shares: Mapping[str, float], z: float, passes: int, tokens: int) -> Shift | None:
    """The drift that this request completes, if it does: of its type, or of several types of the arm at once.

    `moved` of the shift are then the types to begin anew: every one of `TEXT_TYPES` when nearly all that were seen
    moved.
    """
    main = _main(shares)
    of_arm = arm.detector.add(z, shares, passes, tokens)
    of_type = arm.cells[main].detector.add(z, {main: 1.0}, passes, tokens) if shares[main] > 0.5 else None
    if of_type is not None:
        arm.detector.reset()
        return replace(of_type, moved=(main,))
    if of_arm is None:
        return None
    seen = [name for name, sums in of_arm.recent.items() if sums.requests >= 0.5]
    moved = tuple(name for name in seen if name in of_arm.moved) or (main,)
    followed = sum(of_arm.recent[name].requests for name in seen if name in moved)
    whole = len(moved) > 1 and followed >= _WHOLE * sum(of_arm.recent[name].requests for name in seen)
    return replace(of_arm, moved=TEXT_TYPES if whole else moved)


def restart(arm: Arm, shift: Shift) -> None:
    """The types that moved begin anew from what came since the shift; the tests of the arm do too."""
    for name in shift.moved:
        arm.cells[name].restart(shift.recent.get(name))
    arm.detector.reset()
    arm.biases.clear()
