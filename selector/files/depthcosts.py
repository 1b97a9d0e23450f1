"""Step costs and survivals by draft depth, from a profile's arms: what schedules and choices of depth are made from.

Depth k is the arm of the algorithm that drafts k tokens a step with topk 1 (`eagle3-k3`). A depth that no arm has is
left out, or, when asked for, interpolated linearly between the drafting arms around it; nothing goes beyond the deepest
one, nor between not drafting and drafting.

At depth 0 the draft reads every token along, so that it can draft again (`EAGLEWorkerV2.forward_batch_generation`). So
it costs what `none` does and a pass of the draft: what depth 1 takes more for one request, where one token more to
verify costs nothing. That makes 8.9 ms and 5.9 J a step of 64 requests of Qwen3-8B on an H200, where a server took 8.7
to 9.7 ms and 5.3 to 6.3 J while nothing disturbed it (bench/live/README.md). With
`SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND` the draft rests: depth 0 then costs what `none` does, as it is taken to where
no arm drafts one token.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selector.core.cost import StepCost
from selector.core.depthsurvival import continued_survivals, geometric_survivals, survivals_with_mean
from selector.core.depthtable import DepthTable, Line
from selector.core.survival import survival_rate_of
from selector.errors import DomainError, ProfileError, UsageError
from selector.files.profile import NO_DRAFTER, Arm, Profile

ADAPTIVE_ALGORITHMS = ("EAGLE3", "EAGLE")
"""Of which SGLang can change the depth while it runs; it serves NEXTN as EAGLE."""
ADAPTIVE_FLAG = "--speculative-adaptive"
ADAPTIVE_CONFIG_FLAG = "--speculative-adaptive-config"
STEPS_FLAG = "--speculative-num-steps"
"""The depth that a server starts at."""
REST_VARIABLE = "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND"
"""In a server's environment: at depth 0 the draft does not read along."""
INTERPOLATED = "interpolated"

_AT_CONTEXT_TOKENS = 1_024.0
"""At which a pass of the draft is priced: it hardly grows with the context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthCosts:
    """The table, and where each of its depths is from."""

    table: DepthTable
    arms: dict[int, str]
    """Depth → arm, or `interpolated` between the arms around it."""
    algorithm: str
    notes: tuple[str, ...]
    """What a reader has to know of them, in words."""

    @property
    def deepest_arm(self) -> str:
        """The arm that drafts most."""
        return self.arms[max(self.arms)]


def depth_costs(
    profile: Profile, where: str, *, algorithm: str | None = None, interpolate: bool = False, draft_rests: bool = False
) -> DepthCosts:
    """The costs by depth of one algorithm; `where` names the profile in errors, `draft_rests` tells of depth 0.

    Raises `ProfileError` when no arm of the algorithm has a depth, `UsageError` when it must be chosen.
    """
    found = _arms_by_depth(profile, where, algorithm)
    algorithm = profile.arms[found[max(found)]].algorithm
    names = {0: NO_DRAFTER, **found}
    steps = {depth: profile.cost(name).step for depth, name in names.items()}
    steps = with_draft_along(steps, draft_rests=draft_rests)
    batches = _batches(steps)
    largest = batches[-2]
    rows = _rows(steps)
    if interpolate:
        for depth in range(min(found), max(found)):
            if depth not in steps:
                names[depth] = INTERPOLATED
                rows[depth] = _interpolated(steps, depth, batches)
    return DepthCosts(
        table=DepthTable(rows),
        arms=dict(sorted(names.items())),
        algorithm=algorithm,
        notes=tuple(_notes(names, steps, largest, draft_rests=draft_rests)),
    )


def with_draft_along(steps: Mapping[int, StepCost], *, draft_rests: bool) -> dict[int, StepCost]:
    """Costs by depth of a server that changes its depth, from those of servers with one: depth 0 is dearer there."""
    if draft_rests or not {0, 1} <= steps.keys():
        return dict(steps)
    (ms, j), (ms_drafting, j_drafting) = (steps[depth].step(1, _AT_CONTEXT_TOKENS) for depth in (0, 1))
    return {**steps, 0: steps[0].plus(max(0.0, ms_drafting - ms), max(0.0, j_drafting - j))}


def lets_draft_rest(env: Mapping[str, str]) -> bool:
    """Whether a server that is started with these variables lets its draft rest at depth 0."""
    return env.get(REST_VARIABLE, "").strip().lower() in ("1", "true", "yes", "y", "on")


def depth_table(steps: Mapping[int, StepCost]) -> DepthTable:
    """The costs of those depths as a table. Raises `DomainError` for none."""
    return DepthTable(_rows(steps))


def _batches(steps: Mapping[int, StepCost]) -> range:
    # The last row spans, with the one before it, the line of extrapolation.
    return range(1, max(step.max_batch for step in steps.values()) + 2)


def _rows(steps: Mapping[int, StepCost]) -> dict[int, list[Sequence[Line]]]:
    batches = _batches(steps)
    return {depth: [step.lines(batch) for batch in batches] for depth, step in steps.items()}


def survivals_of_text(profile: Profile, costs: DepthCosts, text_type: str) -> tuple[tuple[float, ...], float]:
    """(survival of each position, relative spread between requests) on a text type, by the deepest arm.

    Its measured curve where the profile has one, else one survival rate. Raises `ProfileError`.
    """
    name = costs.deepest_arm
    arm = profile.arm(name)
    known = arm.acceptance.get(text_type)
    if known is None:
        there = ", ".join(sorted(arm.acceptance)) or "none at all"
        raise ProfileError(f"arm {name}", f"has no accept length on {text_type!r}", f"it has {there}")
    depth = max(costs.arms)
    if known.survival:
        curve = continued_survivals(known.survival, depth)
        try:
            curve = survivals_with_mean(curve, known.mean, depth)
        except DomainError as bad:
            raise ProfileError(f"arm {name}: acceptance.{text_type}", str(bad), "measure its survival again") from None
    else:
        curve = geometric_survivals(survival_rate_of(known.mean, arm.verify_tokens), depth)
    return curve, known.request_spread


def survivals_of_length(accept_length: float, at_depth: int, deepest: int) -> tuple[float, ...]:
    """The survivals of one rate that yield `accept_length` at a depth. Raises `UsageError` when none does."""
    try:
        rate = survival_rate_of(accept_length, at_depth + 1)
    except DomainError as bad:
        raise UsageError("--accept-length", str(bad), f"a depth of {at_depth} yields 1 to {at_depth + 1}") from None
    return geometric_survivals(rate, deepest)


def _arms_by_depth(profile: Profile, where: str, algorithm: str | None) -> dict[int, str]:
    by_algorithm: dict[str, dict[int, str]] = {}
    for name, arm in profile.arms.items():
        if _has_depth(arm):
            assert arm.draft_steps is not None
            by_algorithm.setdefault(_served_as(arm.algorithm), {}).setdefault(arm.draft_steps, name)
    if algorithm is not None:
        by_algorithm = {key: arms for key, arms in by_algorithm.items() if key == _served_as(algorithm)}
    if not by_algorithm:
        wanted = algorithm or " or ".join(ADAPTIVE_ALGORITHMS)
        raise ProfileError(
            where, f"has no arm of {wanted} with topk 1 and its draft steps", "profile some depths, such as eagle3-k1"
        )
    if len(by_algorithm) > 1:
        raise UsageError("--algorithm", "is missing", f"the profile has {' and '.join(sorted(by_algorithm))}")
    return next(iter(by_algorithm.values()))


def _served_as(algorithm: str) -> str:
    return "EAGLE" if algorithm == "NEXTN" else algorithm


def _has_depth(arm: Arm) -> bool:
    fixed = ADAPTIVE_FLAG not in arm.launch.flags and arm.draft_steps is not None
    return fixed and _served_as(arm.algorithm) in ADAPTIVE_ALGORITHMS and arm.topk in (None, 1)


def _notes(names: dict[int, str], steps: dict[int, StepCost], largest: int, *, draft_rests: bool) -> list[str]:
    zero = f"depth 0 is priced as the arm {NO_DRAFTER}"
    if 1 not in names:
        zero += ", and is dearer where the draft reads along: no arm drafts one token"
    elif not draft_rests:
        zero += f" and a pass of the draft, which reads along unless the server has {REST_VARIABLE}=1"
    notes = [zero]
    for depth, name in sorted(names.items()):
        if name == INTERPOLATED:
            notes.append(f"depth {depth} was not measured: interpolated between the measured depths around it")
        elif steps[depth].max_batch < largest:
            measured = steps[depth].max_batch
            notes.append(f"depth {depth} ({name}) was measured up to batch {measured}: extrapolated beyond")
    return notes


def _interpolated(steps: dict[int, StepCost], depth: int, batches: range) -> list[Sequence[Line]]:
    """Chains of a depth between two measured ones."""
    lower = max(known for known in steps if known < depth)
    upper = min(known for known in steps if known > depth)
    frac = (depth - lower) / (upper - lower)
    return [_between(steps[lower].lines(batch), steps[upper].lines(batch), frac) for batch in batches]


def _between(low: Sequence[Line], high: Sequence[Line], frac: float) -> Sequence[Line]:
    chain: list[Line] = []
    for context in sorted({line[0] for line in (*low, *high)}):
        one, other = _at(low, context), _at(high, context)
        ms, ms_rise, j, j_rise = (a + frac * (b - a) for a, b in zip(one, other, strict=True))
        chain.append((context, ms, ms_rise, j, j_rise))
    return chain


def _at(chain: Sequence[Line], context: float) -> tuple[float, float, float, float]:
    start, ms, ms_rise, j, j_rise = chain[bisect_right([line[0] for line in chain], context) - 1]
    return ms + ms_rise * (context - start), ms_rise, j + j_rise * (context - start), j_rise
