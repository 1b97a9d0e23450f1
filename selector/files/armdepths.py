"""Arms whose engine chooses its draft depth: what their depths must be, and what such an arm may leave out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selector.files.arm import Arm

_OF_DEEPEST = frozenset({"cells", "acceptance", "context_slope", "prefill", "prefill_pass", "max_context_tokens"})


def with_those_of_the_deepest(arms: Mapping[str, Any]) -> dict[str, Any]:
    """The arms of a profile's JSON; what an arm with depths leaves out is what the arm of its deepest has.

    Raises `ValueError` where there is no such arm.
    """
    filled = {}
    for name, arm in arms.items():
        depths = arm.get("depths") if isinstance(arm, dict) else None
        last = depths[-1] if isinstance(depths, list) and depths else None
        if isinstance(last, str):
            deepest = arms.get(last)
            if not isinstance(deepest, dict) or deepest.get("depths"):
                raise ValueError(f"arms.{name}.depths {_not_fixed(last)}")
            filled[name] = {**{key: deepest[key] for key in sorted(_OF_DEEPEST & deepest.keys())}, **arm}
        else:
            filled[name] = arm
    return filled


def depths_problem(name: str, arms: Mapping[str, Arm]) -> str | None:
    """What is wrong with the depths of an arm; `None` where nothing is or it has none."""
    arm = arms[name]
    if not arm.depths:
        return None
    unknown = [each for each in arm.depths if each not in arms or arms[each].depths]
    if unknown:
        return _not_fixed(unknown[0])
    widths = [arms[each].verify_tokens for each in arm.depths]
    if widths != sorted(set(widths)) or len(widths) < 2 or widths[-1] != arm.verify_tokens:
        own = arm.verify_tokens
        return f"verify {widths} tokens; they must be two at least, rise, and end with the arm's own {own}"
    drafting = [arms[each] for each in arm.depths if arms[each].verify_tokens > 1]
    if any(each.algorithm != arm.algorithm or each.topk not in (None, 1) for each in drafting):
        return f"has arms of another algorithm than {arm.algorithm}, or of more than topk 1"
    return None


def _not_fixed(name: str) -> str:
    return f"names {name!r}, which is no arm of a fixed depth here"
