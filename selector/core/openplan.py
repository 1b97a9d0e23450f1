"""The plan of an assignment with the rates given: clients come whatever happens.

Backends are filled to b* one after the other and the rest idles: a pool of rate R runs ⌊R / r(b*)⌋ full backends and a
partial one. Score: the power, with what it costs that requests come and go and wake the next arm (`openpools`).
Independent requests do not come sorted: where those planned for an arm are more than its backends hold within the
targets, each demand has the same share of its requests there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from selector.core.assignment import Assignment, Held
from selector.core.openpools import Asked, mean_open_run
from selector.core.plan import VIOLATION_J_PER_TOKEN, Plan
from selector.core.poolload import Demand

_UNSERVED_J_PER_TOKEN = 1e3
"""Price of a token that no place is left for: above any real cost, so that serving always wins."""
_GROWN = (2.0, 4.0, 8.0)
"""Loads, as multiples of the present one, for which a choice among servers that share a GPU has to be good too."""
_TURNS_FRAC = 0.25
"""What servers of one GPU have to save by working together. They hold less of a peak, and prefills take turns too:
simulated (bench/live/draws.py) with half code, half Romansh at 25 ms, two servers that saved 3 to 10 % doubled the p99
of TTFT."""


class _Run(NamedTuple):
    """Pools that serve their parts of the demands at given rates."""

    power_w: float
    """Above idle."""
    score: float
    """The power, and what slower answers are worth less."""
    served: float
    """Tokens per second."""
    woken: tuple[str, ...] = ()
    """Arms that serve only what others turn away."""


def open_plan(assignment: Assignment, halved_tbt_frac: float) -> Plan:
    """The plan of an assignment; where overflow wakes several arms, with one of them for all where that costs less.

    Halving the TBT is worth about the share `halved_tbt_frac` of the power.
    """
    plan, woken = _filled(assignment, halved_tbt_frac)
    if len(woken) > 1:  # what is best for the overflow of each alone may cost more than one arm for all
        for arm in woken:
            found, _ = _filled(assignment.overflowing_to(arm), halved_tbt_frac)
            plan = min(plan, found, key=lambda each: each.score)
    return plan


def _filled(assignment: Assignment, halved_tbt_frac: float) -> tuple[Plan, tuple[str, ...]]:
    """Backends filled one after the other as requests come and go; and the arms that serve only overflow."""
    held, unserved = assignment.alike(1.0)
    run = _run(assignment, held, 1.0, halved_tbt_frac)
    refused_w = unserved * _UNSERVED_J_PER_TOKEN
    refused_w += sum(pool.tokens_per_s * VIOLATION_J_PER_TOKEN * pool.curve.full.missed_frac for pool in held)
    score = run.score
    if run.served > 0.0 and any(assignment.usable.of_arm[pool.arm].neighbours for pool in held):
        score = _score_on_shared_gpus(assignment, run, halved_tbt_frac)
        refused_w = _overrun(assignment) * VIOLATION_J_PER_TOKEN if refused_w else 0.0
    plan = Plan(
        arms_of=assignment.arms_of,
        batch_of={pool.arm: assignment.usable.of_arm[pool.arm].limit(pool.curve.full.batch) for pool in held},
        power_w=run.power_w + refused_w,
        score=score + refused_w,
        tokens_per_s_of={pool.arm: pool.tokens_per_s for pool in held},
        settings_of=assignment.settings_of(held),
        within_targets=unserved <= 0.0 and all(pool.curve.full.within_targets for pool in held),
    )
    return plan, run.woken


def _run(assignment: Assignment, held: Sequence[Held], growth: float, halved_tbt_frac: float) -> _Run:
    """The pools that hold their parts of `growth` times the rates, and what they turn away by chance."""
    served = sum(pool.tokens_per_s for pool in held)
    if served <= 0.0:
        return _Run(0.0, 0.0, 0.0)
    asked = []
    for demand in assignment.demands:
        arms = tuple([arm for arm in assignment.arms_of[demand.key] if arm not in assignment.resting])
        asked.append(Asked(demand, growth * demand.tokens_per_s, arms))
    run = mean_open_run(asked, assignment.usable.counts, assignment.curve)
    # What finds no place by chance alone is served beyond the plan, at about the price of the rest.
    power_w = run.power_w * max(1.0, served / run.tokens_per_s)
    paced = 1.0 + halved_tbt_frac * math.log2(1.0 + 1e3 * run.requests / run.tokens_per_s)
    return _Run(power_w, power_w * paced, served, run.woken)


def _score_on_shared_gpus(assignment: Assignment, run: _Run, halved_tbt_frac: float) -> float:
    """The score of what is served where servers share a GPU, at the present load and at larger ones.

    Another server cannot be woken any more when a larger load has come.
    """
    grown = [_run(assignment, assignment.alike(growth)[0], growth, halved_tbt_frac) for growth in _GROWN]
    runs = [run, *grown]
    score = run.served * sum(each.score for each in runs) / sum(each.served for each in runs)
    return score * (1.0 + _TURNS_FRAC) if assignment.takes_turns else score


def _overrun(assignment: Assignment) -> float:
    """Tokens per second outside their targets where servers share a GPU.

    What an arm cannot hold within the targets goes to no other: all of it is served there, at the batch it takes.
    """
    mixes: dict[str, list[tuple[Demand, float]]] = {}
    demand_of = {demand.key: demand for demand in assignment.demands}
    for key, arms in assignment.arms_of.items():
        mixes.setdefault(arms[0], []).append((demand_of[key], demand_of[key].tokens_per_s))
    overrun = 0.0
    for arm, mix in mixes.items():
        count = assignment.usable.counts[arm]
        overrun += count * assignment.load(arm, mix).overrun(sum(rate for _, rate in mix) / count)
    return overrun
