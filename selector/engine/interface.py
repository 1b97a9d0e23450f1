"""Whether the installed SGLang is one whose choice of depth the plugin can stand in for.

Not the version number counts but what the plugin touches: names and parameters of methods, which releases 0.5.17 to
0.5.23 have alike. A release where any of them is different keeps its own choice.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping

PARAMS = "sglang.srt.speculative.adaptive_spec_params.AdaptiveSpeculativeParams"
"""What holds the engine's own choice; its subclass is put in its place."""
WORKER = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2"
"""What runs a batch; the plugin looks at the batch before it does."""

_PARAMS_METHODS: Mapping[str, tuple[str, ...]] = {
    "__init__": ("self", "initial_steps", "cfg_path"),
    "set_cuda_graph_bs": ("self", "cuda_graph_bs"),
    "get_steps_for_batch": ("self", "batch_size"),
    "on_verify_complete": ("self", "num_correct_drafts_per_req", "batch_size"),
    "cuda_graph_bs_for_step": ("self", "step"),
}
_WORKER_METHODS: Mapping[str, tuple[str, ...]] = {
    "activate_step_by_batch": ("self", "batch_size"),
    "on_verify_complete_cpu": ("self", "num_correct_drafts_per_req", "batch_size"),
    "apply_runtime_state": ("self", "state"),
}
_FORWARD = "forward_batch_generation"


def unknown_reason(params: type, worker: type) -> str | None:
    """What of the two classes is not as the plugin knows it, in words; `None` when all of it is."""
    for owner, methods in ((params, _PARAMS_METHODS), (worker, _WORKER_METHODS)):
        for name, expected in methods.items():
            found = _parameters(owner, name)
            if found != expected:
                return f"{owner.__name__}.{name} takes {_listed(found)}, not {_listed(expected)}"
    if not hasattr(params, "candidate_steps"):
        return f"{params.__name__} has no candidate_steps"
    forward = _parameters(worker, _FORWARD)
    if forward is None or forward[:2] != ("self", "batch"):
        return f"{worker.__name__}.{_FORWARD} takes {_listed(forward)}, not first self and batch"
    return None


def _parameters(owner: type, name: str) -> tuple[str, ...] | None:
    method = getattr(owner, name, None)
    return tuple(inspect.signature(method).parameters) if callable(method) else None


def _listed(names: tuple[str, ...] | None) -> str:
    return "nothing: it is not there" if names is None else "(" + ", ".join(names) + ")"
