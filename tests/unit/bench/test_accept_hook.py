"""The engine plugin of the live benchmark: which request gets which accept length. The engine itself is not here."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

HOOK = Path(__file__).parents[3] / "bench" / "live" / "hook" / "drafter_selector_accept.py"


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("drafter_selector_accept", HOOK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_rid_names_the_type(hook: ModuleType) -> None:
    lengths = {"code": 5.0, "*": 2.0}
    assert hook.value_of("001000007-code", lengths) == 5.0
    assert hook.value_of("001000007-romansh", lengths) == 2.0
    with pytest.raises(KeyError):
        hook.value_of("x", {"code": 5.0})


def test_a_batch_that_was_not_announced_is_an_error(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", SimpleNamespace())
    batch = hook.BatchLengths({"*": 2.0})
    batch.begin(["a-x", "b-x"])
    with pytest.raises(RuntimeError, match="1 rows are verified, 2 requests were announced"):
        batch.draw(1, 8, "cpu")


def test_the_worker_announces_its_batch_and_runs_as_before(hook: ModuleType) -> None:
    batch = hook.BatchLengths({"*": 2.0})
    forward = hook.announcing(batch)
    forwarded = SimpleNamespace(reqs=[SimpleNamespace(rid="1-code"), SimpleNamespace(rid="2-news")])
    answer = forward(lambda worker, given, extra, key: (worker, given, extra, key), "worker", forwarded, 3, key=4)
    assert answer == ("worker", forwarded, 3, 4)
    assert batch._rids == ("1-code", "2-news")


def test_the_entry_point_names_the_plugin(hook: ModuleType) -> None:
    text = (HOOK.parent / "drafter_selector_accept-1.dist-info" / "entry_points.txt").read_text()
    assert "[sglang.srt.plugins]" in text
    assert f"= {hook.__name__}:{hook.install.__name__}" in text
