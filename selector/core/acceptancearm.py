"""One arm's acceptance over all text types: what the profile says, what requests taught, and how the two are weighed.

With a0_x the profile's accept length of type x and R_x, Var R_x what its own requests say (`acceptancesums`), the log
of accepted drafts over the profile's, λ_x = ln[(R_x − 1) / (a0_x − 1)], is taken to vary between arms and, within an
arm, between types (normal-normal model; Efron and Morris, Data analysis using Stein's estimator, JASA 70, 1975):

    λ = Σ_x λ_x w_x / (1 / T² + Σ_x w_x),  w_x = 1 / (Var λ_x + τ²)                  e^λ is the arm's overall ratio
    m_x = 1 + (a0_x − 1) e^λ                                        what a type without requests is taken to be
    a_x = (m_x / V + R_x / Var R_x) / (1 / V + 1 / Var R_x)                                   what is believed of x
    V = max[τ² (m_x − 1)², (R_x − m_x)² − Var R_x]

A request of t tokens that is of type x with probability π_x takes u = passes / t with (law of total variance)

    E u = Σ π_x / a_x        E u² = Σ π_x [(1 + σ_x²) / a_x² + s_x² / (a_x³ t)]        σ, s: see `acceptancesums`

Thin data therefore falls back on the arm's ratio, and that on the profile. T and τ are near what published measurements
of one target and one algorithm by two sources differ by: 0.27 in common and 0.20 for one text type (36 pairs). Where
requests contradict m_x by more than τ allows, V is what explains them best (type II maximum likelihood; Berger,
Statistical Decision Theory and Bayesian Analysis, 1985, 3.5.4): believed less, they would catch up so slowly that it
looked like a drift.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul

from selector.core.acceptancesums import Sums
from selector.core.drift import DriftDetector
from selector.core.effects import Effects
from selector.core.labelbias import LabelBias
from selector.core.survival import StepShape, step_shape
from selector.core.types import TEXT_TYPES
from selector.errors import DomainError

ARM_DEVIATION = 0.30
"""T above."""
TYPE_DEVIATION = 0.25
"""τ above."""
DOUBTED = 2.0
"""By what τ is multiplied once a drift has shown that the profile is of another time."""
_LEAST_DEVIATION_FRAC = 0.05
"""Least standard deviation of a prior, over the drafts of a step: a bad drafter may improve."""
_GUARD_PASSES = 20.0
_GUARD_DRAFTS = 0.02
"""Keeps the logarithm of no accepted draft finite."""
_LEAST_SHARE = 0.02
"""Probability of a type from which on its slow requests count."""


def slow_accept_length(mean: float, variance: float, deviate: float) -> float:
    """The accept length of a request that is slow by `deviate` standard deviations; `variance` is the relative one."""
    return mean * (1.0 - deviate * math.sqrt(variance))


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptancePrior:
    """What the profile knows of one arm on one text type, before any request was seen."""

    mean: float
    """Mean accept length, bonus token included."""
    request_spread: float = 0.0
    """Standard deviation of a request's own mean accept length over its mean (relative)."""
    survival: tuple[float, ...] | None = None
    """Share of steps in which the k-th draft was accepted, k = 1 …, where it was measured."""


class Cell:
    """One arm on one text type."""

    __slots__ = (
        "detector",
        "deviation",
        "doubt",
        "epoch",
        "known",
        "log_weight",
        "mean",
        "others",
        "own",
        "prior",
        "ratio",
        "ratio_variance",
        "samples",
        "seen",
        "shape",
        "spread",
        "step_variance",
        "weighted_log",
    )

    def __init__(self, prior: AcceptancePrior, *, known: bool, shape: StepShape) -> None:
        self.prior = prior
        self.known = known
        """Whether the profile has it; otherwise the prior says nothing."""
        self.shape = shape
        self.own = Sums()
        """What this model saw itself."""
        self.others = Sums()
        """What others told it."""
        self.seen = 0.0
        """Requests in `own` since ever, none faded."""
        self.epoch = 0
        """How often the estimate restarted; sums of different epochs are of different worlds."""
        self.doubt = 1.0
        self.detector = DriftDetector()
        self.mean = prior.mean
        self.step_variance = 0.0
        """Of a step at `mean`, as `deviation` worked out by the arm."""
        self.log_weight = 0.0
        """w_x above; 0 where no request, or no profile, says anything of λ_x."""
        self.weighted_log = 0.0
        """λ_x w_x."""
        self.deviation = 0.0
        """Standard deviation of the posterior around `mean`."""
        self.refresh()

    def refresh(self) -> None:
        """Works out what the sums say by themselves."""
        total = self.own
        if self.others.requests > 0.0:
            total = total.copy()
            total.include(self.others)
        self.samples = total.requests
        self.ratio = total.ratio
        guarded = (self.prior.mean * _GUARD_PASSES + total.tokens) / (_GUARD_PASSES + total.passes)
        step_variance = self.shape.variance(guarded)
        self.spread = total.spread(self.prior.request_spread, step_variance)
        self.log_weight = self.weighted_log = 0.0
        if self.ratio is None:
            self.ratio_variance = math.inf
            return
        self.ratio_variance = max(1e-9, total.ratio_variance(step_variance, self.spread))
        if self.known:
            drafts = self.ratio - 1.0 + _GUARD_DRAFTS
            log_ratio = math.log(drafts / (self.prior.mean - 1.0 + _GUARD_DRAFTS))
            self.log_weight = 1.0 / (self.ratio_variance / (drafts * drafts) + TYPE_DEVIATION**2)
            self.weighted_log = self.log_weight * log_ratio

    def relative_variance(self, mean: float, output_tokens: float) -> float:
        """Of the passes per token of a request of `output_tokens`, with an accept length of `mean`."""
        step_variance = self.step_variance if mean == self.mean else self.shape.variance(mean)
        tokens = output_tokens if output_tokens > mean else mean
        return self.spread * self.spread + step_variance / (mean * tokens)

    def restart(self, recent: Sums | None) -> None:
        """Begins anew from what is recent, doubting the profile."""
        self.own = Sums() if recent is None else recent.copy()
        self.others = Sums()
        self.epoch += 1
        self.doubt = DOUBTED
        self.detector.reset()
        self.refresh()


class Arm:
    """The cells of one drafting arm."""

    __slots__ = (
        "_squares", "_step_squares", "biases", "cells", "detector", "effects", "inverse_means", "log_ratio", "means",
        "requests", "samples", "width",
    )  # fmt: skip

    def __init__(self, name: str, priors: Mapping[str, AcceptancePrior], width: int) -> None:
        """Raises `DomainError` for a prior that the verify width cannot yield."""
        self.width = width
        self.effects = Effects()
        self.detector = DriftDetector()
        self.biases: dict[str, LabelBias] = {}
        """By label: of its requests whose type is uncertain."""
        self.requests = 0
        self.cells: dict[str, Cell] = {}
        for text_type in TEXT_TYPES:
            prior = priors.get(text_type, AcceptancePrior(mean=1.0))
            if not 1.0 <= prior.mean <= width:
                raise DomainError(f"accept length {prior.mean} of {name} on {text_type} is outside 1 … {width}")
            shape = step_shape(width, prior.survival)
            self.cells[text_type] = Cell(prior, known=text_type in priors, shape=shape)
        self.derive()

    def derive(self) -> None:
        """Weighs the cells against one another and the profile; after any of them was refreshed."""
        weights, weighted = 1.0 / ARM_DEVIATION**2, 0.0
        passes = tokens = 0.0
        for cell in self.cells.values():
            if cell.ratio is None:
                continue
            passes += cell.own.passes + cell.others.passes
            tokens += cell.own.tokens + cell.others.tokens
            weights += cell.log_weight
            weighted += cell.weighted_log
        self.log_ratio = weighted / weights
        arm_variance = 1.0 / weights
        unknown = tokens / passes if passes else None
        arm_ratio = math.exp(self.log_ratio) if self.log_ratio else 1.0
        self.inverse_means: list[float] = []
        self.samples: list[float] = []
        """Of the cells, in the order of `TEXT_TYPES`, as are `inverse_means`."""
        self.means: dict[str, float] = {}
        self._squares: list[float] = []
        self._step_squares: list[float] = []
        for text_type, cell in self.cells.items():
            self._weigh(cell, arm_ratio, arm_variance, unknown)
            self.means[text_type] = cell.mean
            inverse = 1.0 / cell.mean
            square = inverse * inverse
            self.inverse_means.append(inverse)
            self.samples.append(cell.samples)
            self._squares.append((1.0 + cell.spread * cell.spread) * square)
            self._step_squares.append(cell.step_variance * inverse * square)

    def mixture(self, shares: Sequence[float], output_tokens: float) -> tuple[float, float]:
        """(accept length, relative variance of passes per token) of a request that is of `TEXT_TYPES` by `shares`.

        The accept length is 1 / E u, the harmonic mean, since time and energy per token go with u. An answer counts as
        at least one pass.
        """
        inverse = math.fsum(map(mul, shares, self.inverse_means))
        mean = 1.0 / inverse
        tokens = output_tokens if output_tokens > mean else mean
        square = math.fsum(map(mul, shares, self._squares)) + math.fsum(map(mul, shares, self._step_squares)) / tokens
        variance = square / (inverse * inverse) - 1.0
        return mean, variance if variance > 0.0 else 0.0

    def at_least_slowest(
        self, slow: float, shares: Sequence[float], output_tokens: float, deviate: float, factor: float
    ) -> float:
        """`slow`, at least 1, or the slow accept length of the type that is slowest, if that is longer.

        Of the types that count, by `shares`; accept lengths are `factor` times those of their types.
        """
        least = math.inf
        for share, cell in zip(shares, self.cells.values(), strict=True):
            if share >= _LEAST_SHARE:
                of_type = factor * slow_accept_length(
                    cell.mean, cell.relative_variance(cell.mean, output_tokens), deviate
                )
                if of_type <= slow:  # what others are cannot change it any more
                    return slow
                if of_type < least:
                    least = of_type
        return least

    def _weigh(self, cell: Cell, arm_ratio: float, arm_variance: float, unknown: float | None) -> None:
        # Every cell of an arm passes here whenever a request has ended: no call that can be done without.
        width = float(self.width)
        drafts, ratio = width - 1.0, cell.ratio
        if cell.known:
            # 1 + (a − 1) is not a to the last digit: a profile that nothing speaks against is taken as it stands.
            mean = cell.prior.mean
            if self.log_ratio:
                mean = 1.0 + (mean - 1.0) * arm_ratio
                mean = mean if mean < width else width
            deviation, least = TYPE_DEVIATION * (mean - 1.0), _LEAST_DEVIATION_FRAC * drafts
            deviation = (deviation if deviation > least else least) * cell.doubt
        else:
            mean, deviation = (cell.prior.mean if unknown is None else unknown), 0.5 * drafts
        variance = deviation * deviation
        of_arm = arm_variance * (mean - 1.0) * (mean - 1.0)
        if ratio is None:
            variance += of_arm
        else:
            apart = ratio - mean
            contradicting = apart * apart - cell.ratio_variance
            if contradicting > variance:
                variance = contradicting
            to_prior = cell.ratio_variance / (cell.ratio_variance + variance)
            variance = (1.0 - to_prior) * cell.ratio_variance + to_prior * to_prior * of_arm
            mean = to_prior * mean + (1.0 - to_prior) * ratio
            mean = 1.0 if mean < 1.0 else mean if mean < width else width
        cell.mean, cell.deviation = mean, math.sqrt(variance)
        cell.step_variance = cell.shape.variance(mean)
