"""The profile that tests of behaviour rest on, so that shipping a newer one breaks none of them.

Real step costs of six arms, each batch at one or two contexts, without measured prefill: enough to interpolate in, and
with edges to fall off. Tests of what is shipped read `profiles/` and hold none of its numbers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from selector.files.profile import Profile, load_profile

PROFILE = str(Path(__file__).parent / "data" / "qwen3-8b_sparse.json")
"""As a fleet file or `--profile` names it."""


def sparse_profile() -> Profile:
    """The profile."""
    return load_profile(PROFILE)


def sparse_document() -> dict[str, Any]:
    """The file as it was read, for tests that change it."""
    document: dict[str, Any] = json.loads(Path(PROFILE).read_text("utf-8"))
    return document
