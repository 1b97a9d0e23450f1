"""How a request's TBT target is told to an engine that chooses its draft depth by it: in SGLang's `custom_params`.

SGLang carries `custom_params` from these routes to its scheduler and gives it to custom logit processors alone, so a
key of our own among a client's does no harm. `/v1/responses` and `/v1/messages` have no such field: the engine uses its
default target there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selector.core.targetfield import TARGET_FIELD
from selector.router.routes import Dialect, Route


def fields_with_target(route: Route, fields: Mapping[str, Any], target_ms: float) -> dict[str, Any]:
    """The fields of the body that change; none where the route, or the type of what is there, does not allow it."""
    match route.dialect:
        case Dialect.OPENAI:
            params = _with_target(fields.get("custom_params"), target_ms)
            return {} if params is None else {"custom_params": params}
        case Dialect.GENERATE:
            options = fields.get("sampling_params")
            if isinstance(options, list):
                told = [_options_with_target(each, target_ms) for each in options]
                return {} if None in told else {"sampling_params": told}
            params = _options_with_target(options, target_ms)
            return {} if params is None else {"sampling_params": params}
        case _:
            return {}


def _options_with_target(options: object, target_ms: float) -> dict[str, Any] | None:
    if options is not None and not isinstance(options, dict):
        return None  # for the server to refuse
    params = _with_target((options or {}).get("custom_params"), target_ms)
    return None if params is None else {**(options or {}), "custom_params": params}


def _with_target(custom_params: object, target_ms: float) -> dict[str, Any] | None:
    if custom_params is not None and not isinstance(custom_params, dict):
        return None
    return {**(custom_params or {}), TARGET_FIELD: target_ms}
