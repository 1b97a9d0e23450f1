"""What a profile takes from elsewhere: arms of a sweep with launch flags of its own, and the cost of a longer context.

A sweep of other launch flags measures its arms alone. They join the target's profile, where every field that such a
sweep leaves open (limits, prefill, accept lengths as launched) is that of the arm that they are a mode of. None of the
numbers that were there changes, and the provenance of what joins says how `none` came out beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selector.files.profile import NO_DRAFTER, Profile, Provenance, Slope
from selector.profiler.settingacceptance import with_setting_acceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Which profile the arms of a sweep join, and of which arm there each is a mode."""

    profile: str
    modes: Mapping[str, str]


JOINS = {"h200__qwen3-8b-compact": Join(profile="h200__qwen3-8b", modes={"dspark-8-compact": "dspark-8"})}
"""By the name of the raw cells."""


def with_joined_arms(profile: Profile, sweep: Profile, modes: Mapping[str, str]) -> Profile:
    """`profile` with the arms `modes` of `sweep` (arm there: arm here that it is a mode of)."""
    arms, provenance = dict(profile.arms), dict(profile.provenance)
    launched_with = _flags_beyond(sweep.common_flags, profile.common_flags)
    for name, mode_of in modes.items():
        measured, known = sweep.arm(name), profile.arm(mode_of)
        flags = (*measured.launch.flags, *launched_with)
        launch = measured.launch.model_copy(update={"flags": flags, "draft_model": known.launch.draft_model})
        kept = {"launch": launch, "cells": measured.cells, "live_setting": measured.live_setting}
        arms[name] = known.model_copy(update=kept)
        key = measured.cells[0].provenance
        source = sweep.provenance[key]
        note = f"{source.note}; {_baseline(profile, sweep)}; what is not step cost is that of {mode_of}"
        provenance[key] = source.model_copy(update={"note": note})
    return with_setting_acceptance(profile.model_copy(update={"arms": arms, "provenance": provenance}))


def _baseline(profile: Profile, sweep: Profile) -> str:
    """How the steps of `none` beside the sweep's arms compare with the profile's, in words."""
    known = profile.cost(NO_DRAFTER).step
    ratios = []
    for cell in sweep.arm(NO_DRAFTER).cells:
        ms, j = known.step(cell.batch, cell.context_tokens)
        ratios.append((cell.batch, cell.step_ms / ms - 1, cell.step_j / j - 1))
    told = ", ".join(f"{ms:+.1%} ms and {j:+.1%} J at batch {batch}" for batch, ms, j in ratios)
    return f"steps of {NO_DRAFTER} on that board against those of the profile: {told}"


def _flags_beyond(flags: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Flags, with their values, that are not among the known ones with the same values."""
    there = _grouped(known)
    return tuple(word for group in _grouped(flags) if group not in there for word in group)


def _grouped(words: Sequence[str]) -> list[tuple[str, ...]]:
    groups: list[tuple[str, ...]] = []
    for word in words:
        if word.startswith("--"):
            groups.append((word,))
        else:
            groups[-1] = (*groups[-1], word)
    return groups


def with_kv_slope(profile: Profile, known: Profile) -> Profile:
    """The profile with a derived cost of one more context token for arms that lack it, by that of `known`, a profile of
    another target on the same kind of GPU.

    Keys and values are read once per step, so the cost goes with their bytes. Targets whose layers keep a window only
    are left as they are.
    """
    slope, target = known.arm(NO_DRAFTER).context_slope, profile.target
    lacking = {name: arm for name, arm in profile.arms.items() if arm.context_slope is None}
    if not lacking or slope is None or target.sliding_window is not None or profile.gpu.name != known.gpu.name:
        return profile
    ratio = target.kv_bytes_per_token / known.target.kv_bytes_per_token
    key = "kv-read"
    source = known.provenance[slope.provenance]
    words = f"{ratio:.4g} times that of {known.target.name}, as the KV bytes per token; there: {source.source}"
    derived = Slope(
        ms_per_token=round(slope.ms_per_token * ratio, 9),
        j_per_token=round(slope.j_per_token * ratio, 9),
        provenance=key,
    )
    given = {name: arm.model_copy(update={"context_slope": derived}) for name, arm in lacking.items()}
    provenance = {**profile.provenance, key: Provenance(kind="derived", source=words, gpu=source.gpu, note=source.note)}
    return profile.model_copy(update={"arms": {**profile.arms, **given}, "provenance": provenance})
