"""The profile that tests of behaviour rest on, so that shipping a newer one breaks none of them.

Real step costs of six arms, each batch at one or two contexts, without measured prefill: enough to interpolate in, and
with edges to fall off. Tests of what is shipped read `profiles/` and hold none of its numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selector.files.profile import Profile, load_profile

PROFILE = str(Path(__file__).parent / "data" / "qwen3-8b_sparse.json")
"""As a fleet file or `--profile` names it."""

MADE_UP = "made-up"
"""The provenance that a made-up document has."""


def sparse_profile() -> Profile:
    """The profile."""
    return load_profile(PROFILE)


def sparse_document() -> dict[str, Any]:
    """The file as it was read, for tests that change it."""
    document: dict[str, Any] = json.loads(Path(PROFILE).read_text("utf-8"))
    return document


def made_up_document(arms: Mapping[str, Any], *, target: str = "Made-Up-8B", **changes: Any) -> dict[str, Any]:
    """A profile as JSON data, of these arms, with round numbers for all else; `changes` replace fields of the file.

    Every number in it, and those of the arms, have the provenance `MADE_UP`.
    """
    return {
        "format": "drafter-selector/profile",
        "version": 1,
        "target": {
            "name": target,
            "parameters": 8e9,
            "non_embedding_parameters": 7e9,
            "kv_bytes_per_token": 1e5,
            "provenance": MADE_UP,
        },
        "gpu": {"name": "made up", "power_limit_w": 700, "provenance": MADE_UP},
        "idle": {"bare_w": 80, "served_w": 90, "provenance": MADE_UP},
        "prefill": [
            {"prompt_tokens": 1000, "ms": 20, "j": 10, "provenance": MADE_UP},
            {"prompt_tokens": 8000, "ms": 160, "j": 80, "provenance": MADE_UP},
        ],
        "arms": dict(arms),
        "provenance": {MADE_UP: {"kind": "assumed", "source": "made up for tests"}},
        **changes,
    }
