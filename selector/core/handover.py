"""When to follow a plan that wakes another server on a GPU that works.

Servers of one GPU take turns (`contention`): until the requests of the server that is left have ended, they and those
that come meanwhile get their tokens at half of the pace. With B requests of o tokens on the servers that work there,
B o / 2 tokens are still to come, which takes B o / R seconds at half of the rate R; as much of the load comes then as
in that time at R: 3/2 B o tokens in all. Each is priced as the planner prices a token outside its target, or one that
no place is left for where the plan in force has no place for all, or without targets as what taking turns costs. The
plan is followed once that price, over the time that a plan holds, is below what it saves: at once where it saves much,
else when few requests are running.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from selector.core.contention import turns_energy
from selector.core.planscore import UNSERVED_J_PER_TOKEN, VIOLATION_J_PER_TOKEN, Plan
from selector.core.types import FleetView

_SLOWED = 1.5
"""Answers that a handover slows down, in those under way."""


class Handover:
    """Judges plans over a fixed fleet; `holds_s` is how long a plan is taken to hold."""

    def __init__(
        self, of_arm: Mapping[str, Sequence[int]], neighbours: Sequence[tuple[int, ...]], *, holds_s: float
    ) -> None:
        self._beside = {
            arm: tuple(sorted({other for index in indices for other in neighbours[index]} - set(indices)))
            for arm, indices in of_arm.items()
        }
        self._holds_s = holds_s

    def wakes(self, plan: Plan, in_force: Plan) -> frozenset[int]:
        """The backends beside which `plan` wakes an arm that rests by the one in force; by their places."""
        woken = plan.batch_of.keys() - in_force.batch_of.keys()
        return frozenset(index for arm in woken for index in self._beside[arm])

    def is_due(self, plan: Plan, in_force: Plan, fleet: FleetView, output_tokens: float) -> bool:
        """Whether to follow `plan` instead of the one in force; answers have about `output_tokens`."""
        under_way = sum(fleet.backends[index].batch for index in self.wakes(plan, in_force))
        if not under_way:
            return True
        tokens_per_s = sum(in_force.tokens_per_s_of.values()) or 1.0
        if not in_force.within_targets:
            price_j = UNSERVED_J_PER_TOKEN
        elif any(target_ms is not None for _, target_ms in in_force.arms_of):
            price_j = VIOLATION_J_PER_TOKEN
        else:
            price_j = (turns_energy(2) - 1.0) * in_force.power_w / tokens_per_s
        saved_w = in_force.score - plan.score
        if in_force.backends_of:  # for clients who wait, plans are compared by joules per token
            saved_w *= tokens_per_s
        return price_j * _SLOWED * output_tokens * under_way < saved_w * self._holds_s
