"""Lines of a decision log of one request, by hand: old logs stay readable, so optional fields are left out."""

from __future__ import annotations

from typing import Any


def decision_line(*, t_s: float = 1.0, **request: Any) -> dict[str, Any]:
    """A decision for backend b0 on a request that arrived then; `request` replaces fields of it."""
    view = {
        "request_id": "a", "arrival_s": t_s, "prompt_tokens": 100, "expected_output_tokens": 50.0,
        "max_output_tokens": None, "text_type": "code", "text_probabilities": None, "slo_class": "default",
        "tbt_target_ms": None, "needs": [], "session_key": None,
    }  # fmt: skip
    return {
        "v": 1, "event": "decision", "t_s": t_s, "request": {**view, **request}, "backend": "b0", "arm": "none",
        "reason": "r", "candidates": [], "fallback": False,
    }  # fmt: skip


def end_line(*, t_s: float = 2.0, **outcome: Any) -> dict[str, Any]:
    """Its end, after a second; `outcome` replaces fields of it."""
    whole = {
        "request_id": "a", "backend": "b0", "arm": "none", "text_type": "code", "finish": "done", "prompt_tokens": 110,
        "accepted_tokens": 20, "dispatched_s": t_s - 1.0, "finished_s": t_s, "ttft_ms": 10.0, "tbt_ms": 5.0,
        "verify_passes": None, "accepted_drafts": None,
    }  # fmt: skip
    return {"v": 1, "event": "end", "t_s": t_s, "outcome": {**whole, **outcome}}
