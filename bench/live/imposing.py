"""A plan's fleets with profiles of their own: accept lengths as the plan imposes them, and arms that no profile has.

    accept      the mean accept length of an arm on a text type, whatever its depth
    survival    the chance of each draft to be accepted, by text type: every arm gets the length of its depth
    arms        arms that stand in with the costs of another, so that a server can run that was never profiled
    servers     flags that every server is launched with: what pads to the CUDA graphs they name is priced so

Router, servers and simulation all read the same files, which are written beside the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from plan import LivePlan, StandIn

from selector.core.survival import accept_length_of
from selector.files.fleet import LoadedFleet, load_fleet, load_fleet_with_profiles
from selector.files.profile import (
    NO_DRAFTER,
    Acceptance,
    Arm,
    Launch,
    Profile,
    Provenance,
    load_profile,
    write_profile,
)

_IMPOSED, _STAND_IN = "imposed", "stand-in"


def with_imposed(fleet_file: Path, plan: LivePlan, out: Path, here: Path) -> tuple[Path, LoadedFleet]:
    """The fleet with profiles whose arms and accept lengths are those of the plan, without spread between requests.

    Written to `out`; `here` is the plan's folder, which `{here}` stands for in flags and environment.
    """
    out.mkdir(parents=True, exist_ok=True)
    text = fleet_file.read_text(encoding="utf-8")
    names = sorted({backend.profile for backend in load_fleet(fleet_file).backends})
    for number, name in enumerate(names):
        written = out / f"profile-{number}.json"
        profile = with_stand_ins(load_profile_beside(name, fleet_file), plan.arms, here.resolve())
        write_profile(imposed(profile, plan), written)
        text = text.replace(f'profile = "{name}"', f'profile = "{written.resolve()}"')
    fleet = out / "fleet.toml"
    fleet.write_text(text, encoding="utf-8")
    return fleet, load_fleet_with_profiles(fleet)


def load_profile_beside(name: str, fleet_file: Path) -> Profile:
    """By name, or by a path from the fleet file's folder."""
    beside = fleet_file.parent / name
    return load_profile(str(beside) if beside.is_file() else name)


def with_stand_ins(profile: Profile, arms: Mapping[str, StandIn], here: Path) -> Profile:
    """The profile with the arms that stand in; what they cost is another arm's, and says so."""
    made = {name: _stand_in(profile, arm, here) for name, arm in arms.items()}
    note = "another arm's costs, so that router and simulation have some; nothing measured"
    provenance = {**profile.provenance, _STAND_IN: Provenance(kind="assumed", source="bench/live plan", note=note)}
    return profile.model_copy(update={"arms": {**profile.arms, **made}, "provenance": provenance})


def _stand_in(profile: Profile, arm: StandIn, here: Path) -> Arm:
    like = profile.arm(arm.like)
    steps = arm.draft_steps
    verify_tokens = like.verify_tokens if steps is None else steps + 1
    return like.model_copy(
        update={
            "verify_tokens": verify_tokens,
            "draft_steps": steps,
            "depths": arm.depths or None,
            "takes_tbt_target": arm.takes_tbt_target or None,
            "launch": Launch(
                flags=tuple(flag.replace("{here}", str(here)) for flag in arm.flags),
                env={key: value.replace("{here}", str(here)) for key, value in arm.env.items()},
                draft_model=like.launch.draft_model,
            ),
            "cells": tuple(cell.model_copy(update={"provenance": _STAND_IN}) for cell in like.cells),
        }
    )


def imposed(profile: Profile, plan: LivePlan) -> Profile:
    """The profile with the plan's accept lengths, and the flags of its servers."""
    note = "imposed on the servers, or emulated; no spread between requests"
    provenance = {**profile.provenance, _IMPOSED: Provenance(kind="assumed", source="bench/live plan", note=note)}
    arms = {}
    for name, arm in profile.arms.items():
        lengths = {text: value.mean for text, value in arm.acceptance.items()}
        lengths |= {text: accept_length_of(rate, arm.verify_tokens) for text, rate in plan.survival.items()}
        lengths |= plan.accept.get(name, {})
        acceptance = {
            text: Acceptance(mean=min(mean, arm.verify_tokens), provenance=_IMPOSED) for text, mean in lengths.items()
        }
        arms[name] = arm.model_copy(update={"acceptance": {} if name == NO_DRAFTER else acceptance})
    return profile.with_flags(plan.servers.flags).model_copy(update={"arms": arms, "provenance": provenance})


def imposed_lengths(loaded: LoadedFleet) -> dict[str, dict[str, float]]:
    """By arm and text type, of the arms that draft."""
    lengths: dict[str, dict[str, float]] = {}
    for backend in loaded.fleet.backends:
        arm = loaded.profiles[backend.profile].arms[backend.arm]
        if arm.acceptance:
            lengths[backend.arm] = {text: value.mean for text, value in arm.acceptance.items()}
    return lengths
