"""What requests taught about one arm on one text type, as decayed sums, and the estimate that follows from them.

Request i took n_i verify passes for t_i = n_i + (accepted drafts) tokens. With weights k_i that fade and w_i by length,

    R = Σ k w t / Σ k w n,   w = C / (C + t)                       the accept length
    Var R = Σ k² w² Var(t − R n) / (Σ k w n)²                      (Cochran, Sampling Techniques, 1977, section 6.3)
    Var(t − R n) = n s² + t² σ²                                    s²: variance of a step; σ: spread between requests

The tokens of an answer do not depend on the drafter, its passes do: for given t, n has the mean t / R. σ is therefore
the relative spread of requests' own 1 / a. Its term makes requests, not passes, the units of information (the variance
of a beta-binomial with intra-class correlation R² σ² / s² has this form).

The weights are those of the quasi-likelihood (Wedderburn, Biometrika 61, 1974): Σ w (t − R n) = 0 has the least
variance with w ∝ t / Var(t − R n) ∝ 1 / (s² / (R σ²) + t). Short requests, of which steps are most of the chance,
count by their tokens; long ones, of which the spread is, count alike. C stands for s² / (R σ²), 5 to 150 tokens for
drafters at a spread of 0.15. It is one constant, so that sums can be added up, and a factor of four in it costs a few
per cent of variance. It is a function of t alone: of n too, the estimate would be biased.

σ² is estimated by moments: what Σ k w² (t − R n)² exceeds Σ k w² n s² by, together with the profile's spread at the
weight of a few requests.

All is additive, so that routers can share it by adding their sums up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

_HALF_COUNTED_TOKENS = 64.0
"""C above: a request of so many tokens counts with half of them."""
_SPREAD_PRIOR_REQUESTS = 5.0


def length_weight(tokens: float) -> float:
    """w above, in (0, 1]: by what tokens and passes of a request count, wherever requests are added up."""
    return _HALF_COUNTED_TOKENS / (_HALF_COUNTED_TOKENS + tokens)


@dataclass(slots=True, kw_only=True)
class Sums:
    """Decayed sums over requests. Values at least 0."""

    requests: float = 0.0
    """Σ k: samples behind an estimate."""
    weight_squares: float = 0.0
    """Σ k²."""
    passes: float = 0.0
    """Σ k w n; the next one is Σ k w t."""
    tokens: float = 0.0
    passes_passes: float = 0.0
    """Σ k w² n²; the next three are Σ k w² n t, Σ k w² t² and Σ k w² n."""
    passes_tokens: float = 0.0
    tokens_tokens: float = 0.0
    step_passes: float = 0.0

    def add(self, passes: float, tokens: float, share: float = 1.0, keep: float = 1.0) -> None:
        """One request, or the `share` of it that belongs here; what was known keeps the share `keep` of its weight."""
        weight = length_weight(tokens)
        counted_passes, counted_tokens = weight * passes, weight * tokens
        self.requests = keep * self.requests + share
        self.weight_squares = keep * keep * self.weight_squares + share * share
        self.passes = keep * self.passes + share * counted_passes
        self.tokens = keep * self.tokens + share * counted_tokens
        self.passes_passes = keep * self.passes_passes + share * counted_passes * counted_passes
        self.passes_tokens = keep * self.passes_tokens + share * counted_passes * counted_tokens
        self.tokens_tokens = keep * self.tokens_tokens + share * counted_tokens * counted_tokens
        self.step_passes = keep * self.step_passes + share * weight * counted_passes

    def fade(self, keep: float) -> None:
        """What was known keeps the share `keep` of its weight."""
        self.requests *= keep
        self.weight_squares *= keep * keep
        self.passes *= keep
        self.tokens *= keep
        self.passes_passes *= keep
        self.passes_tokens *= keep
        self.tokens_tokens *= keep
        self.step_passes *= keep

    def include(self, other: Sums) -> None:
        """Adds what somebody else saw."""
        for name in SUM_NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def copy(self) -> Sums:
        """The same sums, to change apart."""
        return Sums(**{name: getattr(self, name) for name in SUM_NAMES})

    @property
    def ratio(self) -> float | None:
        """R; `None` without a pass."""
        return self.tokens / self.passes if self.passes > 0.0 else None

    def spread(self, prior_spread: float, step_variance: float) -> float:
        """σ, relative to R: by moments, the profile's own having the weight of some requests."""
        ratio = self.ratio
        if ratio is None or self.requests <= 0.0:
            return prior_spread
        residual = self.tokens_tokens - 2.0 * ratio * self.passes_tokens + ratio * ratio * self.passes_passes
        excess = max(0.0, residual - step_variance * self.step_passes)
        # Short requests tell little of the spread: they weigh by (w t)², as they do in the sums.
        prior_weight = _SPREAD_PRIOR_REQUESTS * self.tokens_tokens / self.requests
        variance = (prior_weight * prior_spread * prior_spread + excess) / (prior_weight + self.tokens_tokens)
        return math.sqrt(variance)

    def ratio_variance(self, step_variance: float, spread: float) -> float:
        """Var R; needs a pass."""
        each = step_variance * self.step_passes + spread * spread * self.tokens_tokens
        return each * (self.weight_squares / self.requests) / (self.passes * self.passes)


SUM_NAMES: tuple[str, ...] = tuple(field.name for field in fields(Sums))
"""In this order sums are written and read."""
