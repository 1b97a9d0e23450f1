"""How a request's TBT target and text type travel from the router to a choice of depth inside the engine.

They are keys of SGLang's `custom_params`.
"""

from __future__ import annotations

import math

from selector.core.depthbatch import UNTOLD_TEXT
from selector.core.types import TEXT_TYPES

TARGET_FIELD = "drafter_selector_tbt_target_ms"
"""Milliseconds per token, a number above 0."""
TEXT_FIELD = "drafter_selector_text_type"
"""One of `TEXT_TYPES`."""


def target_in(custom_params: object) -> float | None:
    """The target in a request's `custom_params`; `None` when there is none that can be used."""
    value = custom_params.get(TARGET_FIELD) if isinstance(custom_params, dict) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 < value < math.inf:
        return None
    return float(value)


def text_type_in(custom_params: object) -> str:
    """The text type in a request's `custom_params`; empty when there is none that is known."""
    value = custom_params.get(TEXT_FIELD) if isinstance(custom_params, dict) else None
    return value if isinstance(value, str) and value in TEXT_TYPES else UNTOLD_TEXT
