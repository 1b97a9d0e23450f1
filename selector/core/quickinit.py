"""Frozen dataclasses that are made fast: a constructor that sets fields as those of any other object are set.

The constructor that `dataclass(frozen=True)` writes sets every field by a call of `object.__setattr__`, since the class
refuses the plain way: 3 µs for a dozen fields, twice to four times what they cost otherwise. A few views are made anew
for each request, and took more than a third of what a compiled simulation costs. Here an instance is first of a twin
class with the same slots that refuses nothing, and then of the frozen class for ever:

    object.__setattr__(self, "__class__", twin)        self.batch = batch …        self.__class__ = frozen

Everything else is the dataclass's own: fields, equality, hash, `replace`, `repr`, pickling, and that it is frozen.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, TypeVar

_Made = TypeVar("_Made")


def quick_init(frozen: type[_Made]) -> type[_Made]:
    """Gives a class made by `dataclass(frozen=True, slots=True, kw_only=True)` the fast constructor.

    To be written above that decorator. The class inherits from no other and has no `__post_init__`.
    """
    twin = type(frozen.__name__, (), {"__slots__": frozen.__slots__})  # type: ignore[attr-defined] # slots=True
    names: dict[str, Any] = {"_set": object.__setattr__, "_twin": twin, "_frozen": frozen, "_absent": MISSING}
    parameters, body = [], ["_set(self, '__class__', _twin)"]
    for field in fields(frozen):  # type: ignore[arg-type] # a dataclass, as said above
        name, value = field.name, field.name
        parameter = name
        if field.default is not MISSING:
            names[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
        elif field.default_factory is not MISSING:
            names[f"_make_{name}"] = field.default_factory
            parameter, value = f"{name}=_absent", f"_make_{name}() if {name} is _absent else {name}"
        parameters.append(parameter)
        body.append(f"self.{name} = {value}")
    body.append("self.__class__ = _frozen")
    source = f"def __init__(self, *, {', '.join(parameters)}):\n    " + "\n    ".join(body)
    exec(source, names)  # as `dataclass` itself makes methods
    init = names["__init__"]
    init.__qualname__ = f"{frozen.__qualname__}.__init__"
    init.__module__ = frozen.__module__
    frozen.__init__ = init  # type: ignore[method-assign] # it stands for the one of the dataclass
    return frozen
