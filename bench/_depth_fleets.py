"""Servers that choose their draft depth by themselves, for `depth_fleet_table.py`: exported as a user would.

Exported schedule and plugin are prepared for conversation whatever comes, the schedule for the target of the cell; the
plugin is told the target of each request. Depths 0, 1 and 3 cost what `none`, `eagle3-k1` and `eagle3-k3` do.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

from _planner_cells import MOST_CONTEXT_TOKENS, PROFILE, profile

from selector.cli import main as drafter_selector
from selector.files.arm import Arm, Launch
from selector.files.depthcosts import ADAPTIVE_CONFIG_FLAG, ADAPTIVE_FLAG
from selector.files.depthfile import VARIABLE
from selector.files.fleet import Backend, Fleet, LoadedFleet

FIXED = ("none", "eagle3-k1", "eagle3-k3")
"""The arms of depths 0, 1 and 3."""
PLUGIN, SCHEDULE, OWN_SCHEDULE = "eagle3-plugin", "eagle3-exported", "eagle3-adaptive"
IN_ENGINE = (PLUGIN, SCHEDULE, OWN_SCHEDULE)
GRAPH_BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64)
EXPORT = ("--profile", PROFILE, "--text-type", "conversation", "--output-tokens", "800")
_NO_TARGET_MS = 1_000.0
"""For the schedule, whose export asks for a target: one that every depth meets."""


def exported(folder: Path, target_ms: float | None) -> dict[str, Arm]:
    """The arms whose engines choose, launched with files that are written to `folder`."""
    schedule, depths = folder / "adaptive.json", folder / "depths.json"
    aim = ("--tbt-target-ms", f"{target_ms or _NO_TARGET_MS:g}", "--context-tokens", "2400", "--accept-band", "0.4")
    batches = ",".join(map(str, GRAPH_BATCHES))
    with redirect_stderr(StringIO()):
        drafter_selector(
            [
                "export",
                "sglang-adaptive",
                *EXPORT,
                *aim,
                "--load",
                "closed",
                "--batches",
                batches,
                "--out",
                str(schedule),
            ]
        )
        drafter_selector(["export", "depths", *EXPORT, "--load", "closed", "--out", str(depths)])
    return {
        PLUGIN: _arm(env={VARIABLE: str(depths)}, takes_tbt_target=True),
        SCHEDULE: _arm(ADAPTIVE_CONFIG_FLAG, str(schedule)),
        OWN_SCHEDULE: _arm(),
    }


def _arm(*flags: str, env: dict[str, str] | None = None, takes_tbt_target: bool | None = None) -> Arm:
    graphs = ("--cuda-graph-bs-decode", *map(str, GRAPH_BATCHES))
    launch = Launch(flags=("--speculative-num-steps", "3", ADAPTIVE_FLAG, *graphs, *flags), env=env or {})
    return (
        profile()
        .arm(FIXED[-1])
        .model_copy(update={"depths": FIXED, "launch": launch, "takes_tbt_target": takes_tbt_target})
    )


def fleet_of(arms: Sequence[str], gpus: Sequence[str], in_engine: dict[str, Arm]) -> LoadedFleet:
    """Backends of those arms on those GPUs."""
    known = profile().model_copy(update={"arms": {**profile().arms, **in_engine}})
    backends = tuple(
        Backend(name=f"b{n}-{arm}", arm=arm, gpus=(gpu,), profile=PROFILE, max_context_tokens=MOST_CONTEXT_TOKENS)
        for n, (arm, gpu) in enumerate(zip(arms, gpus, strict=True))
    )
    return LoadedFleet(Fleet(version=1, target=known.target.name, backends=backends), "bench", {PROFILE: known})
