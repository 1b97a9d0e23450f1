"""Predictions over a fleet for one request after another: what the policies that predict share.

`prediction` answers for one backend at one prefill share; this module keeps the share from the requests sent, asks for
every backend that can serve the request, and says what to do when none is feasible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from selector.core.eligibility import eligible
from selector.core.leastloaded import requests_in_words
from selector.core.policy import BackendSpec, PolicyContext
from selector.core.prediction import AcceptLengths, Prediction, RunningLoad, predict_with
from selector.core.stalls import PrefillWork
from selector.core.types import BackendView, Decision, FleetView, RequestView

_MOST_PREFILL_FRAC = 0.9
"""Bound of the prefill share: a burst of prompts may take longer than the window it is spread over."""


class PrefillShare:
    """The share of its time that each backend spends on prefill: ρ in `prediction`.

    Each request sent adds the prefill time of its prompt, and what was added fades over `window_s`; at a steady rate
    the share settles at rate × prefill time. It is an upper bound where prompts share a cached prefix, and knows
    nothing of requests that others send.
    """

    def __init__(self, *, window_s: float = 10.0) -> None:
        self._window_s = window_s
        self._shares: dict[str, tuple[float, float]] = {}

    def sent(self, backend: str, prefill_ms: float, now_s: float) -> None:
        """A request whose prompt takes `prefill_ms` went to `backend`."""
        self._shares[backend] = (self._share(backend, now_s) + prefill_ms / (1e3 * self._window_s), now_s)

    def frac(self, backend: str, now_s: float) -> float:
        """The share of `backend` at `now_s`, in [0, 1)."""
        share = self._share(backend, now_s)
        return share if share < _MOST_PREFILL_FRAC else _MOST_PREFILL_FRAC

    def _share(self, backend: str, now_s: float) -> float:
        share, then_s = self._shares.get(backend, (0.0, now_s))
        return share * math.exp((then_s - now_s) / self._window_s) if share else 0.0


class Forecast:
    """Predicts each request on the backends that can serve it, and remembers where requests were sent."""

    def __init__(self, context: PolicyContext) -> None:
        self._context = context
        self._specs = {spec.name: spec for spec in context.backends}
        self._prefill = PrefillShare()
        self._work = PrefillWork()
        self._loads: dict[str, RunningLoad] = {}

    def predictions(self, request: RequestView, fleet: FleetView, *, arm: str | None = None) -> list[Prediction]:
        """One prediction per eligible backend (of `arm`, if given), in the fleet's order."""
        lengths = AcceptLengths(request, self._context.acceptance, self._context.tbt_quantile)
        prefill_frac, now_s = self._prefill.frac, fleet.now_s
        dispersion_s = self.prefill_dispersion_s
        return [
            predict_with(request, self._load(view, spec), spec, lengths, prefill_frac(spec.name, now_s), dispersion_s)
            for view, spec in eligible(request, fleet, self._context)
            if arm is None or spec.arm == arm
        ]

    @property
    def prefill_dispersion_s(self) -> float:
        """Variance over mean of the prefill work per second, as `stalls` takes it."""
        return self._work.dispersion_s

    def _load(self, view: BackendView, spec: BackendSpec) -> RunningLoad:
        # Views are immutable and kept until their backend changes, so the same object means the same load.
        load = self._loads.get(spec.name)
        if load is None or load.view is not view:
            load = self._loads[spec.name] = RunningLoad(view, spec)
        return load

    def decision(
        self,
        request: RequestView,
        fleet: FleetView,
        best: Prediction,
        predictions: Sequence[Prediction],
        reason: str,
    ) -> Decision:
        """The decision for `best`, with every prediction as a candidate; counts the request as sent there."""
        prefill_ms, _ = self._specs[best.backend].cost.prefill.cost(request.prompt_tokens)
        self._prefill.sent(best.backend, prefill_ms, fleet.now_s)
        self._work.sent(prefill_ms, fleet.now_s)
        return Decision(
            backend=best.backend, reason=reason, candidates=tuple([found.candidate() for found in predictions])
        )


def least_violation(request: RequestView, predictions: Sequence[Prediction]) -> tuple[Prediction, str]:
    """The least bad of predictions of which none is feasible, and the reason in words.

    With a place free somewhere: where no running request's target breaks, if there is such a place, and then where the
    request is fastest (one broken promise rather than several). Without: the shortest queue is the least loaded.
    """
    placed = [found for found in predictions if found.fits]
    if not placed:
        best = min(predictions, key=lambda found: found.batch)
        return best, f"no free place, least loaded: {requests_in_words(best.batch - 1)}"
    best = min(placed, key=lambda found: (not found.keeps_others, found.tbt_ms))
    if request.tbt_target_ms is None or best.meets_target:
        return best, f"every place breaks a running target, least violation: {best.tbt_ms:.1f} ms"
    return best, f"no place within target, least violation: {best.tbt_ms:.1f} of {request.tbt_target_ms:g} ms"
