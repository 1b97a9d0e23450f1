"""Fewer demands to plan for: those that every arm serves alike are one, and the smallest follow the likest large one.

A search costs about the square of the number of demands or more, and clients may ask for any number of targets.
"""

from __future__ import annotations

from collections.abc import Sequence

from selector.core.plannedlengths import Lengths
from selector.core.poolload import Demand, DemandKey

FEW_DEMANDS = 4
"""So many are always told apart."""
_MOST_DEMANDS = 10
_ALIKE_FRAC = 0.05
"""Accept lengths closer than this on every arm are one demand to the planner: profiles are no better known."""


class DemandMerge:
    """Merges demands over the given arms."""

    def __init__(self, arms: Sequence[str], acceptance: Lengths) -> None:
        self._arms = arms
        self._acceptance = acceptance

    def merged(self, demands: Sequence[Demand]) -> tuple[list[Demand], dict[DemandKey, DemandKey]]:
        """Few demands that stand for all, and by which of them each of `demands` is planned for."""
        if len(demands) <= FEW_DEMANDS:
            return list(demands), {demand.key: demand.key for demand in demands}
        merged: dict[DemandKey, Demand] = {}
        lengths_of: dict[DemandKey, list[float]] = {}
        member_of: dict[DemandKey, DemandKey] = {}
        for demand in demands:
            lengths = [self._acceptance.accept_length(arm, demand.text_type) for arm in self._arms]
            alike = next(
                (
                    key
                    for key, known in lengths_of.items()
                    if key[1] == demand.tbt_target_ms and _alike(lengths, known) and _similar(demand, merged[key])
                ),
                None,
            )
            if alike is None:
                merged[demand.key], lengths_of[demand.key], alike = demand, lengths, demand.key
            else:
                merged[alike] = _sum(merged[alike], demand)
            member_of[demand.key] = alike
        largest, follows = self._largest(list(merged.values()))
        return largest, {key: follows[member] for key, member in member_of.items()}

    def _largest(self, demands: Sequence[Demand]) -> tuple[list[Demand], dict[DemandKey, DemandKey]]:
        """The largest `demands`, each with the smaller ones that are likest it added; and where each went."""
        order = sorted(demands, key=lambda demand: -demand.tokens_per_s)
        largest = {demand.key: demand for demand in order[:_MOST_DEMANDS]}
        follows = {key: key for key in largest}
        for follower in order[_MOST_DEMANDS:]:
            likest = min(largest, key=lambda key: self._unlikeness(follower, largest[key]))
            largest[likest] = _sum(largest[likest], follower)
            follows[follower.key] = likest
        return list(largest.values()), follows

    def _unlikeness(self, one: Demand, other: Demand) -> float:
        """How differently two demands are to be served: relative distances of accept lengths and targets, summed up."""
        length = self._acceptance.accept_length
        lengths_apart = sum(_apart(length(arm, one.text_type), length(arm, other.text_type)) for arm in self._arms)
        if one.tbt_target_ms is None or other.tbt_target_ms is None:
            return lengths_apart + (one.tbt_target_ms != other.tbt_target_ms)
        return lengths_apart + _apart(one.tbt_target_ms, other.tbt_target_ms)


def _apart(one: float, other: float) -> float:
    """Relative distance, in [0, 1]."""
    return abs(one - other) / max(one, other)


def _alike(lengths: Sequence[float], others: Sequence[float]) -> bool:
    return all(abs(one - other) <= _ALIKE_FRAC * other for one, other in zip(lengths, others, strict=True))


def _similar(one: Demand, other: Demand) -> bool:
    """Prompts and answers of the same order: a mean of the two stands for both."""
    return (
        0.5 <= one.prompt_tokens / other.prompt_tokens <= 2.0 and 0.5 <= one.output_tokens / other.output_tokens <= 2.0
    )


def _sum(one: Demand, other: Demand) -> Demand:
    """Both demands as one: rates add up, lengths are the means per request."""
    requests_per_s = one.requests_per_s + other.requests_per_s
    share = other.requests_per_s / requests_per_s
    return one._replace(
        requests_per_s=requests_per_s,
        prompt_tokens=one.prompt_tokens + share * (other.prompt_tokens - one.prompt_tokens),
        output_tokens=one.output_tokens + share * (other.output_tokens - one.output_tokens),
    )
