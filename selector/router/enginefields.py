"""How a request's TBT target and text type are told to an engine that chooses its draft depth by them.

They stand in SGLang's `custom_params`.

SGLang carries `custom_params` from these routes to its scheduler and gives it to custom logit processors alone, so keys
of our own among a client's do no harm. `/v1/responses` and `/v1/messages` have no such field: the engine uses its
default target there, and learns of their text what it learns of any it was not told of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selector.core.enginefields import TARGET_FIELD, TEXT_FIELD
from selector.core.types import UNKNOWN_TEXT_TYPE, RequestView
from selector.router.routes import Dialect, Route

_LIKELY_FRAC = 0.5
"""A text type that is less probable is not told."""


def engine_fields(view: RequestView) -> dict[str, object]:
    """What an engine is told of a request; empty where nothing is known."""
    told: dict[str, object] = {}
    if view.tbt_target_ms is not None:
        told[TARGET_FIELD] = view.tbt_target_ms
    probabilities = view.text_probabilities
    if view.text_type != UNKNOWN_TEXT_TYPE and (probabilities is None or max(probabilities) >= _LIKELY_FRAC):
        told[TEXT_FIELD] = view.text_type
    return told


def fields_with(route: Route, fields: Mapping[str, Any], told: Mapping[str, object]) -> dict[str, Any]:
    """The fields of the body that change; none where the route, or the type of what is there, does not allow it."""
    match route.dialect:
        case Dialect.OPENAI:
            params = _with(fields.get("custom_params"), told)
            return {} if params is None else {"custom_params": params}
        case Dialect.GENERATE:
            options = fields.get("sampling_params")
            if isinstance(options, list):
                changed = [_options_with(each, told) for each in options]
                return {} if None in changed else {"sampling_params": changed}
            params = _options_with(options, told)
            return {} if params is None else {"sampling_params": params}
        case _:
            return {}


def _options_with(options: object, told: Mapping[str, object]) -> dict[str, Any] | None:
    if options is not None and not isinstance(options, dict):
        return None  # for the server to refuse
    params = _with((options or {}).get("custom_params"), told)
    return None if params is None else {**(options or {}), "custom_params": params}


def _with(custom_params: object, told: Mapping[str, object]) -> dict[str, Any] | None:
    if custom_params is not None and not isinstance(custom_params, dict):
        return None
    return {**(custom_params or {}), **told}
