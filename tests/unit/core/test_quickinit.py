"""A class with the fast constructor is the dataclass that it was, only sooner made."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, dataclass, field, replace

import orjson
import pytest
from pydantic import TypeAdapter

from selector.core.quickinit import quick_init, quick_maker


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """As `dataclass` makes it."""

    name: str
    batch: int = 1
    settings: Mapping[str, float] = field(default_factory=dict)


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Quick:
    """The same, made fast."""

    name: str
    batch: int = 1
    settings: Mapping[str, float] = field(default_factory=dict)


make_quick = quick_maker(Quick)
MAKERS = (Quick, make_quick)
Maker = Callable[..., Quick]


@pytest.mark.parametrize("make", MAKERS)
def test_fields_and_defaults_are_those_of_the_dataclass(make: Maker) -> None:
    made = make(name="b0", settings={"f": 0.5})
    assert (made.name, made.batch, made.settings) == ("b0", 1, {"f": 0.5})
    assert type(made) is Quick
    first, second = make(name="a"), make(name="a")
    assert first.settings == {}
    assert first.settings is not second.settings, "a factory is asked each time"
    assert repr(first) == repr(Plain(name="a")).replace("Plain", "Quick")
    assert list(inspect.signature(make).parameters) == list(inspect.signature(Plain).parameters)


@pytest.mark.parametrize("make", MAKERS)
def test_what_the_dataclass_refuses_is_refused(make: Maker) -> None:
    with pytest.raises(TypeError):
        make()
    with pytest.raises(TypeError):
        make("b0")
    with pytest.raises(TypeError):
        make(name="b0", other=1)


@pytest.mark.parametrize("make", MAKERS)
def test_an_instance_cannot_be_changed(make: Maker) -> None:
    made = make(name="b0")
    with pytest.raises(FrozenInstanceError):
        made.batch = 2  # type: ignore[misc] # that is the point
    with pytest.raises(FrozenInstanceError):
        del made.name  # type: ignore[misc] # that is the point
    with pytest.raises((AttributeError, TypeError)):
        made.other = 2  # type: ignore[attr-defined] # that is the point
    assert made == Quick(name="b0", batch=1)


@pytest.mark.parametrize("make", MAKERS)
def test_it_is_equal_replaced_copied_pickled_and_written_like_any_dataclass(make: Maker) -> None:
    made = make(name="b0", batch=3)
    assert made == Quick(name="b0", batch=3) != replace(made, batch=4)
    assert replace(made, batch=4).batch == 4
    assert copy.copy(made) == copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == made
    assert orjson.dumps(made) == b'{"name":"b0","batch":3,"settings":{}}'
    read = TypeAdapter(Quick).validate_python({"name": "b0", "batch": "3"})
    assert type(read) is Quick
    assert read == made
