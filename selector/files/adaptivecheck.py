"""Whether an adaptive server's schedule is far from what its measured costs call for: for `check`, live or not.

A schedule is far when, over the text types of the profile and the batches of the engine's graphs, it costs more than
`FAR_FRAC` above the best fixed depth of each in the mean, or misses the tightest target of the fleet file where some
depth meets it. Nothing says whether requests come by themselves or clients wait for their answers: the load counts that
the schedule does better under. What a plugin chooses is not judged: its schedule only lists depths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean

from selector.core.adaptiveschedule import ScheduleGap, schedule_at, schedule_gap
from selector.core.depthsurvival import DEFAULT_OUTPUT_TOKENS, DEFAULT_QUANTILE, SlowRequests
from selector.core.scheduleaim import Aim
from selector.core.sglangadaptive import DEFAULT_SCHEDULES, Schedule
from selector.errors import InputError
from selector.files.adaptiveconfig import read_adaptive_config
from selector.files.depthcosts import (
    ADAPTIVE_CONFIG_FLAG,
    ADAPTIVE_FLAG,
    STEPS_FLAG,
    DepthCosts,
    depth_costs,
    lets_draft_rest,
    survivals_of_text,
)
from selector.files.fleet import LoadedFleet
from selector.files.launchflags import flag_value, graph_batches
from selector.files.profile import Arm, Profile
from selector.files.schedulereport import SEED

FAR_FRAC = 0.05
_CONTEXT_TOKENS = 1_024.0
_BATCHES = (1, 8, 32, 64)


def schedule_trouble(loaded: LoadedFleet, index: int, info: Mapping[str, object] | None) -> tuple[str, str] | None:
    """(problem, remedy) of backend `index`; `None` when its schedule is near, unknown, or not its own choice.

    `info` is the running server's `/server_info`; without it the arm's launch flags say what will run.
    """
    backend = loaded.fleet.backends[index]
    profile = loaded.profiles[backend.profile]
    arm = profile.arms[backend.arm]
    if not _is_adaptive(arm, info):
        return None
    path = _config_path(arm, info)
    if info is None and (trouble := _start_trouble(arm, path)) is not None:
        return trouble
    if arm.takes_tbt_target:
        return None
    try:
        costs = depth_costs(
            profile, backend.profile, algorithm=arm.algorithm, draft_rests=lets_draft_rest(arm.launch.env)
        )
        schedule, called = _schedule(path, info)
    except InputError as bad:
        return (str(bad), "correct it, or export a schedule: drafter-selector export sglang-adaptive") if path else None
    if schedule is None:
        return None
    target_ms = min(
        (each.tbt_target_ms for each in loaded.fleet.slo.classes.values() if each.tbt_target_ms is not None),
        default=None,
    )
    batches = [
        batch
        for batch in graph_batches(profile.common_flags) or _BATCHES
        if batch <= backend.max_running_requests and batch <= costs.table.max_batch
    ]
    of_loads = _gaps(profile, costs, schedule, batches, target_ms)
    if not of_loads[0]:
        return None
    gaps = min(of_loads, key=lambda gaps: (any(gap.misses for gap in gaps.values()), _mean(gaps)))
    worst = max(gaps, key=lambda key: (gaps[key].misses, gaps[key].excess_frac))
    text_type, batch = worst
    mean = _mean(gaps)
    if gaps[worst].misses:
        problem = f"misses {target_ms:g} ms for {text_type} at batch {batch}, where some depth meets it"
    elif mean > FAR_FRAC:
        problem = (
            f"costs {mean:.0%} more energy a token than the best depth, in the mean over text types and batches "
            f"{', '.join(map(str, batches))}; {gaps[worst].excess_frac:.0%} for {text_type} at {batch}; "
            f"more where {'clients wait for their answers' if gaps is of_loads[1] else 'requests come by themselves'}"
        )
    else:
        return None
    return (
        f"{called} {problem}",
        f"export one: drafter-selector export sglang-adaptive --profile {backend.profile} "
        f"--tbt-target-ms {f'{target_ms:g}' if target_ms is not None else 'X'} --text-type {text_type}",
    )


def _start_trouble(arm: Arm, path: str | None) -> tuple[str, str] | None:
    """Of a server that would capture CUDA graphs of a depth for which 0.5.17 has made its buffers too small."""
    started = flag_value(arm.launch.flags, STEPS_FLAG)
    try:
        schedule, called = _schedule(path, None)
    except InputError:
        return None  # said elsewhere
    if started is None or schedule is None:
        return None
    deepest = max(depth for tier in schedule.values() for depth in tier.candidate_steps)
    if deepest <= int(started):
        return None
    return (
        f"{called} has depth {deepest} and {STEPS_FLAG} is {started}: SGLang 0.5.17 does not start so with CUDA graphs "
        "(its buffer for logits is made for the depth it starts at; 0.5.23 counts them all)",
        f"set {STEPS_FLAG} {deepest}, or give {ADAPTIVE_CONFIG_FLAG} a schedule of depths up to {started}",
    )


def _is_adaptive(arm: Arm, info: Mapping[str, object] | None) -> bool:
    return ADAPTIVE_FLAG in arm.launch.flags if info is None else info.get("speculative_adaptive") is True


def _config_path(arm: Arm, info: Mapping[str, object] | None) -> str | None:
    if info is not None:
        path = info.get("speculative_adaptive_config")
        return path if isinstance(path, str) else None
    return flag_value(arm.launch.flags, ADAPTIVE_CONFIG_FLAG)


def _schedule(path: str | None, info: Mapping[str, object] | None) -> tuple[Schedule | None, str]:
    """The schedule and what to call it; `None` for a file that is on another machine. Raises `InputError`."""
    if path is not None:
        file = Path(path)
        return (read_adaptive_config(file) if file.is_file() else None), f"its adaptive schedule {path}"
    release = str((info or {}).get("version"))
    if release not in DEFAULT_SCHEDULES:
        release = max(DEFAULT_SCHEDULES)
    return DEFAULT_SCHEDULES[release], f"the default adaptive schedule (SGLang {release})"


def _mean(gaps: Mapping[tuple[str, int], ScheduleGap]) -> float:
    return fmean(gap.excess_frac for gap in gaps.values())


def _gaps(
    profile: Profile,
    costs: DepthCosts,
    schedule: Schedule,
    batches: Sequence[int],
    target_ms: float | None,
) -> tuple[dict[tuple[str, int], ScheduleGap], dict[tuple[str, int], ScheduleGap]]:
    """How far the schedule is from the best depth by text type and batch: for waiting clients, under an open load."""
    graphs = graph_batches(profile.common_flags)
    waiting: dict[tuple[str, int], ScheduleGap] = {}
    coming: dict[tuple[str, int], ScheduleGap] = {}
    for text_type in profile.arms[costs.deepest_arm].acceptance:
        survivals, spread_frac = survivals_of_text(profile, costs, text_type)
        aim = Aim(
            table=costs.table,
            survivals=survivals,
            slow=SlowRequests.at(DEFAULT_QUANTILE, spread_frac=spread_frac, output_tokens=DEFAULT_OUTPUT_TOKENS),
            context_tokens=_CONTEXT_TOKENS,
            target_ms=target_ms,
            band_frac=0.0,
            idle_w=profile.served_idle_w,
        )
        open_aim = replace(aim, open_load=True)
        for batch in batches:
            found = schedule_at(aim, schedule, batch, graphs, Random(SEED))
            if found is not None:
                waiting[text_type, batch] = schedule_gap(aim, batch, found)
                coming[text_type, batch] = schedule_gap(open_aim, batch, found)
    return waiting, coming
