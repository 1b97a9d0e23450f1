"""The parts of SGLang that the plugin touches, with the signatures of 0.5.17 and 0.5.23, as modules for `sys.modules`.

tests/engine runs the same checks on the real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from types import ModuleType
from typing import Any

import pytest

CANDIDATES = (0, 1, 3, 5, 7)


class AdaptiveSpeculativeParams:
    """Always chooses its middle candidate, and notes what it is told."""

    candidate_steps: tuple[int, ...] = CANDIDATES

    def __init__(self, initial_steps: int, cfg_path: str | None = None) -> None:
        self.initial_steps = initial_steps
        self.cfg_path = cfg_path
        self.told: list[tuple[list[int], int]] = []
        self.graphs: list[int] | None = None

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        self.graphs = cuda_graph_bs

    def get_steps_for_batch(self, batch_size: int) -> int:
        return 5

    def on_verify_complete(self, num_correct_drafts_per_req: list[int], batch_size: int) -> int | None:
        self.told.append((num_correct_drafts_per_req, batch_size))
        return None

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        return [1]


class EAGLEWorkerV2:
    """Runs nothing; asks its policy for the depth as SGLang's worker does."""

    def __init__(self, params: Any) -> None:
        self.adaptive_controller = type("Controller", (), {"params": params})()
        self.depths: list[int] = []

    def forward_batch_generation(self, batch: Any, on_publish: Any = None, grammar_barrier: Any = None) -> None:
        self.activate_step_by_batch(len(batch.reqs))

    def activate_step_by_batch(self, batch_size: int) -> None:
        self.depths.append(self.adaptive_controller.params.get_steps_for_batch(batch_size))

    def on_verify_complete_cpu(self, num_correct_drafts_per_req: list[int], batch_size: int = 0) -> None:
        self.adaptive_controller.params.on_verify_complete(num_correct_drafts_per_req, batch_size)

    def apply_runtime_state(self, state: Any) -> None:
        return None


class HookType(Enum):
    """As SGLang's."""

    BEFORE = "before"
    REPLACE = "replace"


class HookRegistry:
    """Notes what is registered."""

    registered: dict[str, tuple[Any, HookType]]

    @classmethod
    def register(cls, target: str, hook: Callable[..., Any], hook_type: HookType) -> None:
        cls.registered[target] = (hook, hook_type)


def put_in_place(
    monkeypatch: pytest.MonkeyPatch,
    *,
    params: type = AdaptiveSpeculativeParams,
    worker: type = EAGLEWorkerV2,
) -> dict[str, tuple[Any, HookType]]:
    """Makes `import sglang…` find these; returns where registered hooks will be."""
    registry = type("HookRegistry", (HookRegistry,), {"registered": {}})
    contents = {
        "sglang": {},
        "sglang.srt": {},
        "sglang.srt.speculative": {},
        "sglang.srt.plugins": {},
        "sglang.srt.speculative.adaptive_spec_params": {"AdaptiveSpeculativeParams": params},
        "sglang.srt.speculative.eagle_worker_v2": {"EAGLEWorkerV2": worker},
        "sglang.srt.plugins.hook_registry": {"HookRegistry": registry, "HookType": HookType},
    }
    for name, attributes in contents.items():
        module = ModuleType(name)
        module.__path__ = []
        for attribute, value in attributes.items():
            setattr(module, attribute, value)
        monkeypatch.setitem(__import__("sys").modules, name, module)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(__import__("sys").modules[parent], child, module)
    registered: dict[str, tuple[Any, HookType]] = registry.registered
    return registered
