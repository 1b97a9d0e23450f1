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

from selector.core.cost import ContextSlope, StepCost, StepPoint
from selector.files.profile import Arm, Profile, StepCell, load_profile


def main() -> None:
    """Prints the errors of one profile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", nargs="?", default="h200__qwen3-8b")
    name = parser.parse_args().profile
    print(json.dumps(report(name, load_profile(name)), indent=1))


def report(name: str, profile: Profile) -> dict[str, object]:
    """The document that is printed."""
    errors = [
        (arm_name, cell, step_ms / cell.step_ms - 1.0, step_j / cell.step_j - 1.0)
        for arm_name, arm in profile.arms.items()
        for cell, step_ms, step_j in left_out(arm)
    ]
    return {
        "profile": name,
        "left_out_cells": len(errors),
        "step_ms": _summary([abs(ms) for _, _, ms, _ in errors]),
        "step_j": _summary([abs(j) for _, _, _, j in errors]),
        "cells": [
            {
                "arm": arm_name,
                "batch": cell.batch,
                "context_tokens": cell.context_tokens,
                "step_ms_error_frac": round(ms, 5),
                "step_j_error_frac": round(j, 5),
            }
            for arm_name, cell, ms, j in errors
        ],
    }


def _summary(errors: list[float]) -> dict[str, float] | None:
    if not errors:
        return None
    return {"worst_error_frac": round(max(errors), 5), "median_error_frac": round(median(errors), 5)}


def left_out(arm: Arm) -> Iterator[tuple[StepCell, float, float]]:
    """Each inner cell of an arm with the (step_ms, step_j) that the other cells predict."""
    batches = [cell.batch for cell in arm.cells]
    slope = arm.context_slope
    for number, cell in enumerate(arm.cells):
        if not min(batches) < cell.batch < max(batches):
            continue
        others = [
            StepPoint(batch=c.batch, context_tokens=c.context_tokens, step_ms=c.step_ms, step_j=c.step_j)
            for n, c in enumerate(arm.cells)
            if n != number
        ]
        derived = ContextSlope(ms_per_token=slope.ms_per_token, j_per_token=slope.j_per_token) if slope else None
        step_ms, step_j = StepCost(others, derived).step(cell.batch, cell.context_tokens)
        yield cell, step_ms, step_j


if __name__ == "__main__":
    main()
