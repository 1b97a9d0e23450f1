"""Two policies on the same requests, seed by seed: differences with intervals, and whether one is no worse.

Both run with the same text types and the same accept lengths for each seed, so each seed gives a pair, and what seeds
have in common cancels. Seeds vary text types (where the trace does not say them) and accept lengths, not the arrivals:
an interval tells nothing about another day's traffic.

"No worse" is a rule on means over the seeds: every request that A completes, B completes; the attainment of every text
type and of every class is at most 1 point below A's, a rejected or unfinished request being a miss; TTFT p99 is at most
10 % above A's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from pydantic import BaseModel, ConfigDict

from selector.simulator.intervals import Interval, interval95, method_words
from selector.simulator.report import PolicyResult

ATTAINMENT_MARGIN = 0.01
TTFT_MARGIN = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRun:
    """One policy under one seed. `completed` has the ids of the requests that it completed, `None` if not known."""

    result: PolicyResult
    completed: frozenset[str] | None = None


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class Difference(_Frozen):
    """One metric over the seeds in which both policies have it. Differences are B − A; intervals are 95 %."""

    metric: str
    """A key of the result; `attainment_by_text_type.code` for one of its entries."""
    lower_is_better: bool
    seeds: int
    a: float
    """Mean over the seeds."""
    b: float
    difference: float
    interval: Interval | None
    """Of `difference`; `None` with one seed."""
    relative_difference: float | None
    """Mean over the seeds of B / A − 1; `None` when some A is 0."""
    relative_interval: Interval | None
    b_better: int
    """Seeds in which B is better; the rest of `seeds` are worse or equal."""
    equal: int


class Comparison(_Frozen):
    """B against A."""

    a: str
    b: str
    tbt_target_ms: float | str | None
    seeds: int
    interval_method: str
    """How the intervals were made, in words."""
    differences: tuple[Difference, ...]
    no_worse: bool
    worse_in: tuple[str, ...]
    """Every way in which the rule is broken, in words."""
    seeds_no_worse: int
    """Seeds in which the rule holds for that seed alone."""
    verdict: str


def compare(a: Sequence[SeedRun], b: Sequence[SeedRun], *, names: tuple[str, str] | None = None) -> Comparison:
    """Compares runs of two policies, `a[i]` and `b[i]` under the same seed; at least one pair."""
    pairs = list(zip(a, b, strict=True))
    a_name, b_name = names or (a[0].result.policy, b[0].result.policy)
    differences = _differences(pairs)
    broken = _worse_in(pairs, differences)
    alone = sum(not _worse_in([pair], _differences([pair])) for pair in pairs)
    return Comparison(
        a=a_name,
        b=b_name,
        tbt_target_ms=b[0].result.tbt_target_ms,
        seeds=len(pairs),
        interval_method=method_words(len(pairs)),
        differences=tuple(differences),
        no_worse=not broken,
        worse_in=tuple(broken),
        seeds_no_worse=alone,
        verdict=_verdict(a_name, b_name, broken, differences[0] if differences else None),
    )


Pairs = Sequence[tuple[SeedRun, SeedRun]]
Read = Callable[[PolicyResult], float | None]

_METRICS: tuple[tuple[str, bool], ...] = (
    ("j_per_accepted_token", True),
    ("decode_j_per_accepted_token", True),
    ("tbt_attainment", False),
    ("tbt_p50_ms", True),
    ("tbt_p99_ms", True),
    ("ttft_p50_ms", True),
    ("ttft_p99_ms", True),
    ("mean_power_w", True),
    ("energy_j", True),
    ("requests", False),
    ("duration_s", True),
)
"""Keys of the result, and whether lower is better."""

_GROUPED = ("attainment_by_text_type", "attainment_by_class")


def _differences(pairs: Pairs) -> list[Difference]:
    found = [_difference(key, lower, pairs, attrgetter(key)) for key, lower in _METRICS]
    for field in _GROUPED:
        names = sorted({name for pair in pairs for run in pair for name in getattr(run.result, field)})
        for name in names:
            found.append(_difference(f"{field}.{name}", False, pairs, _entry(field, name)))
    return [difference for difference in found if difference is not None]


def _entry(field: str, name: str) -> Read:
    def read(result: PolicyResult) -> float | None:
        entries: dict[str, float] = getattr(result, field)
        return entries.get(name)

    return read


def _difference(metric: str, lower_is_better: bool, pairs: Pairs, read: Read) -> Difference | None:
    values = [(read(one.result), read(other.result)) for one, other in pairs]
    both = [(one, other) for one, other in values if one is not None and other is not None]
    if not both:
        return None
    steps = [other - one for one, other in both]
    ratios = [other / one - 1.0 for one, other in both] if all(one for one, _ in both) else None
    better = sum((step < 0) if lower_is_better else (step > 0) for step in steps)
    return Difference(
        metric=metric,
        lower_is_better=lower_is_better,
        seeds=len(both),
        a=_mean([one for one, _ in both]),
        b=_mean([other for _, other in both]),
        difference=_mean(steps),
        interval=interval95(steps),
        relative_difference=_mean(ratios) if ratios else None,
        relative_interval=interval95(ratios) if ratios else None,
        b_better=better,
        equal=sum(step == 0 for step in steps),
    )


def _worse_in(pairs: Pairs, differences: Sequence[Difference]) -> list[str]:
    """Every way in which B is worse by the rule, in words."""
    broken = []
    lost = sum(_lost(one, other) for one, other in pairs)
    if lost:
        broken.append(f"requests that only {pairs[0][0].result.policy} completes: {lost}")
    for difference in differences:
        field, _, name = difference.metric.partition(".")
        if field in _GROUPED and difference.difference < -ATTAINMENT_MARGIN:
            kind = "text type" if field == "attainment_by_text_type" else "class"
            broken.append(f"attainment of {kind} {name} is {-100 * difference.difference:.1f} points lower")
        elif field == "ttft_p99_ms" and difference.b > (1.0 + TTFT_MARGIN) * difference.a:
            broken.append(f"TTFT p99 is {difference.b:.0f} ms, more than 10% above {difference.a:.0f}")
    return broken


def _lost(one: SeedRun, other: SeedRun) -> int:
    """Requests that the first completes and the second does not."""
    if one.completed is not None and other.completed is not None:
        return len(one.completed - other.completed)
    return max(0, one.result.requests - other.result.requests)


def _verdict(a: str, b: str, broken: Sequence[str], energy: Difference | None) -> str:
    served = f"{b} is worse than {a}: {'; '.join(broken)}" if broken else f"{b} is no worse than {a}"
    if energy is None or energy.metric != "j_per_accepted_token" or energy.relative_difference is None:
        return f"{served}."
    change, within = energy.relative_difference, energy.relative_interval
    if change == 0.0 and (within is None or within.low == within.high):
        return f"{served}; both use the same energy per accepted token."
    if within is None:
        return f"{served}; it uses {abs(change):.1%} {_more_or_less(change)} energy per accepted token (one seed)."
    bounds = f"95% interval {within.low:+.1%} to {within.high:+.1%}"
    if within.low <= 0.0 <= within.high:
        told = f"{energy.seeds} seeds do not tell their energy per accepted token apart"
        return f"{served}; {told} ({change:+.1%}, {bounds})."
    wins = energy.b_better if change < 0 else energy.seeds - energy.b_better - energy.equal
    return (
        f"{served}; it uses {abs(change):.1%} {_more_or_less(change)} energy per accepted token "
        f"({bounds}; {_more_or_less(change)} in {wins} of {energy.seeds} seeds)."
    )


def _more_or_less(change: float) -> str:
    return "less" if change < 0 else "more"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
