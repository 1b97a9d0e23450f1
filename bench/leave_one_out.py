"""How well a profile's step costs predict a measured cell that they were not given.

    python bench/leave_one_out.py [PROFILE]            name or path; h200__qwen3-8b unless told

Every cell whose batch lies strictly between its arm's smallest and largest is left out in turn and predicted from the
others. Prints JSON: the error of each, and worst and median of their absolute values.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from statistics import median

from selector.files.profile import Arm, Profile, load_profile
from selector.profiler.checks import LeaveOneOut, leave_one_out


def main() -> None:
    """Prints the errors of one profile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", nargs="?", default="h200__qwen3-8b")
    name = parser.parse_args().profile
    print(json.dumps(report(name, load_profile(name)), indent=1))


def report(name: str, profile: Profile) -> dict[str, object]:
    """The document that is printed."""
    errors = [(arm_name, error) for arm_name, arm in profile.arms.items() for error in inner_errors(arm)]
    return {
        "profile": name,
        "left_out_cells": len(errors),
        "step_ms": _summary([abs(error.ms_error_frac) for _, error in errors]),
        "step_j": _summary([abs(error.j_error_frac) for _, error in errors]),
        "cells": [
            {
                "arm": arm_name,
                "batch": error.batch,
                "context_tokens": error.context_tokens,
                "step_ms_error_frac": round(error.ms_error_frac, 5),
                "step_j_error_frac": round(error.j_error_frac, 5),
            }
            for arm_name, error in errors
        ],
    }


def _summary(errors: list[float]) -> dict[str, float] | None:
    if not errors:
        return None
    return {"worst_error_frac": round(max(errors), 5), "median_error_frac": round(median(errors), 5)}


def inner_errors(arm: Arm) -> Iterator[LeaveOneOut]:
    """Errors at the arm's inner cells."""
    batches = [cell.batch for cell in arm.cells]
    for error in leave_one_out(*arm.points()):
        if min(batches) < error.batch < max(batches):
            yield error


if __name__ == "__main__":
    main()
