"""Imports point one way, the core is pure, and only the command line prints or exits.

Each rule is a function from source text to the lines that break it. The tests run it over the package, and over samples
that break it, so that a rule which sees nothing is noticed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "selector"

MAY_IMPORT: Mapping[str, tuple[str, ...]] = {
    "core": (),
    # The shipped weights of the text types are data.
    "files": ("core", "data"),
    "page": ("core", "files"),
    "profiler": ("core", "files", "data", "page"),
    "simulator": ("core", "files", "page"),
    # The emulator is the simulator's server model on a real clock, and that alone.
    "emulator": ("core", "files", "simulator.server", "simulator.draws", "simulator.job"),
    "router": ("core", "files"),
    "data": (),
    "loadgen": ("core", "files", "data", "simulator.arrivals"),
    "cli": ("core", "files", "data", "page", "profiler", "simulator", "emulator", "router", "loadgen"),
    "engine": ("core", "files"),
}
"""What each subpackage may import beside itself and the modules at the top of the package."""

IMPURE = frozenset(
    {
        "aiohttp",
        "asyncio",
        "concurrent",
        "datetime",
        "fastapi",
        "http",
        "httpx",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "pydantic",
        "queue",
        "random",
        "secrets",
        "select",
        "shutil",
        "signal",
        "socket",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "urllib",
        "uuid",
        "uvicorn",
    }
)
"""Modules that bring I/O, a clock, concurrency, hidden randomness or file schemas into the core."""


def imported(source: str, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything `source`, the text of `module`, imports, wherever in the text it does."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                base = package[: len(package) - node.level + 1]
                origin = ".".join([*base, *([origin] if origin else [])])
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def subpackage(module: str) -> str | None:
    """The subpackage of a module of this package, `None` for one at the top. `python -m selector` counts as `cli`."""
    if module == "selector.__main__":
        return "cli"
    part = module.removeprefix("selector").removeprefix(".").partition(".")[0]
    return part if part in MAY_IMPORT else None


def wrong_imports(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """Imports of `module` (such as `selector.core.cost`) from a subpackage that its own must not know."""
    own = subpackage(module)
    allowed = (own, *MAY_IMPORT[own]) if own else ()
    found = []
    for line, name in imported(source, module, is_package=is_package):
        top, _, inner = name.partition(".")
        if top != "selector" or inner.split(".")[0] not in MAY_IMPORT:
            continue
        if not any(f"{inner}.".startswith(f"{part}.") for part in allowed):
            found.append(f"{module}:{line} imports {name}")
    return found


def impurities(source: str, module: str) -> list[str]:
    """Imports, `async` and calls of `open` or `input` that a pure module must not have."""
    found = [
        f"{module}:{line} imports {name}"
        for line, name in imported(source, module, is_package=False)
        if name.split(".")[0] in IMPURE or f"{name}.".startswith("numpy.random.")
    ]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Await):
            found.append(f"{module}:{node.lineno} is async")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"open", "input"}:
            found.append(f"{module}:{node.lineno} calls {node.func.id}")
    return found


def prints_and_exits(source: str, module: str) -> list[str]:
    """Uses of `print`, `sys.exit`, `os._exit`, `exit`, `quit` and `SystemExit`, called or only named."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and node.id in {"print", "exit", "quit", "SystemExit"}:
            found.append(f"{module}:{node.lineno} uses {node.id}")
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in {"sys.exit", "os._exit", "builtins.print"}:
            found.append(f"{module}:{node.lineno} uses {ast.unparse(node)}")
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found += [f"{module}:{node.lineno} imports {name}" for name in sorted(names & {"sys.exit", "os._exit"})]
    return found


def modules(under: str = "") -> Iterator[tuple[str, bool, str]]:
    """Dotted name, whether it is a package, and source of every module of the package or of one subpackage."""
    for path in sorted((PACKAGE / under).rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        yield ".".join(parts[:-1] if is_package else parts), is_package, path.read_text(encoding="utf-8")


def test_every_subpackage_with_code_has_its_place_in_the_rule() -> None:
    found = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert found == set(MAY_IMPORT)


def test_imports_point_one_way() -> None:
    faults = [wrong_imports(text, name, is_package=is_package) for name, is_package, text in modules()]
    assert list(chain.from_iterable(faults)) == []


def test_the_core_is_pure() -> None:
    faults = [impurities(text, name) for name, _, text in modules("core")]
    assert list(chain.from_iterable(faults)) == []


def test_only_the_command_line_prints_or_exits() -> None:
    faults = [prints_and_exits(text, name) for name, _, text in modules() if subpackage(name) != "cli"]
    assert list(chain.from_iterable(faults)) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("selector.core.cost", "import selector.files.profile"),
        ("selector.core.cost", "from selector import files"),
        ("selector.core.cost", "from ..files import profile"),
        ("selector.core.cost", "from .. import router"),
        ("selector.core.cost", "def f():\n    from selector.router.app import x"),
        ("selector.core.cost", "if TYPE_CHECKING:\n    import selector.cli as c"),
        ("selector.files.profile", "from selector.simulator import engine"),
        ("selector.profiler.sweep", "from selector.emulator import app"),
        ("selector.simulator.engine", "from selector.emulator.app import x"),
        ("selector.router.app", "from selector.simulator.server import x"),
        ("selector.router.app", "from selector.cli import main"),
        ("selector.emulator.app", "from selector.simulator.engine import x"),
        ("selector.emulator.app", "from selector.simulator import server, engine"),
        ("selector.emulator.app", "import selector.simulator"),
        ("selector.emulator.app", "from selector.simulator.server_of_another import x"),
        ("selector.emulator.app", "from selector.router import relay"),
        ("selector.errors", "from selector.core import types"),
    ],
)
def test_a_wrong_import_is_seen(module: str, source: str) -> None:
    assert len(wrong_imports(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "is_package", "source"),
    [
        ("selector.core", True, "from selector.cli import main"),
        ("selector.core", True, "from ..cli import main"),
        ("selector", True, "from .core import types"),
        ("selector", True, "from selector.cli import main"),
    ],
)
def test_a_wrong_import_is_seen_in_a_package(module: str, is_package: bool, source: str) -> None:
    assert len(wrong_imports(source, module, is_package=is_package)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("selector.core.cost", "import numpy\nfrom selector.core.types import Arm"),
        ("selector.core.cost", "from . import types\nfrom .types import Arm"),
        ("selector.core.cost", "import selector\nfrom selector import __version__\nfrom selector.errors import x"),
        ("selector.core.cost", "import selectors\nimport files.profile"),
        ("selector.emulator.app", "from selector.simulator.server import x\nfrom selector.simulator import draws"),
        ("selector.cli.serve", "from selector.router import app\nfrom selector.simulator import engine"),
        ("selector.__main__", "from selector.cli import main"),
    ],
)
def test_a_right_import_is_left_alone(module: str, source: str) -> None:
    assert wrong_imports(source, module) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import os.path as p",
        "from random import Random",
        "from asyncio import Queue",
        "import numpy.random",
        "from numpy import random",
        "from numpy.random import default_rng",
        "async def f(): pass",
        "text = open('x').read()",
        *(f"import {name}" for name in ("httpx", "aiohttp", "pydantic", "logging", "pathlib", "socket")),
    ],
)
def test_an_impurity_is_seen(source: str) -> None:
    assert len(impurities(source, "selector.core.sample")) == 1


@pytest.mark.parametrize("source", ["import math, numpy", "from .time import x", "x = door.open()", "import timely"])
def test_a_pure_module_is_left_alone(source: str) -> None:
    assert impurities(source, "selector.core.sample") == []


@pytest.mark.parametrize(
    "source",
    [
        "print('x')",
        "run(report=print)",
        "import sys\nsys.exit(2)",
        "from sys import argv, exit",
        "raise SystemExit(2)",
        "import os\nos._exit(1)",
        "quit()",
    ],
)
def test_a_print_or_an_exit_is_seen(source: str) -> None:
    assert len(prints_and_exits(source, "selector.router.sample")) == 1


def test_what_only_looks_like_printing_is_left_alone() -> None:
    source = "'print(x)'  # print(x)\nconsole.print(x)\nself.exit = 1\nimport sys\nsys.exitcode\nfrom sys import argv"
    assert prints_and_exits(source, "selector.router.sample") == []
