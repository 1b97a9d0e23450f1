"""Local search for the assignment of demands to arms with the least score.

From each starting point it moves one demand at a time to another arm until nothing gets better. From the best of what
that finds it moves whole pools (everything that one arm serves, or all but one): demands that share a backend pay only
if they move together. Every assignment is scored once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Generic, Protocol, TypeVar

_CLEARLY = 1.0 - 1e-9
"""A score counts as better below this share of another: rounding alone must not keep the search going."""


class Scored(Protocol):
    """Something that is compared by its score, the less the better."""

    @property
    def score(self) -> float:
        """At least 0."""
        ...


Key = TypeVar("Key", bound=Hashable)
Plan = TypeVar("Plan", bound=Scored)


class PlanSearch(Generic[Key, Plan]):
    """One search. All assignments name the same keys in the same order."""

    def __init__(self, arms: Sequence[str], evaluate: Callable[[Mapping[Key, str]], Plan]) -> None:
        self._arms = arms
        self._evaluate = evaluate
        self._plans: dict[tuple[str, ...], Plan] = {}

    def plan(self, arm_of: Mapping[Key, str]) -> Plan:
        """The plan of an assignment."""
        chosen = tuple(arm_of.values())
        plan = self._plans.get(chosen)
        if plan is None:
            plan = self._plans[chosen] = self._evaluate(arm_of)
        return plan

    def best(self, starts: Sequence[Mapping[Key, str]]) -> Plan:
        """The best plan found from `starts`, at least one."""
        arm_of = min(map(self._descended, starts), key=lambda found: self.plan(found).score)
        while True:
            moved = next((moved for moved in self._pool_moves(arm_of) if self._better(moved, arm_of)), None)
            if moved is None:
                return self.plan(arm_of)
            arm_of = self._descended(moved)

    def _better(self, one: Mapping[Key, str], other: Mapping[Key, str]) -> bool:
        return self.plan(one).score < self.plan(other).score * _CLEARLY

    def _descended(self, arm_of: Mapping[Key, str]) -> Mapping[Key, str]:
        """The assignment after moving single demands for as long as that makes it better."""
        improved = True
        while improved:
            improved = False
            for key in arm_of:
                for arm in self._arms:
                    moved = {**arm_of, key: arm}
                    if self._better(moved, arm_of):
                        arm_of, improved = moved, True
        return arm_of

    def _pool_moves(self, arm_of: Mapping[Key, str]) -> Iterator[Mapping[Key, str]]:
        """Everything that one arm serves, or all but one demand, given to another; two arms' demands exchanged."""
        used = set(arm_of.values())
        for one, other in permutations(self._arms, 2):
            if one not in used:
                continue
            given = {key: other if arm == one else arm for key, arm in arm_of.items()}
            yield given
            for key, arm in arm_of.items():
                if arm == one:
                    yield {**given, key: one}
            if one < other and other in used:
                swapped = {one: other, other: one}
                yield {key: swapped.get(arm, arm) for key, arm in arm_of.items()}
