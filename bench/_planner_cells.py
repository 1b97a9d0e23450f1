"""Fleets, text mixes and loads of `planner_table.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from selector.core.types import TEXT_TYPES
from selector.files.fleet import Backend, Fleet, LoadedFleet
from selector.files.profile import Profile, load_profile

PROFILE = "h200__qwen3-8b"
ARMS = ("none", "eagle3-k1", "eagle3-k3", "dspark-8", "dflash-16", "ngram-8")
FLEETS = {
    4: ("none", "eagle3-k1", "dspark-8", "dflash-16"),
    8: ("none", "eagle3-k1", "dspark-8", "dflash-16", "eagle3-k3", "ngram-8", "dspark-8", "eagle3-k1"),
}
"""The given mixed fleets: every kind of drafter, and at 8 GPUs every arm of the profile."""
MIXES: Mapping[str, Mapping[str, float]] = {
    "code": {"code": 1.0},
    "conversation": {"conversation": 1.0},
    "romansh": {"romansh": 1.0},
    "code+romansh": {"code": 0.5, "romansh": 0.5},
    "ten types": {text_type: 0.1 for text_type in TEXT_TYPES},
}
TARGETS_MS = (None, 25.0, 10.0, 5.0)
REPEATS = {1: 8, 4: 4, 16: 6, 64: 2, 256: 2}
"""Runs of a steady cell by its clients (_planner_repeats.py)."""
CLIENTS = tuple(REPEATS)
TRACES = {
    "azure 2023 conversation": ("azure_2023_conv.csv", "conversation"),
    "azure 2023 code": ("azure_2023_code.csv", "code"),
    "mooncake conversation": ("mooncake_conversation.jsonl", "conversation"),
}
OUTPUT_TOKENS = (400, 1_200)
"""Of closed loops, uniform."""
MOST_CONTEXT_TOKENS = 32_768


def prompt_tokens(clients: int) -> tuple[int, int]:
    """Range of the prompts of closed loops, uniform: such that contexts lie where the profile was measured.

    Of batches it was measured around a mean context of 2,300 tokens, of single requests on block drafters from 2,280
    tokens on.
    """
    return (2_280, 2_400) if clients < 16 else (1_600, 2_200)


@cache
def profile() -> Profile:
    """The profile, read once a process."""
    return load_profile(PROFILE)


def fleet_of(arms: Sequence[str], gpus: Sequence[str] | None = None) -> LoadedFleet:
    """Backends of those arms, each on a GPU of its own unless `gpus` says otherwise."""
    backends = tuple(
        Backend(
            name=f"b{index}-{arm}",
            arm=arm,
            gpus=(gpus[index] if gpus else f"gpu{index}",),
            profile=PROFILE,
            max_context_tokens=MOST_CONTEXT_TOKENS,
        )
        for index, arm in enumerate(arms)
    )
    return LoadedFleet(Fleet(version=1, target=profile().target.name, backends=backends), "bench", {PROFILE: profile()})
