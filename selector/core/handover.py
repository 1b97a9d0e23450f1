"""When to follow a plan that wakes another server on a GPU that works.

Servers of one GPU take turns (`contention`): until the requests of the server that is left have ended, they and those
that come meanwhile get their tokens at half of the pace. With B requests of o tokens on the servers that work there,
B o / 2 tokens are still to come, which takes B o / R seconds at half of the rate R; as much of the load comes then as
in that time at R: 3/2 B o tokens in all. Those under way have half of their tokens yet to come, so their answers take
half as long again.

Where all of them meet their targets even so, a token costs what taking turns does, and the plan has to save a tenth at
least, since prompts wait longer meanwhile; without targets the price alone counts. Else it costs what the planner
prices a token at that is outside its target. The plan is followed once that price, over the time that a plan holds, is
below what it saves: at once where it saves much, else when few requests are running.

In a peak it is too late. Prefills take turns as well: where they take much of the time alone, the server that is woken
cannot keep up with what comes until the other one has drained, and neither gets out of it (where clients wait for their
answers, no more comes than ends). And where the plan in force has no place within the targets for all, most of what a
change-over slows down is what was still in time. Where the other plan has none either, both scores are mostly of what
is late, which is known far less well, and turn with the load: it has to save a quarter, even where nothing runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from selector.core.contention import turns_energy, turns_slowdown
from selector.core.plan import VIOLATION_J_PER_TOKEN, Plan
from selector.core.types import FleetView

_WORTH_FRAC = 0.1
"""What a handover has to save beside its price: scores of plans tremble with the rates, and prompts wait longer."""
_LATE_WORTH_FRAC = 0.25
"""What a plan has to save that is late with some, as the one in force is."""
_SLOWED = 1.5
"""Answers that a handover slows down, in those under way."""
_MOST_PREFILL_FRAC = 0.25
"""Share of the time that prefill may take while two servers take turns. Simulated over twelve draws of a peak on three
servers (bench/live/three-on-one-targets.toml): at 0.4 two of them end in queues, at 0.3 a change in the rise makes the
p99 of TTFT 320 ms in one of them, 150 at 0.25."""


class Handover:
    """Judges plans over a fixed fleet; `holds_s` is how long a plan is taken to hold."""

    def __init__(
        self, of_arm: Mapping[str, Sequence[int]], neighbours: Sequence[tuple[int, ...]], *, holds_s: float
    ) -> None:
        self._of_arm = of_arm
        self._neighbours = neighbours
        self._beside = {
            arm: tuple(sorted({other for index in indices for other in neighbours[index]} - set(indices)))
            for arm, indices in of_arm.items()
        }
        self._holds_s = holds_s

    def wakes(self, plan: Plan, in_force: Plan) -> frozenset[int]:
        """The backends beside which `plan` wakes an arm that rests by the one in force; by their places."""
        woken = plan.batch_of.keys() - in_force.batch_of.keys()
        return frozenset(index for arm in woken for index in self._beside[arm])

    def left(self, plan: Plan, available: Sequence[bool]) -> frozenset[int]:
        """The backends that `plan` leaves to others of their GPUs, of those that are `available`; by their places."""
        planned = [index for arm in plan.batch_of for index in self._of_arm[arm]]
        beside = {other for index in planned if available[index] for other in self._neighbours[index]}
        return frozenset(beside.difference(planned))

    def is_due(
        self,
        plan: Plan,
        in_force: Plan,
        fleet: FleetView,
        *,
        output_tokens: float,
        prefill_frac: float,
        keeps_targets: Callable[[int], bool],
    ) -> bool:
        """Whether to follow `plan` instead of the one in force; answers have about `output_tokens`.

        `prefill_frac` is the share of its time that one GPU would need for the prefills of the whole load.
        `keeps_targets` says of the backend of a place whether those who run there meet their targets slowed by
        `DRAINING`.
        """
        saved = in_force.score - plan.score
        late = not (in_force.closed or in_force.within_targets or plan.within_targets)
        if late and saved < _LATE_WORTH_FRAC * in_force.score:
            return False
        slowed = [index for index in self.wakes(plan, in_force) if fleet.backends[index].batch]
        if not slowed:
            return True
        if not in_force.closed and turns_slowdown(2) * prefill_frac / len(slowed) > _MOST_PREFILL_FRAC:
            return False
        under_way = sum(fleet.backends[index].batch for index in slowed)
        tokens_per_s = sum(in_force.tokens_per_s_of.values()) or 1.0
        has_targets = any(target_ms is not None for _, target_ms in in_force.arms_of)
        if has_targets and not all(keeps_targets(index) for index in slowed):
            if not in_force.within_targets:
                return False
            price_j = VIOLATION_J_PER_TOKEN
        elif has_targets and saved < _WORTH_FRAC * in_force.score:
            return False
        else:
            price_j = (turns_energy(2) - 1.0) * in_force.power_w / tokens_per_s
        # For clients who wait, plans are compared by joules per token.
        saved_w = saved * tokens_per_s if in_force.closed else saved
        return price_j * _SLOWED * output_tokens * under_way < saved_w * self._holds_s
