"""Predictions over a fleet for one request after another: what the policies that predict share.

`prediction` answers for one backend at one prefill share; this module keeps the share from the requests sent, asks for
every backend that can serve the request, and says what to do when none is feasible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from heapq import nlargest

from selector.core.contention import DRAINING, neighbours
from selector.core.eligibility import can_ever_serve
from selector.core.leastloaded import requests_in_words
from selector.core.policy import PolicyContext
from selector.core.prediction import (
    Disturbed,
    Prediction,
    keeps_targets,
    predict_with,
)
from selector.core.runningload import AcceptLengths, RunningLoad
from selector.core.stalls import PrefillWork
from selector.core.types import BackendView, Decision, FleetView, LazyCandidates, RequestView, make_decision

_MOST_PREFILL_FRAC = 0.9
"""Bound of the prefill share: a burst of prompts may take longer than the window it is spread over."""

ALIKE_MISSES = 0.1
"""Expected misses by which places may differ and still count as alike."""


class PrefillShare:
    """The share of its time that each backend spends on prefill: ρ in `prediction`.

    Each request sent adds the prefill time of its prompt, and what was added fades over `window_s`; at a steady rate
    the share settles at rate × prefill time. It is an upper bound where prompts share a cached prefix, and knows
    nothing of requests that others send.
    """

    def __init__(self, *, window_s: float = 30.0) -> None:
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


class Look:
    """Predictions of one request over one view of the fleet, each made when it is first asked for."""

    __slots__ = ("_bursts", "_forecast", "_made", "fleet", "lengths", "request")

    def __init__(self, forecast: Forecast, request: RequestView, fleet: FleetView) -> None:
        self._forecast = forecast
        self._made: dict[int, Prediction | None] = {}
        self._bursts = forecast.prefill_work.bursts
        self.fleet = fleet
        self.request = request
        self.lengths = forecast.lengths(request)

    def can_serve(self, index: int) -> bool:
        """Whether the backend of that place is available and can serve the request."""
        return self.fleet.backends[index].available and can_ever_serve(self.request, self._forecast.backends[index])

    def at(self, index: int) -> Prediction | None:
        """The prediction for the backend of that place in the fleet; `None` where it cannot serve the request."""
        made = self._made
        if index in made:
            return made[index]
        found: Prediction | None = None
        if self.can_serve(index):
            forecast = self._forecast
            view, spec = self.fleet.backends[index], forecast.backends[index]
            load, prefill_frac = forecast.load(index, view), forecast.prefill_frac(spec.name, self.fleet.now_s)
            if forecast.neighbours[index]:
                found = self._taking_turns(index, load, prefill_frac)
            else:
                found = predict_with(self.request, load, spec, self.lengths, prefill_frac, self._bursts)
        made[index] = found
        return found

    def all(self) -> list[Prediction]:
        """Those of every backend that can serve the request, in the fleet's order."""
        return [found for index in range(len(self.fleet.backends)) if (found := self.at(index)) is not None]

    def of_arm(self, arm: str) -> list[Prediction]:
        """Those of the backends of one arm that can serve the request, in the fleet's order."""
        return [found for index in self._forecast.of_arm.get(arm, ()) if (found := self.at(index)) is not None]

    def busiest_of_arm(self, arm: str, most: int) -> list[Prediction]:
        """Those of at most so many backends of one arm that have a place left, the busiest, in the fleet's order."""
        backends, views = self._forecast.backends, self.fleet.backends
        indices = self._forecast.of_arm.get(arm, ())
        free = [index for index in indices if views[index].batch < backends[index].max_running_requests]
        busiest = nlargest(most, free, key=lambda index: views[index].batch)
        return [found for index in sorted(busiest) if (found := self.at(index)) is not None]

    def made(self) -> list[Prediction]:
        """Those made so far."""
        return [found for found in self._made.values() if found is not None]

    def _taking_turns(self, index: int, load: RunningLoad, prefill_frac: float) -> Prediction:
        """The prediction for a backend that shares its GPU with others."""
        forecast, views = self._forecast, self.fleet.backends
        working = [other for other in forecast.neighbours[index] if views[other].batch]
        busy = [other for other in working if other not in forecast.draining]
        spec, turns = forecast.backends[index], 1 + len(busy) + (DRAINING - 1.0) * (len(working) - len(busy))
        found = predict_with(self.request, load, spec, self.lengths, prefill_frac, self._bursts, turns)
        if views[index].batch or not busy:
            return found
        disturbed = tuple([self._at_work(other) for other in busy])
        keeps = all(self._keeps_targets(other, 1 + other.turns) for other in disturbed)
        return found._replace(
            keeps_others=found.keeps_others and keeps, feasible=found.feasible and keeps, disturbed=disturbed
        )

    def keeps_targets(self, index: int, slowdown: float) -> bool:
        """Whether the requests on a busy backend meet their targets when its steps take `slowdown` times as long."""
        return self._keeps_targets(self._at_work(index), slowdown)

    def _at_work(self, index: int) -> Disturbed:
        """What runs on a busy backend that shares its GPU."""
        forecast, views = self._forecast, self.fleet.backends
        return Disturbed(
            forecast.load(index, views[index]),
            forecast.prefill_frac(forecast.backends[index].name, self.fleet.now_s),
            1 + sum(views[other].batch > 0 for other in forecast.neighbours[index]),
        )

    def _keeps_targets(self, there: Disturbed, slowdown: float) -> bool:
        return any(
            keeps_targets(
                at_depth,
                self.lengths,
                slowdown * at_depth.step_ms,
                there.prefill_frac,
                self._bursts,
                there.turns,
            )
            for at_depth in (there.load.at_depths.values() or (there.load,))
        )


class Forecast:
    """Predicts each request on the backends that can serve it, and remembers where requests were sent."""

    def __init__(self, context: PolicyContext, lengths: type[AcceptLengths] = AcceptLengths) -> None:
        """`lengths` is what a decision takes accept lengths from."""
        self._context = context
        self._lengths = lengths
        self.backends = context.backends
        self._specs = {spec.name: spec for spec in context.backends}
        self._prefill = PrefillShare()
        self.prefill_frac = self._prefill.frac
        self._work = PrefillWork()
        of_arm: dict[str, list[int]] = {}
        for index, spec in enumerate(context.backends):
            of_arm.setdefault(spec.arm, []).append(index)
        self.of_arm: Mapping[str, Sequence[int]] = of_arm
        """The places in the fleet of each arm's backends."""
        self._loads: list[RunningLoad | None] = [None] * len(context.backends)
        self.neighbours = neighbours(context.backends)
        """For each backend, the places in the fleet of those that share a GPU with it."""
        self.draining: frozenset[int] = frozenset()
        """Places of servers that are left to others of their GPU: they take turns for a while, and stand in no one's
        way."""

    def lengths(self, request: RequestView) -> AcceptLengths:
        """The accept lengths that a decision on `request` needs."""
        return self._lengths(request, self._context.acceptance, self._context.tbt_quantile)

    def look(self, request: RequestView, fleet: FleetView) -> Look:
        """Predictions of `request` as they are asked for."""
        return Look(self, request, fleet)

    def predictions(self, request: RequestView, fleet: FleetView, *, arm: str | None = None) -> list[Prediction]:
        """One prediction per eligible backend (of `arm`, if given), in the fleet's order."""
        look = self.look(request, fleet)
        return look.all() if arm is None else look.of_arm(arm)

    def load(self, index: int, view: BackendView) -> RunningLoad:
        """What runs on the backend of that place."""
        # Views are immutable and kept until their backend changes, so the same object means the same load.
        load = self._loads[index]
        if load is None or load.view is not view:
            load = self._loads[index] = RunningLoad(view, self.backends[index])
        return load

    @property
    def prefill_work(self) -> PrefillWork:
        """The prefill work sent to the whole fleet."""
        return self._work

    def decision(
        self,
        request: RequestView,
        fleet: FleetView,
        best: Prediction,
        told: Callable[[], Sequence[Prediction]],
        reason: str,
        *,
        cached_tokens: float = 0.0,
    ) -> Decision:
        """The decision for `best`, with the predictions that `told` gives as candidates; counts the request as sent.

        `told` is called when somebody looks at them. `cached_tokens` of its prompt are expected in the backend's prefix
        cache.
        """
        prefill = self._specs[best.backend].cost.prefill
        prefill_ms = prefill.stall_ms(request.prompt_tokens - cached_tokens, after=cached_tokens)
        self._prefill.sent(best.backend, prefill_ms, fleet.now_s)
        self._work.sent(prefill_ms, fleet.now_s)
        candidates = LazyCandidates(lambda: tuple([found.candidate() for found in told()]))
        return make_decision(backend=best.backend, reason=reason, candidates=candidates)


def least_violation(
    request: RequestView, predictions: Sequence[Prediction], *, alike_misses: float = ALIKE_MISSES
) -> tuple[Prediction, str]:
    """The least bad of predictions of which none is feasible, and the reason in words.

    With a place free somewhere: where the fewest requests are expected to miss their targets because of it, itself and
    those that run there; of places that are about alike in that, the one where it is fastest in the mean: sent where
    most is lost already, all would wait for each other's prompts. (What lies at the quantile has been counted with the
    misses.) Without a free place: where as many requests as there are would take least time if all were like this one.
    The shortest queue alone sends texts to arms that are slow with them, and queues that came with a peak would never
    end (MinDrift; Stolyar, Optimal routing in output-queued flexible server systems, Probability in the Engineering and
    Informational Sciences 19, 2005).
    """
    placed = [found for found in predictions if found.fits]
    if not placed:
        best = min(predictions, key=lambda found: found.batch * found.mean_tbt_ms)
        return best, f"no free place, soonest through: {requests_in_words(best.batch - 1)}"
    missed = [found.missed for found in placed]
    most = min(missed) + alike_misses
    alike = [found for found, misses in zip(placed, missed, strict=True) if misses <= most]
    best = min(alike, key=lambda found: found.mean_tbt_ms)
    target_ms = request.tbt_target_ms
    if target_ms is None or best.meets_target:
        return best, f"every place breaks a running target, least violation: {best.tbt_ms:.1f} ms"
    return best, f"no place within target, least violation: {best.tbt_ms:.1f} of {target_ms:g} ms"
