"""How a request's TBT target travels from the router to a choice of depth inside the engine."""

from __future__ import annotations

import math

TARGET_FIELD = "drafter_selector_tbt_target_ms"
"""A key of SGLang's `custom_params`: milliseconds per token, a number above 0."""


def target_in(custom_params: object) -> float | None:
    """The target in a request's `custom_params`; `None` when there is none that can be used."""
    value = custom_params.get(TARGET_FIELD) if isinstance(custom_params, dict) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 < value < math.inf:
        return None
    return float(value)
