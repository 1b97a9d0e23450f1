"""The build hook: pure Python unless asked, and what it compiles can be compiled."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import BaseModel

import selector

pytest.importorskip("hatchling")

ROOT = Path(__file__).parents[2]


def load_hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "scripts" / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("switch", "version"), [(None, "standard"), ("0", "standard"), ("1", "editable")])
def test_nothing_is_compiled_unless_a_wheel_is_asked_for(
    switch: str | None, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load_hook()
    monkeypatch.delenv(module.SWITCH, raising=False)
    if switch is not None:
        monkeypatch.setenv(module.SWITCH, switch)
    hook = module.CompileHook(str(ROOT), {}, None, None, "", "wheel")
    build_data: dict[str, Any] = {"force_include": {}}
    hook.initialize(version, build_data)
    hook.finalize(version, build_data, "")
    assert build_data == {"force_include": {}}
    assert bool(hook.dependencies()) == (switch == "1")


def compiled_modules() -> set[str]:
    return {path.removesuffix(".py").replace("/", ".") for path in load_hook().COMPILED}


def classes() -> Iterator[type]:
    """Every class of the package."""
    for found in pkgutil.walk_packages(selector.__path__, "selector."):
        if not found.name.endswith("__main__"):
            module = importlib.import_module(found.name)
            for value in vars(module).values():
                if isinstance(value, type) and value.__module__ == module.__name__:
                    yield value


def types_in(annotation: object) -> Iterator[type]:
    """The types in an annotation, and those of the fields of dataclasses among them."""
    if isinstance(annotation, type):
        yield annotation
        if is_dataclass(annotation):
            for inner in get_type_hints(annotation).values():
                yield from types_in(inner)
    for inner in get_args(annotation):
        yield from types_in(inner)


def test_what_is_compiled_is_there() -> None:
    for module in compiled_modules():
        assert importlib.util.find_spec(module) is not None


def test_only_compiled_classes_inherit_from_compiled_ones() -> None:
    """The others could not be made: mypyc refuses it when the module is imported."""
    compiled = compiled_modules()
    for known in classes():
        parents = {parent.__module__ for parent in known.__mro__[1:]}
        if parents & compiled:
            assert known.__module__ in compiled, f"{known.__module__}.{known.__name__}"


def test_no_schema_reads_a_compiled_class() -> None:
    """pydantic reads annotations, which compiled classes do not keep."""
    compiled = compiled_modules()
    for known in classes():
        fields = known.model_fields.values() if issubclass(known, BaseModel) else ()
        for read in {read for field in fields for read in types_in(field.annotation)}:
            assert read.__module__ not in compiled, f"{known.__name__} reads {read.__name__}"


@pytest.mark.parametrize("path", load_hook().COMPILED)
def test_nothing_compiled_is_copied_or_kept_weakly(path: str) -> None:
    """Compiled classes can be neither: what works in plain Python raises TypeError there."""
    nodes = list(ast.walk(ast.parse((ROOT / path).read_text())))
    named = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    named |= {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    assert named.isdisjoint({"copy", "pickle", "weakref"})


@pytest.mark.parametrize("path", load_hook().COMPILED)
def test_named_tuples_name_only_classes_above_them(path: str) -> None:
    """The compiled module would read the class before it exists, and crash."""
    above: set[str] = set()
    classes = [node for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.ClassDef)]
    every = {node.name for node in classes}
    for node in classes:
        if any(isinstance(base, ast.Name) and base.id == "NamedTuple" for base in node.bases):
            fields = [field.annotation for field in node.body if isinstance(field, ast.AnnAssign)]
            named = {each.id for field in fields for each in ast.walk(field) if isinstance(each, ast.Name)}
            assert named & every <= above, f"{node.name} in {path}"
        above.add(node.name)
