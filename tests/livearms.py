"""An arm with a live setting for tests: a block drafter whose verify budget can be a quarter or the whole.

A quarter costs less and gets less accepted: it wins at a large batch, the whole one when the backend is nearly empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from selector.core.types import TEXT_TYPES
from selector.files.fleet import LoadedFleet, parse_fleet
from selector.files.profile import Profile, parse_profile
from tests.profiles import MADE_UP, made_up_document

KNOB = "dspark_force_budget_frac"
WHOLE: Mapping[str, float] = {KNOB: 1.0}
QUARTER: Mapping[str, float] = {KNOB: 0.25}
ARM, ARM_AT_QUARTER = "dspark-8-compact", "dspark-8-compact@0.25"
DSPARK_INFO: Mapping[str, Any] = {"speculative_algorithm": "DSPARK", "speculative_num_draft_tokens": 8}
"""What a server of the arm says of itself."""


def _cells(ms: float, ms_per_request: float, watts: float) -> list[dict[str, Any]]:
    return [
        {
            "batch": batch,
            "context_tokens": 700,
            "step_ms": ms + ms_per_request * batch,
            "step_j": 1e-3 * watts * (ms + ms_per_request * batch),
            "provenance": MADE_UP,
        }
        for batch in (1, 8, 64)
    ]


def document() -> dict[str, Any]:
    """The profile as JSON data: `none` and the arm."""
    arms = {
        "none": {"algorithm": "none", "verify_tokens": 1, "cells": _cells(6.0, 0.02, 400.0)},
        ARM: {
            "algorithm": "DSPARK",
            "verify_tokens": 8,
            "cells": _cells(7.0, 0.4, 400.0),
            "acceptance": {name: {"mean": 3.0, "provenance": MADE_UP} for name in TEXT_TYPES},
            "live_setting": {
                "name": KNOB,
                "launched": 1.0,
                "others": [
                    {
                        "value": 0.25,
                        "cells": _cells(6.5, 0.08, 330.0),
                        "acceptance": {name: {"mean": 2.0, "provenance": MADE_UP} for name in TEXT_TYPES},
                    }
                ],
            },
        },
    }
    return made_up_document(arms)


def profile(data: Mapping[str, Any] | None = None) -> Profile:
    """The profile, or another document as one."""
    return parse_profile(orjson.dumps(data or document()).decode(), "made-up profile")


def fleet(*arms: str, urls: tuple[str, ...] = (), tables: str = "") -> LoadedFleet:
    """Backends b0, b1 … of these arms, on a GPU each; one of the arm without any."""
    backends = "".join(
        f"""
        [[backends]]
        name = "b{index}"
        arm = "{arm}"
        gpus = ["gpu{index}"]
        profile = "made-up"
        max_context_tokens = 4096
        {f'url = "{urls[index]}"' if urls else ""}
        """
        for index, arm in enumerate(arms or (ARM,))
    )
    text = f'version = 1\ntarget = "Made-Up-8B"\n{backends}\n{tables}'
    return LoadedFleet(parse_fleet(text, "fleet.toml"), "fleet.toml", {"made-up": profile()})
