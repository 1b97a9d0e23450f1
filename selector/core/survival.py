"""One step of a drafter: how many tokens it yields, as a mean and around it.

Drafts are modelled with one survival rate p per arm and text type: the k-th drafted token is accepted with probability
p^k, so a step that verifies w tokens (w − 1 drafts and the bonus token) yields

    a = 1 + p + p² + … + p^(w−1) = (1 − p^w) / (1 − p)                                       (accept length, 1 ≤ a ≤ w)

(Leviathan et al., Fast Inference from Transformers via Speculative Decoding, 2023, eq. 1). A mean published for another
verify width is converted through its p. Where the survival s_k of each draft position was measured, a step at another
mean is taken to have the survivals s_k^g: the geometric model is the case s_k = p^k.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import lru_cache
from itertools import pairwise

from selector.errors import DomainError

_BISECTION_STEPS = 60
_CURVE_LINES = 1024


def accept_length_of(survival_rate: float, verify_tokens: int) -> float:
    """(1 − p^w) / (1 − p): mean tokens per step at survival rate p in [0, 1] and verify width w ≥ 1."""
    if not 0.0 <= survival_rate <= 1.0 or verify_tokens < 1:
        raise DomainError(f"no accept length at survival rate {survival_rate} and verify width {verify_tokens}")
    if survival_rate > 1.0 - 1e-9:
        return float(verify_tokens)
    return float((1.0 - survival_rate**verify_tokens) / (1.0 - survival_rate))


@lru_cache(maxsize=65536)
def survival_rate_of(accept_length: float, verify_tokens: int) -> float:
    """The p with (1 − p^w) / (1 − p) = a. Raises `DomainError` unless 1 ≤ a ≤ w."""
    if not 1.0 <= accept_length <= verify_tokens:
        raise DomainError(f"accept length {accept_length} is outside 1 … {verify_tokens}, the verify width")
    low, high = 0.0, 1.0
    for _ in range(_BISECTION_STEPS):
        middle = 0.5 * (low + high)
        if accept_length_of(middle, verify_tokens) < accept_length:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def converted_accept_length(accept_length: float, from_verify_tokens: int, to_verify_tokens: int) -> float:
    """An accept length known at one verify width, at another, by one survival rate."""
    return accept_length_of(survival_rate_of(accept_length, from_verify_tokens), to_verify_tokens)


def budgeted_accept_length(
    accept_length: float, verify_tokens: int, budget_frac: float, survival: tuple[float, ...] | None = None
) -> float:
    """An accept length of full verification, where only the share `budget_frac` of the drafts is verified.

        a(f) = 1 + Σ_k min(1, max(0, f (w − 1) − (k − 1))) s_k,   k = 1 … w − 1

    Every request is taken to get the same share, its first drafts. An engine that verifies the likeliest drafts of the
    whole batch gets more, and one that rounds the budget of a small batch down gets less. Without a measured
    `survival`, s_k = p^k. Raises `DomainError` for a share outside (0, 1] or an accept length that w cannot yield.
    """
    if not 0.0 < budget_frac <= 1.0:
        raise DomainError(f"a verify budget is a share of the drafts in (0, 1], not {budget_frac}")
    rate = survival_rate_of(accept_length, verify_tokens)
    survivals = survival or tuple(rate**k for k in range(1, verify_tokens))
    verified = budget_frac * (verify_tokens - 1)
    return 1.0 + sum(min(1.0, max(0.0, verified - k)) * share for k, share in enumerate(survivals))


def step_variance(accept_length: float, verify_tokens: int) -> float:
    """Variance of the tokens of one step around the mean `accept_length`, under the survival-rate model."""
    p = survival_rate_of(accept_length, verify_tokens)
    return _variance_of([p**k for k in range(1, verify_tokens)], accept_length)


def _variance_of(survivals: list[float], accept_length: float) -> float:
    # E[X²] = Σ_{k≥1} (2k − 1) P(X ≥ k), where P(X ≥ 1) = 1 and P(X ≥ k + 1) = s_k.
    second_moment = 1.0 + sum((2 * k + 1) * survival for k, survival in enumerate(survivals, start=1))
    return max(0.0, second_moment - accept_length * accept_length)


class StepShape:
    """The variance of a step at any mean, for one arm: a curve worked out once, since every prediction asks for it."""

    __slots__ = ("_lines", "_starts")

    def __init__(self, base: tuple[float, ...]) -> None:
        """`base` holds the survival of each draft position, in (0, 1) and not rising."""
        scale = math.log(base[0])
        self._starts: list[float] = []
        variances: list[float] = []
        for point in range(_CURVE_LINES + 1):
            rate = point / _CURVE_LINES
            # The power g at which the first draft survives at `rate`.
            power = math.log(rate) / scale if rate else math.inf
            survivals = [survival**power for survival in base]
            mean = 1.0 + math.fsum(survivals)
            if not self._starts or mean > self._starts[-1]:
                self._starts.append(mean)
                variances.append(_variance_of(survivals, mean))
        points = zip(self._starts, variances, strict=True)
        slopes = [(v1 - v0) / (a1 - a0) for (a0, v0), (a1, v1) in pairwise(points)]
        self._lines = list(zip(self._starts, variances, [*slopes, 0.0], strict=True))

    def variance(self, accept_length: float) -> float:
        """Variance of the tokens of one step at a mean of `accept_length`, at least 1."""
        start, variance, slope = self._lines[bisect_right(self._starts, accept_length) - 1]
        return variance + slope * (accept_length - start)


@lru_cache(maxsize=256)
def step_shape(verify_tokens: int, survival: tuple[float, ...] | None = None) -> StepShape:
    """The shape of steps that verify `verify_tokens` ≥ 2, from measured survivals by draft position if there are any.

    Measured survivals of fewer positions are continued at the rate of the last one. Raises `DomainError` for survivals
    that rise, lie outside [0, 1] or are more than the drafts.
    """
    drafts = verify_tokens - 1
    if not survival:
        return StepShape(tuple(0.5**k for k in range(1, drafts + 1)))
    rising = any(later > earlier for earlier, later in pairwise(survival))
    if rising or not all(0.0 <= each <= 1.0 for each in survival) or len(survival) > drafts:
        raise DomainError(f"survivals {survival} are none of {drafts} drafts: none above the one before, all in 0 … 1")
    known = [min(max(each, 1e-9), 1.0 - 1e-9) for each in survival]
    rate = known[-1] / known[-2] if len(known) > 1 else known[-1]
    while len(known) < drafts:
        known.append(max(known[-1] * rate, 1e-12))
    return StepShape(tuple(known))
