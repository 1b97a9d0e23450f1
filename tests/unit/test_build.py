"""The build hook: pure Python unless asked, and what it compiles can be compiled."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

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


def test_compiled_modules_are_there_and_read_by_no_schema() -> None:
    """pydantic reads annotations that compiled dataclasses do not keep."""
    schemas = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "selector" / "files").glob("**/*.py"))
    for path in load_hook().COMPILED:
        assert (ROOT / path).is_file()
        module = path.removesuffix(".py").replace("/", ".")
        for line in schemas.splitlines():
            if line.startswith(f"from {module} import"):
                assert "LoadSignal" not in line, f"{line}: import it from selector.core.types"
