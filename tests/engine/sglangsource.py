"""Parts of a real SGLang, loaded from its source without its dependencies: those that adaptive speculation is made of.

`TEST_SGLANG_SOURCE` names folders that hold a package `sglang` (a site-packages, an unpacked wheel), several joined by
the system's path separator; the environment that the kit has installed counts too. Only files that need nothing but the
standard library are executed; whatever else they import is a stand-in.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HOME = Path(os.environ.get("SGLANG_CPU_HOME") or Path.home() / ".cache" / "sglang-cpu")
_EXECUTED = (
    "sglang.srt.plugins.hook_registry",
    "sglang.srt.speculative.adaptive_spec_params",
    "sglang.srt.speculative.adaptive_runtime_state",
)
_WORKER = "sglang.srt.speculative.eagle_worker_v2"


def sources() -> list[Path]:
    """Folders with a package `sglang` that is complete enough."""
    named = [Path(name) for name in os.environ.get("TEST_SGLANG_SOURCE", "").split(os.pathsep) if name]
    installed = sorted(HOME.glob("venv/lib/python3*/site-packages"))
    return [folder for folder in (*named, *installed) if (folder / (_WORKER.replace(".", "/") + ".py")).is_file()]


def release(folder: Path) -> str:
    """The release in a folder, as far as it tells."""
    names = [entry.name for entry in folder.glob("sglang-*.dist-info")]
    if names:
        return names[0].removeprefix("sglang-").removesuffix(".dist-info")
    version = folder / "sglang" / "_version.py"
    found = re.search(r"version\D*([\d.]+)", version.read_text(encoding="utf-8")) if version.is_file() else None
    return found.group(1) if found else folder.name


class _StandIn(ModuleType):
    """A module that has everything, as functions that do nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive:
    """The real parts of one release."""

    params: Any
    runtime: Any
    """The module with the controller."""
    hooks: Any
    worker: type
    """A class with the worker's methods and their parameters, and nothing in them."""


def load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Adaptive:
    """Executes the parts; they are importable as `sglang…` until the test is over."""
    for name in [name for name in sys.modules if name == "sglang" or name.startswith("sglang.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("sglang", "sglang.srt", "sglang.srt.speculative", "sglang.srt.plugins"):
        _put(name, ModuleType(name), monkeypatch).__path__ = []  # type: ignore[attr-defined]  # what packages have
    for name in _EXECUTED:
        path = folder / (name.replace(".", "/") + ".py")
        for other in _imported(path):
            if other not in sys.modules and other not in _EXECUTED:
                _put(other, _StandIn(other), monkeypatch)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        spec.loader.exec_module(_put(name, importlib.util.module_from_spec(spec), monkeypatch))
    worker = _skeleton(folder / (_WORKER.replace(".", "/") + ".py"), "EAGLEWorkerV2")
    _put(_WORKER, ModuleType(_WORKER), monkeypatch).EAGLEWorkerV2 = worker  # type: ignore[attr-defined]  # put there
    return Adaptive(
        params=sys.modules[_EXECUTED[1]],
        runtime=sys.modules[_EXECUTED[2]],
        hooks=sys.modules[_EXECUTED[0]],
        worker=worker,
    )


def _put(name: str, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setitem(sys.modules, name, module)
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        monkeypatch.setattr(sys.modules[parent], child, module, raising=False)
    return module


def _imported(path: Path) -> set[str]:
    """Modules of SGLang that a file imports, their parents too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang"):
            parts = (node.module or "").split(".")
            found |= {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    return found


def _skeleton(path: Path, class_name: str) -> type:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name)
    methods: dict[str, Any] = {}
    for method in body:
        if isinstance(method, ast.FunctionDef) and not method.decorator_list:
            for argument in (*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs):
                argument.annotation = None
            method.returns = None
            method.body = [ast.Pass()]
            method.args.defaults = [ast.Constant(None) for _ in method.args.defaults]
            module = ast.fix_missing_locations(ast.Module([method], []))
            exec(compile(module, str(path), "exec"), methods)
    methods.pop("__builtins__", None)
    return type(class_name, (), methods)
