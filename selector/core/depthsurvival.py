"""Accept lengths at every draft depth, from the survival of each draft position.

With s_k the share of requests whose k-th draft is accepted (s_0 = 1, never rising), a step at depth d yields

    a_d = 1 + s_1 + … + s_d        tokens a request, the bonus token included

so one curve says what every depth would have given (`survival` is the same model for one width). A TBT target is judged
at a quantile q of requests: one that takes n tokens gets, with probability q, at least

    slow_d = a_d · (1 − z_q · √(σ_d² + v_d / (a_d² · n / a_d)))      σ_d: spread between requests, v_d: of a step

tokens a step, as `AcceptanceModel.slow_accept_length` has it at the deepest depth. Requests differ as texts do: by a
power of the one curve. So a relative spread σ at the deepest depth K is less at a shallower one, to first order

    σ_d = σ · (w_d / a_d) / (w_K / a_K)        w_d = Σ_{k≤d} s_k · |ln s_k|,  the change of a_d with the power
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import NormalDist

from selector.errors import DomainError

DEFAULT_QUANTILE = 0.9
DEFAULT_OUTPUT_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRequests:
    """Which request a target is judged by."""

    deviate: float
    """z_q of the quantile: 0 judges by the mean."""
    spread_frac: float
    """Relative standard deviation between the mean accept lengths of requests, at the deepest depth."""
    output_tokens: float
    """Tokens of an answer, over which the steps of a request average out."""

    @classmethod
    def at(
        cls,
        quantile: float = DEFAULT_QUANTILE,
        *,
        spread_frac: float = 0.0,
        output_tokens: float = DEFAULT_OUTPUT_TOKENS,
    ) -> SlowRequests:
        """The request at `quantile` of (0, 1). Raises `DomainError`."""
        if not 0.0 < quantile < 1.0 or spread_frac < 0.0 or output_tokens <= 0.0:
            raise DomainError(f"no slow request at {quantile=}, {spread_frac=}, {output_tokens=}")
        deviate = float(NormalDist().inv_cdf(quantile))
        return cls(deviate=deviate, spread_frac=spread_frac, output_tokens=output_tokens)


def geometric_survivals(survival_rate: float, depth: int) -> tuple[float, ...]:
    """s_k = p^k for k = 1 … `depth`: the model of one survival rate."""
    return tuple(survival_rate**k for k in range(1, depth + 1))


def continued_survivals(survivals: Sequence[float], depth: int) -> tuple[float, ...]:
    """A measured curve, cut or continued to `depth` positions at the rate of its last one.

    Raises `DomainError` for a curve that is empty, rises or leaves [0, 1].
    """
    if not survivals or any(later > one for one, later in pairwise([1.0, *survivals])) or survivals[-1] < 0.0:
        raise DomainError(f"{list(survivals)} is no survival curve: it must not rise, within 0 … 1")
    curve = list(survivals[:depth])
    before = survivals[-2] if len(survivals) > 1 else 1.0
    rate = survivals[-1] / before if before > 0.0 else 0.0
    while len(curve) < depth:
        curve.append(curve[-1] * rate)
    return tuple(curve)


def bent_survivals(survivals: Sequence[float], power: float) -> tuple[float, ...]:
    """The same drafter on other text: s_k^power, as `survival.StepShape` moves a curve to another mean."""
    return tuple(survival**power for survival in survivals)


def survivals_with_mean(survivals: Sequence[float], accept_length: float, depth: int) -> tuple[float, ...]:
    """The curve bent so that a step at `depth` yields `accept_length`. Raises `DomainError` when none does."""
    if depth > len(survivals) or not 1.0 <= accept_length <= depth + 1.0:
        raise DomainError(f"no curve of {len(survivals)} drafts has accept length {accept_length} at depth {depth}")
    inside = [min(max(survival, 1e-9), 1.0 - 1e-9) for survival in survivals]
    low, high = -60.0, 60.0  # logarithm of the power; the accept length falls as it grows
    for _ in range(100):
        middle = 0.5 * (low + high)
        if 1.0 + math.fsum(bent_survivals(inside[:depth], math.exp(middle))) > accept_length:
            low = middle
        else:
            high = middle
    return bent_survivals(inside, math.exp(0.5 * (low + high)))


def accept_lengths(survivals: Sequence[float]) -> list[float]:
    """a_d for d = 0 … K."""
    return list(accumulate(survivals, initial=1.0))


def slow_accept_lengths(survivals: Sequence[float], slow: SlowRequests) -> list[float]:
    """slow_d for d = 0 … K, 1 at least."""
    changes = [-survival * math.log(survival) if survival > 0.0 else 0.0 for survival in survivals]
    deepest = math.fsum(changes) / (1.0 + math.fsum(survivals))
    spread = slow.spread_frac / deepest if deepest > 0.0 else 0.0
    mean = second_moment = 1.0
    change = 0.0
    found = [1.0]
    for k, survival in enumerate(survivals, start=1):
        mean += survival
        change += changes[k - 1]
        # E[X²] = Σ_{k≥1} (2k − 1) P(X ≥ k), where P(X ≥ 1) = 1 and P(X ≥ k + 1) = s_k.
        second_moment += (2 * k + 1) * survival
        variance = max(0.0, second_moment - mean * mean)
        steps = max(1.0, slow.output_tokens / mean)
        of_requests = spread * change / mean
        relative = of_requests * of_requests + variance / (mean * mean * steps)
        found.append(max(1.0, mean * (1.0 - slow.deviate * math.sqrt(relative))))
    return found
