"""What requests taught about one arm on one text type, as decayed sums, and the estimate that follows from them.

Request i took n_i verify passes for t_i = n_i + (accepted drafts) tokens. With weights k_i that fade,

    R = Σ k t / Σ k n                                              ratio estimator of the accept length
    Var R = Σ k² Var(t − R n) / (Σ k n)²                           (Cochran, Sampling Techniques, 1977, section 6.3)
    Var(t − R n) = n s² + t² σ²                                    s²: variance of a step; σ: spread between requests

The tokens of an answer do not depend on the drafter, its passes do: for given t, n has the mean t / R. σ is therefore
the relative spread of requests' own 1 / a. Its term makes requests, not passes, the units of information (the variance
of a beta-binomial with intra-class correlation R² σ² / s² has this form). σ² is estimated by moments: what Σ k (t − R
n)² exceeds Σ k n s² by, together with the profile's spread at the weight of a few requests.

All is additive, so that routers can share it by adding their sums up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

_SPREAD_PRIOR_REQUESTS = 5.0


@dataclass(slots=True, kw_only=True)
class Sums:
    """Decayed sums over requests. Values at least 0."""

    requests: float = 0.0
    """Σ k: samples behind an estimate."""
    weight_squares: float = 0.0
    """Σ k²."""
    passes: float = 0.0
    tokens: float = 0.0
    passes_passes: float = 0.0
    """Σ k n²; the next two are Σ k n t and Σ k t²."""
    passes_tokens: float = 0.0
    tokens_tokens: float = 0.0

    def add(self, passes: float, tokens: float, share: float = 1.0) -> None:
        """One request, or the `share` of it that belongs here."""
        self.requests += share
        self.weight_squares += share * share
        self.passes += share * passes
        self.tokens += share * tokens
        self.passes_passes += share * passes * passes
        self.passes_tokens += share * passes * tokens
        self.tokens_tokens += share * tokens * tokens

    def fade(self, keep: float) -> None:
        """What was known keeps the share `keep` of its weight."""
        self.requests *= keep
        self.weight_squares *= keep * keep
        self.passes *= keep
        self.tokens *= keep
        self.passes_passes *= keep
        self.passes_tokens *= keep
        self.tokens_tokens *= keep

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
        excess = max(0.0, residual - step_variance * self.passes)
        # Short requests tell little of the spread: they weigh by t², as they do in the sums.
        prior_weight = _SPREAD_PRIOR_REQUESTS * self.tokens_tokens / self.requests
        variance = (prior_weight * prior_spread * prior_spread + excess) / (prior_weight + self.tokens_tokens)
        return math.sqrt(variance)

    def ratio_variance(self, step_variance: float, spread: float) -> float:
        """Var R; needs a pass."""
        each = step_variance * self.passes + spread * spread * self.tokens_tokens
        return each * (self.weight_squares / self.requests) / (self.passes * self.passes)


SUM_NAMES: tuple[str, ...] = tuple(field.name for field in fields(Sums))
"""In this order sums are written and read."""
