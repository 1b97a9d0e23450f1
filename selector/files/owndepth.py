"""How the engine of an arm with depths chooses among them, as its launch says.

    DRAFTER_SELECTOR_DEPTHS in the environment       the plugin, by that file (`files.depthfile`)
    --speculative-adaptive-config FILE               SGLang's rule on that schedule (`files.adaptiveconfig`)
    neither                                          SGLang's rule on its default schedule

The engine begins at the depth of `--speculative-num-steps`, or the deepest one. A file may lie on the engine's machine
alone: that does for predictions, and an engine can then not be simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from selector.core.cost import StepCost
from selector.core.depthengines import (
    DepthEngine,
    OwnDepth,
    PluginDepths,
    ScheduledDepths,
    priced_schedule,
    tiers_by_batch,
)
from selector.core.policy import BackendSpec
from selector.core.sglangadaptive import DEFAULT_SCHEDULES
from selector.errors import DomainError, ProfileError
from selector.files.adaptiveconfig import read_adaptive_config
from selector.files.arm import Arm
from selector.files.depthcosts import (
    ADAPTIVE_CONFIG_FLAG,
    STEPS_FLAG,
    depth_table,
    lets_draft_rest,
    with_draft_along,
)
from selector.files.depthfile import VARIABLE, DepthFile, load_depth_file
from selector.files.launchflags import flag_value, graph_batches
from selector.files.profile import Profile


def with_own_depth(spec: BackendSpec, profile: Profile, flags: Sequence[str] = ()) -> BackendSpec:
    """The backend of an arm that has depths, told of them; `flags` are those of its server beyond the profile's.

    Raises `InputError` as `own_depth` does.
    """
    arm = profile.arm(spec.arm)
    steps = _steps(profile, arm, flags)
    depths = tuple(
        replace(spec, arm=name, cost=replace(spec.cost, arm=name, verify_tokens=depth + 1, step=steps[depth]))
        for depth, name in _by_depth(profile, arm).items()
    )
    return replace(spec, depths=depths, own_depth=own_depth(profile, spec.arm, spec.max_running_requests, flags))


def own_depth(profile: Profile, name: str, most_requests: int, flags: Sequence[str] = ()) -> OwnDepth:
    """How the arm of that name, which has depths, chooses; its server has at most so many requests in a batch.

    Raises `InputError` for a file that is there and cannot be read, and where it leaves nothing to choose.
    """
    arm = profile.arm(name)
    where = f"profile {profile.gpu.name} {profile.target.name}: arms.{name}"
    depths = tuple(_by_depth(profile, arm))
    path = arm.launch.env.get(VARIABLE) or flag_value(arm.launch.flags, ADAPTIVE_CONFIG_FLAG)
    if path is not None and not Path(path).is_file():
        return OwnDepth(
            start=partial(_not_here, where, path), tiers=((1, depths),), takes_tbt_target=bool(arm.takes_tbt_target)
        )
    try:
        if VARIABLE in arm.launch.env:
            return _by_plugin(arm, load_depth_file(Path(arm.launch.env[VARIABLE])), depths)
        return _by_schedule(profile, arm, path, most_requests, profile.launched_with(name, flags))
    except DomainError as bad:
        raise ProfileError(where, str(bad), "name the arms of its depths, and export the file for them") from None


def _by_plugin(arm: Arm, file: DepthFile, depths: tuple[int, ...]) -> OwnDepth:
    start = partial(_plugin, file, _start_depth(arm, depths), depths)
    start()  # a file that leaves nothing to choose shows now
    priced = {each.depth for each in file.depths}
    return OwnDepth(
        start=start,
        tiers=((1, tuple(depth for depth in depths if depth in priced)),),
        takes_tbt_target=bool(arm.takes_tbt_target),
        default_target_ms=file.tbt_target_ms,
    )


def _by_schedule(profile: Profile, arm: Arm, path: str | None, most_requests: int, flags: Sequence[str]) -> OwnDepth:
    schedule = DEFAULT_SCHEDULES[max(DEFAULT_SCHEDULES)] if path is None else read_adaptive_config(Path(path))
    steps = _steps(profile, arm, flags)
    table, graphs = depth_table(steps), graph_batches(flags)
    return OwnDepth(
        start=partial(ScheduledDepths, schedule, table, graphs, start_depth=_start_depth(arm, tuple(steps))),
        tiers=tiers_by_batch(priced_schedule(schedule, table), graphs, most_requests),
    )


def _steps(profile: Profile, arm: Arm, flags: Sequence[str]) -> dict[int, StepCost]:
    """Costs of a step at each depth of an arm that chooses among some, on its server: its graphs hold every depth."""
    served_with = (*flags, *arm.launch.flags)
    steps = {depth: profile.cost(name, served_with).step for depth, name in _by_depth(profile, arm).items()}
    return with_draft_along(steps, draft_rests=lets_draft_rest(arm.launch.env))


def _by_depth(profile: Profile, arm: Arm) -> dict[int, str]:
    """The arms of the depths that an arm chooses among, shallowest first."""
    return {profile.arm(name).verify_tokens - 1: name for name in arm.depths or ()}


def _start_depth(arm: Arm, depths: tuple[int, ...]) -> int:
    given = flag_value(arm.launch.flags, STEPS_FLAG)
    return depths[-1] if given is None else int(given)


def _plugin(file: DepthFile, start_depth: int, candidates: tuple[int, ...]) -> PluginDepths:
    return PluginDepths(file.choice(start_depth=start_depth, candidates=candidates))


def _not_here(where: str, path: str) -> DepthEngine:
    raise ProfileError(where, f"is launched with {path}, which is not here", "bring the file, or export it again")
