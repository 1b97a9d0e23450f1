"""Frozen dataclasses that are made fast: a constructor that sets fields as those of any other object are set.

The constructor that `dataclass(frozen=True)` writes sets every field by a call of `object.__setattr__`, since the class
refuses the plain way: 3 µs for a dozen fields, twice to four times what they cost otherwise. A few views are made anew
for each request, and took more than a third of what a compiled simulation costs. Here an instance is first of a twin
class with the same slots that refuses nothing, and then of the frozen class for ever:

    object.__setattr__(self, "__class__", twin)        self.batch = batch …        self.__class__ = frozen

Everything else is the dataclass's own: fields, equality, hash, `replace`, `repr`, pickling, and that it is frozen.

To call a class by keywords still means to fill a dict with them, which takes twice as long as all that; to call a
function does not. So what is made for every request is made by a function (`quick_maker`): 0.3 µs instead of 0.9 for 15
fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, ParamSpec, TypeVar

_Made = TypeVar("_Made")
_Fields = ParamSpec("_Fields")


def quick_init(frozen: type[_Made]) -> type[_Made]:
    """Gives a class made by `dataclass(frozen=True, slots=True, kw_only=True)` the fast constructor.

    To be written above that decorator. The class inherits from no other and has no `__post_init__`.
    """
    init = _setting_fields(frozen, "__init__", "self, ", "_set(self, '__class__', _twin)", "")
    frozen.__init__ = init  # type: ignore[method-assign] # it stands for the one of the dataclass
    return frozen


def quick_maker(frozen: Callable[_Fields, _Made]) -> Callable[_Fields, _Made]:
    """A function of the same keywords that makes what calling the class makes; the class is as for `quick_init`."""
    made: Callable[_Fields, _Made] = _setting_fields(frozen, "make", "", "self = _twin()", "return self")
    return made


def _setting_fields(frozen: Any, name: str, first: str, begin: str, end: str) -> Any:
    """A function `name` that sets the fields of `self`, an instance of the twin class after `begin`."""
    twin = type(frozen.__name__, (), {"__slots__": frozen.__slots__})
    names: dict[str, Any] = {"_set": object.__setattr__, "_twin": twin, "_frozen": frozen, "_absent": MISSING}
    parameters, body = [], [begin]
    for field in fields(frozen):
        parameter = value = field.name
        if field.default is not MISSING:
            names[f"_default_{field.name}"] = field.default
            parameter = f"{field.name}=_default_{field.name}"
        elif field.default_factory is not MISSING:
            names[f"_make_{field.name}"] = field.default_factory
            parameter, value = f"{field.name}=_absent", f"_make_{field.name}() if {value} is _absent else {value}"
        parameters.append(parameter)
        body.append(f"self.{field.name} = {value}")
    body += ["self.__class__ = _frozen", end]
    source = f"def {name}({first}*, {', '.join(parameters)}):\n    " + "\n    ".join(body)
    exec(source, names)  # as `dataclass` itself makes methods
    made = names[name]
    made.__qualname__ = f"{frozen.__qualname__}.{name}"
    made.__module__ = frozen.__module__
    return made
