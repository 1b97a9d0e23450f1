"""What orjson does not write by itself: sets, mappings of other kinds, and dataclasses of compiled modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass


def plain(value: object) -> object:
    """The value as something that orjson writes, for its `default`. Raises `TypeError` for what has no such form.

    orjson reads fields of dataclasses where Python keeps them, and crashes over one that is compiled: where there may
    be one, it is to pass them on to here (`OPT_PASSTHROUGH_DATACLASS`).
    """
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
