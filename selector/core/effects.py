"""What context length and temperature do to an arm's acceptance, where the data shows it.

Within a text type, request i accepts t_i / (R n_i) times what the type's estimate says. Per arm, this is regressed on

    x = (ln context, temperature), each less its mean over the type's own requests

by weighted least squares with weights 1 / variance, over decayed sums. Differences between text types are in the
estimates already and do not enter (the "within" estimator of panel data; Wooldridge, Econometric Analysis, 2010, 10.5).
An effect is applied only while its coefficient is more than `ON_DEVIATIONS` standard errors from 0 (until it falls
under `OFF_DEVIATIONS`), and the correction is bounded: at most `MOST_FACTOR` either way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

ON_DEVIATIONS = 5.0
OFF_DEVIATIONS = 3.0
LEAST_REQUESTS = 200.0
MOST_FACTOR = 1.5
NAMES = ("context", "temperature")
_REACH = (2.0, 1.0)
"""How far from the mean an effect is followed: a factor e² of context, one unit of temperature."""
_HALF_LIFE_REQUESTS = 4_000.0
_KEEP = 0.5 ** (1.0 / _HALF_LIFE_REQUESTS)


@dataclass(slots=True)
class _Mean:
    """A decayed mean."""

    weight: float = 0.0
    value: float = 0.0

    def add(self, value: float) -> None:
        self.weight = self.weight * _KEEP + 1.0
        self.value += (value - self.value) / self.weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What is known of one effect on one arm."""

    coefficient: float
    """Relative change of the accept length per unit: of ln context, or of temperature."""
    standard_error: float
    applied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectsState:
    """All that `Effects` learnt, to be kept."""

    means: Mapping[str, tuple[float, float, float, float]]
    """Weight and mean of ln context, weight and mean of temperature, by text type."""
    requests: tuple[float, float]
    squares: tuple[float, float]
    cross: float
    products: tuple[float, float]
    applied: tuple[bool, bool]


class Effects:
    """Both effects on one arm."""

    __slots__ = ("_applied", "_coefficients", "_cross", "_errors", "_means", "_products", "_requests", "_squares")

    def __init__(self) -> None:
        self._means: dict[str, tuple[_Mean, _Mean]] = {}
        self._requests = [0.0, 0.0]
        self._squares = [0.0, 0.0]
        self._cross = 0.0
        self._products = [0.0, 0.0]
        self._coefficients = [0.0, 0.0]
        self._errors = [math.inf, math.inf]
        self._applied = [False, False]

    @property
    def any_applied(self) -> bool:
        """Whether `factor` can differ from 1."""
        return self._applied[0] or self._applied[1]

    def factor(self, text_type: str, context_tokens: float | None, temperature: float | None) -> float:
        """By what the accept length of a request differs from its type's estimate."""
        means = self._means.get(text_type)
        if means is None or not self.any_applied:
            return 1.0
        exponent = 0.0
        for index, value in enumerate(_values(context_tokens, temperature)):
            if self._applied[index] and value is not None:
                reach = _REACH[index]
                exponent += self._coefficients[index] * min(max(value - means[index].value, -reach), reach)
        return min(max(math.exp(exponent), 1.0 / MOST_FACTOR), MOST_FACTOR)

    def add(
        self,
        text_type: str,
        context_tokens: float | None,
        temperature: float | None,
        relative_residual: float,
        relative_variance: float,
    ) -> None:
        """A request that accepted 1 + `relative_residual` times what its type's estimate says, effects left out."""
        means = self._means.setdefault(text_type, (_Mean(), _Mean()))
        weight = 1.0 / relative_variance
        x = [0.0, 0.0]
        for index, value in enumerate(_values(context_tokens, temperature)):
            if value is not None:
                mean = means[index]
                x[index] = min(max(value - mean.value, -_REACH[index]), _REACH[index]) if mean.weight else 0.0
                mean.add(value)
                self._requests[index] = self._requests[index] * _KEEP + 1.0
        if x == [0.0, 0.0]:
            return
        for index in range(2):
            self._squares[index] = self._squares[index] * _KEEP + weight * x[index] * x[index]
            self._products[index] = self._products[index] * _KEEP + weight * x[index] * relative_residual
        self._cross = self._cross * _KEEP + weight * x[0] * x[1]
        self._solve()

    def known(self) -> dict[str, Effect]:
        """Each effect that data says anything about, by its name."""
        return {
            name: Effect(
                coefficient=self._coefficients[index], standard_error=self._errors[index], applied=self._applied[index]
            )
            for index, name in enumerate(NAMES)
            if math.isfinite(self._errors[index])
        }

    def state(self) -> EffectsState:
        """What was learnt."""
        return EffectsState(
            means={name: (c.weight, c.value, t.weight, t.value) for name, (c, t) in self._means.items()},
            requests=(self._requests[0], self._requests[1]),
            squares=(self._squares[0], self._squares[1]),
            cross=self._cross,
            products=(self._products[0], self._products[1]),
            applied=(self._applied[0], self._applied[1]),
        )

    def restore(self, state: EffectsState) -> None:
        """Takes what `state` gave instead of all it knows."""
        self._means = {
            name: (_Mean(weight=cw, value=cv), _Mean(weight=tw, value=tv))
            for name, (cw, cv, tw, tv) in state.means.items()
        }
        self._requests, self._squares = list(state.requests), list(state.squares)
        self._cross, self._products = state.cross, list(state.products)
        self._applied = list(state.applied)
        self._solve()

    def _solve(self) -> None:
        """The two normal equations; where they cannot be told apart, each by itself is too uncertain to be applied."""
        (cc, tt), ct = self._squares, self._cross
        determinant = cc * tt - ct * ct
        inverse: tuple[float, float]
        if determinant > 1e-9 * cc * tt > 0.0:
            inverse = (tt / determinant, cc / determinant)
            by = self._products
            self._coefficients = [(tt * by[0] - ct * by[1]) / determinant, (cc * by[1] - ct * by[0]) / determinant]
        else:
            only = tt <= 0.0 or cc <= 0.0
            inverse = (1.0 / cc if cc > 0.0 and only else math.inf, 1.0 / tt if tt > 0.0 and only else math.inf)
            self._coefficients = [
                by * each if math.isfinite(each) else 0.0 for by, each in zip(self._products, inverse, strict=True)
            ]
        for index in range(2):
            self._errors[index] = math.sqrt(inverse[index])
            needed = OFF_DEVIATIONS if self._applied[index] else ON_DEVIATIONS
            enough = self._requests[index] >= LEAST_REQUESTS
            self._applied[index] = enough and abs(self._coefficients[index]) > needed * self._errors[index]


def _values(context_tokens: float | None, temperature: float | None) -> tuple[float | None, float | None]:
    return None if context_tokens is None else math.log(max(context_tokens, 1.0)), temperature
