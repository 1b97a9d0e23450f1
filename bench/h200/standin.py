"""Stands in for SGLang's launcher on a machine without a GPU: an emulated server in its place, for trying campaigns.

    python bench/h200/standin.py -m sglang.launch_server --port 30000 [--speculative-algorithm …]

The arm is the one of the default profile that the flags ask for, by algorithm and drafted tokens; one that the profile
lacks gets the costs of the next of its algorithm, or of `none`. Nothing that is measured on it means anything.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from selector.files.profile import NO_DRAFTER, Profile, load_profile

PROFILE = "h200__qwen3-8b"
COMPACT = "dspark-8-compact"


def main() -> None:
    """Becomes `drafter-selector emulate`."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", required=True)
    parser.add_argument("--context-length", default="8192")
    parser.add_argument("--speculative-algorithm", default="none")
    parser.add_argument("--speculative-num-draft-tokens", type=int)
    parser.add_argument("--speculative-dspark-sps-table-path", type=Path)
    asked, _ = parser.parse_known_args()
    table = asked.speculative_dspark_sps_table_path
    if table is not None and not table.is_file():
        parser.error(f"no file {table} in {Path.cwd()}: a real server would not start either")
    arm = nearest(load_profile(PROFILE), asked.speculative_algorithm, asked.speculative_num_draft_tokens)
    if os.environ.get("SGLANG_RAGGED_VERIFY_MODE") == "compact":
        arm = COMPACT
    words = ["--profile", PROFILE, "--arm", arm, "--port", asked.port, "--context-length", asked.context_length]
    os.execv(sys.executable, [sys.executable, "-m", "selector", "emulate", *words])


def nearest(profile: Profile, algorithm: str, verify_tokens: int | None) -> str:
    """The arm of the algorithm whose width is nearest, `none` without one."""
    arms = {name: arm for name, arm in profile.arms.items() if arm.algorithm == algorithm}
    if not arms:
        return NO_DRAFTER
    return min(arms, key=lambda name: abs(arms[name].verify_tokens - (verify_tokens or arms[name].verify_tokens)))


if __name__ == "__main__":
    main()
