"""Where one request goes under a plan: the first place by the plan's preference where nobody's target breaks.

A planned arm is filled one backend after the other or, when the plan shares its load between so many backends, where
the fewest requests are. Where it splits the clients of one demand between several arms, the place where least is there
of what is planned. Beyond the plan the least marginal energy decides, and with no feasible place left, the least
violation.

Where clients wait for answers, the requests in the system are given, and so is the idle power: what a request does to
the energy per token beyond the plan is above all how many more tokens per second the fleet makes of them. So there the
most goodput decides. It does from the start where a text has no place within its target, which then is wherever others
are but for those that the plan keeps apart, and where there are fewer places than clients of a single demand, since
then there is nothing to keep idle and no texts to keep apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from selector.core.forecast import ALIKE_MISSES, Forecast, Look, least_violation
from selector.core.missrate import MissRate
from selector.core.plan import Plan
from selector.core.policy import PolicyContext
from selector.core.poolload import DemandKey
from selector.core.prediction import Prediction
from selector.core.types import BackendView, FleetView, Outcome

_MOST_BEYOND = 4
"""Backends beyond their limit that are looked at, the least full ones."""
_FEW_OF_ALLOWED_FRAC = 0.5
"""While fewer missed their targets lately than this share of what the quantile lets miss, backends are filled beyond
their limits before another is woken."""
_ALIKE_MISSES_CLOSED = 0.03
"""Where clients wait for answers. Under open arrivals, with their bursts, more counts as alike: what is lost already
would draw a whole burst to one place, where all would wait for each other's prompts."""


class Placing:
    """Follows plans over one fleet."""

    def __init__(self, context: PolicyContext, forecast: Forecast) -> None:
        self._forecast = forecast
        self._specs = context.backends
        self._index = {spec.name: index for index, spec in enumerate(context.backends)}
        self._of_arm = forecast.of_arm
        allowed_frac = 1.0 - context.tbt_quantile
        self._misses = MissRate(allowed_frac)
        self._few_misses_frac = _FEW_OF_ALLOWED_FRAC * allowed_frac

    def ended(self, outcome: Outcome) -> None:
        """Learns whether plans keep their targets."""
        self._misses.ended(outcome)

    def place(self, plan: Plan, key: DemandKey, look: Look) -> tuple[Prediction, str] | None:
        """The place of a request of that demand, with the reason in words; `None` where no backend can serve it."""
        found = self._following(plan, key, look)
        if found is not None:
            return found
        predictions = self._staying(look)
        if not predictions:
            return None
        planned = next(iter(plan.arms_of.get(key, ())), None)
        alike_misses = _ALIKE_MISSES_CLOSED if plan.closed else ALIKE_MISSES
        placed = self._undisturbing(predictions, planned, look.fleet)
        return least_violation(look.request, placed, alike_misses=alike_misses)

    def _following(self, plan: Plan, key: DemandKey, look: Look) -> tuple[Prediction, str] | None:
        """The first place by the plan's preference, else the best one beyond it; `None` where none is feasible."""
        arms = plan.arms_of.get(key, ())
        planned = next(iter(arms), None)
        hopeless = plan.hopeless and planned not in plan.apart
        crowded = hopeless or (plan.closed and not plan.within_targets and len(plan.arms_of) == 1)
        if not crowded and (found := self._planned(plan, arms, look)) is not None:
            return found
        feasible = [found for found in self._emptiest(look) if found.feasible] if crowded else []
        feasible = feasible or [found for found in self._staying(look) if found.feasible]
        if not feasible:
            return None
        if not plan.within_targets and not crowded:  # places that others need are left to them
            feasible = [each for each in feasible if each.arm == planned or each.arm not in plan.batch_of] or feasible
        placed = self._undisturbing(feasible, planned, look.fleet)
        if crowded or (plan.closed and plan.within_targets):
            words = "too few places within targets" if crowded else "beyond the plan"
            gains = [found.marginal_tokens_per_s for found in placed]
            most = max(gains)
            return placed[gains.index(most)], f"{words}, most goodput: {most:+.0f} tokens/s"
        best = min(placed, key=lambda found: found.marginal_j_per_accepted_token)
        return best, f"beyond the plan, least marginal energy: {best.marginal_j_per_accepted_token:.3f} J/token"

    def _staying(self, look: Look) -> list[Prediction]:
        """All places but those of servers that drain, if there are others."""
        found, draining = look.all(), self._forecast.draining
        if not draining:
            return found
        return [each for each in found if self._index[each.backend] not in draining] or found

    def _planned(self, plan: Plan, arms: Sequence[str], look: Look) -> tuple[Prediction, str] | None:
        """The first feasible place by the plan's preference for a demand."""
        if plan.split:
            return self._in_proportion(plan, look)
        views = look.fleet.backends
        for rank, arm in enumerate(arms):
            limit = plan.batch_of.get(arm)
            if limit is None:
                continue
            words = "planned" if rank == 0 else f"overflow of {arms[0]}"
            sharing = plan.backends_of.get(arm)
            if sharing is None:
                able: Iterable[int] = self._filling(arm, limit, views, further=rank == 0)
            else:
                shared = islice(filter(look.can_serve, self._of_arm[arm]), sharing)
                able = sorted(shared, key=lambda each: views[each].batch)
            for index in able:
                found = look.at(index)
                if found is not None and found.feasible and (rank == 0 or self._lasts(found, limit)):
                    if sharing is None:
                        return found, f"{words}: request {found.batch} of {limit}"
                    return found, f"{words}: request {found.batch}, evenly over {sharing}"
        return None

    def _in_proportion(self, plan: Plan, look: Look) -> tuple[Prediction, str] | None:
        """The feasible place of the plan where least is there of what is planned.

        So clients are split as planned, whatever became of their number.
        """
        views = look.fleet.backends
        places = []
        for arm, sharing in plan.backends_of.items():
            share = 1.0 / plan.batch_of[arm]
            able = islice(filter(look.can_serve, self._of_arm[arm]), sharing)
            places += [((views[index].batch + 1) * share, index) for index in able]
        for _, index in sorted(places):
            found = look.at(index)
            if found is not None and found.feasible:
                return found, f"planned: request {found.batch}, of {plan.batch_of[found.arm]} there"
        return None

    def _emptiest(self, look: Look) -> Iterator[Prediction]:
        """One place of each arm, where the fewest requests are: of its backends another one adds most there."""
        views = look.fleet.backends
        for places in self._of_arm.values():
            able = [index for index in places if look.can_serve(index)]
            if able and (found := look.at(min(able, key=lambda index: views[index].batch))) is not None:
                yield found

    def _filling(self, arm: str, limit: int, views: Sequence[BackendView], *, further: bool) -> Iterator[int]:
        """The arm's backends below a limit, in order; `further`, busy ones beyond it too in order, then idle ones.

        What is filled first while the load rises is then what stays full while it falls, and the others become idle.
        Where the arm has room below its limits, few who are known to miss are enough for that; what would overflow to
        another arm stays only when it is known that few miss.
        """
        places = self._of_arm[arm]
        below = [index for index in places if views[index].batch < limit]
        room = any(views[index].available for index in below)
        if not further or (self._misses.frac if room else self._misses.doubted_frac) >= self._few_misses_frac:
            yield from below
            return
        full = [index for index in places if views[index].batch >= limit]
        looked_at = set(sorted(full, key=lambda index: views[index].batch)[:_MOST_BEYOND])
        yield from [index for index in places if 0 < views[index].batch < limit or index in looked_at]
        yield from [index for index in places if not views[index].batch]

    def _lasts(self, found: Prediction, batch: int) -> bool:
        """Whether the request would meet its target there when the backend is as full as is planned for others."""
        target_ms = found.lengths.request.tbt_target_ms
        if target_ms is None or found.batch >= batch:
            return True
        step, context = self._specs[self._index[found.backend]].cost.step.step, found.load.view.mean_context_tokens
        return found.tbt_ms * step(batch, context)[0] <= target_ms * step(found.batch, context)[0]

    def _undisturbing(
        self, predictions: Sequence[Prediction], planned: str | None, fleet: FleetView
    ) -> Sequence[Prediction]:
        """Those that make no GPU take turns: of the planned arm, or where no other server of the GPU works; else all.

        A second busy server halves the pace of every request on the first, whatever one more request there would cost;
        and what has come to two servers must not be kept on both.
        """
        views, neighbours = fleet.backends, self._forecast.neighbours
        if not any(neighbours):
            return predictions
        alone = [
            found
            for found in predictions
            if found.arm == planned or not any(views[other].batch for other in neighbours[self._index[found.backend]])
        ]
        return alone or predictions
