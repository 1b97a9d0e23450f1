"""The file that SGLang's `--speculative-adaptive-config` takes: JSON, one entry per batch tier.

    {"drafter_selector": {…}, "1": {"candidate_steps": [3], …}, "8": {"candidate_steps": [0, 1], …}}

A key that is no whole number is no tier: SGLang takes it for a default of every tier, and one that it does not know has
no effect, so the explanation stands there under a name of our own. Read off 0.5.17 and 0.5.23, which read it alike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from selector.core.sglangadaptive import Schedule, Tier
from selector.errors import InputError
from selector.files.validation import read_text, validated

EXPLANATION = "drafter_selector"
"""The key that the engine ignores and people read."""

_TIER_KEYS = (
    "candidate_steps",
    "ema_alpha",
    "update_interval",
    "warmup_batches",
    "up_hysteresis",
    "down_hysteresis",
    "ceiling_coeff",
)


class _TierEntry(BaseModel):
    """One tier as SGLang reads it, with its defaults. Keys that SGLang does not know it ignores, and so must we."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    candidate_steps: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]
    ema_alpha: float = 0.2
    update_interval: PositiveInt = 5
    warmup_batches: int = 10
    down_hysteresis: float = -0.25
    up_hysteresis: float = 0.0
    ceiling_coeff: float = 0.0


def adaptive_config_text(schedule: Schedule, explanation: Mapping[str, Any]) -> str:
    """The file's text: what a person should read first, then the tiers by batch."""
    tiers = {str(batch): {key: getattr(schedule[batch], key) for key in _TIER_KEYS} for batch in sorted(schedule)}
    return json.dumps({EXPLANATION: explanation, **tiers}, indent=1, ensure_ascii=False) + "\n"


def read_adaptive_config(path: Path) -> Schedule:
    """The schedule in a file, as the engine would take it. Raises `InputError`."""
    return parse_adaptive_config(read_text(path, "adaptive config", InputError), str(path))


def parse_adaptive_config(text: str, where: str) -> Schedule:
    """The schedule in JSON text; `where` names it in errors. Raises `InputError`."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as bad:
        raise InputError(where, f"is not JSON ({bad})", "restore it, or export it again") from None
    if not isinstance(data, dict) or not any(key.isdigit() for key in data):
        raise InputError(where, "has no batch tier", 'give one at least, such as {"1": {"candidate_steps": [1, 3]}}')
    defaults = {key: value for key, value in data.items() if key in _TIER_KEYS}
    schedule = {}
    for key, entry in data.items():
        if not key.isdigit():
            continue
        if not isinstance(entry, dict):
            raise InputError(f"{where}: {key}", f"is {entry!r}", "a tier is an object with candidate_steps")
        read = validated(_TierEntry, {**defaults, **entry}, f"{where}: {key}", InputError)
        values = {name: getattr(read, name) for name in _TIER_KEYS}
        schedule[int(key)] = Tier(**{**values, "candidate_steps": tuple(sorted(set(read.candidate_steps)))})
    return schedule
