"""Local search for the assignment of demands to arms with the least score.

From each starting point it moves one demand at a time to another arm until nothing gets better. From the best of what
that finds it moves whole pools (everything that one arm serves, or all but one): demands that share a backend pay only
if they move together. Every assignment is scored once. A search is a generator that yields after each assignment it
scored, so that whoever runs it can do so a little at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Generic, Protocol, TypeVar

_CLEARLY_FRAC = 1e-9
"""By what share one score must be below another to count as better."""


class Scored(Protocol):
    """Something that is compared by its score, the less the better."""

    @property
    def score(self) -> float:
        """Below 0 too, where costs are odd enough for a step to take less than idling."""
        ...


Key = TypeVar("Key", bound=Hashable)
Plan = TypeVar("Plan", bound=Scored)
Result = TypeVar("Result")


def clearly_less(one: float, other: float, frac: float) -> bool:
    """Whether `one` is below `other` by more than that share of it: rounding alone must not keep a search going.

    Holds for numbers below 0 too, where `one < other * (1 - frac)` would be true of equal ones.
    """
    return one < other - frac * abs(other)


def finished(search: Generator[None, None, Result]) -> Result:
    """Runs a search to its end."""
    while True:
        try:
            next(search)
        except StopIteration as end:
            result: Result = end.value
            return result


class PlanSearch(Generic[Key, Plan]):
    """One search. All assignments name the same keys in the same order."""

    def __init__(self, arms: Sequence[str], evaluate: Callable[[Mapping[Key, str]], Plan]) -> None:
        self._arms = arms
        self._evaluate = evaluate
        self._plans: dict[tuple[str, ...], Plan] = {}

    def plan(self, arm_of: Mapping[Key, str]) -> Generator[None, None, Plan]:
        """The plan of an assignment."""
        chosen = tuple(arm_of.values())
        plan = self._plans.get(chosen)
        if plan is None:
            plan = self._plans[chosen] = self._evaluate(arm_of)
            yield
        return plan

    def best(self, starts: Sequence[Mapping[Key, str]]) -> Generator[None, None, Plan]:
        """The best plan found from `starts`, at least one."""
        arm_of = yield from self._descended(starts[0])
        for start in starts[1:]:
            found = yield from self._descended(start)
            if (yield from self._better(found, arm_of)):
                arm_of = found
        moving = True
        while moving:
            moving = False
            for moved in self._pool_moves(arm_of):
                if (yield from self._better(moved, arm_of)):
                    arm_of, moving = (yield from self._descended(moved)), True
                    break
        return (yield from self.plan(arm_of))

    def _better(self, one: Mapping[Key, str], other: Mapping[Key, str]) -> Generator[None, None, bool]:
        first = yield from self.plan(one)
        second = yield from self.plan(other)
        return clearly_less(first.score, second.score, _CLEARLY_FRAC)

    def _descended(self, arm_of: Mapping[Key, str]) -> Generator[None, None, Mapping[Key, str]]:
        """The assignment after moving single demands for as long as that makes it better."""
        improved = True
        while improved:
            improved = False
            for key in arm_of:
                for arm in self._arms:
                    if arm == arm_of[key]:
                        continue
                    moved = {**arm_of, key: arm}
                    if (yield from self._better(moved, arm_of)):
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
