"""What runs are called."""

from __future__ import annotations

from selector.simulator.report import PolicyResult, TargetChoice


def target_words(target: TargetChoice) -> str:
    """A target as a heading says it."""
    if target is None:
        return "targets of the fleet's classes"
    return "no target" if target == "none" else f"target {target:g} ms"


def run_name(result: PolicyResult, *, several: bool) -> str:
    """A run as headings call it; with its target if there are several."""
    return f"{result.policy}, {target_words(result.tbt_target_ms)}" if several else result.policy
