"""What the router shows of the acceptance that it learns: for people, and for Prometheus."""

from __future__ import annotations

from typing import Any

from selector.core.acceptance import AcceptanceModel
from selector.router.metrics import RouterMetrics
from selector.router.sharing import AcceptanceSharing
from selector.router.snapshots import AcceptanceSnapshots


def acceptance_report(
    model: AcceptanceModel, snapshots: AcceptanceSnapshots, sharing: AcceptanceSharing | None
) -> dict[str, Any]:
    """Estimates with what is behind them, drift alarms, effects, and how learning is kept and shared."""
    return {
        "estimates": {
            arm: {text_type: model.estimate(arm, text_type) for text_type in learning.cells}
            for arm, learning in model.learning.items()
        },
        "drift_alarms": list(model.drift_alarms),
        "drift_alarm_count": model.drift_alarm_count,
        "effects": {arm: model.effects(arm) for arm in model.learning},
        "refinement_keys": len(model.refinement),
        "snapshot": None
        if snapshots.path is None
        else {
            "path": str(snapshots.path),
            "restored": snapshots.restored,
            "write_failures": snapshots.failures,
            "problem": snapshots.problem,
        },
        "sharing": sharing
        and {
            "other_routers": sharing.others,
            "rounds": sharing.rounds,
            "failures": sharing.failures,
            "refused": sharing.refused,
            "last_error": sharing.last_error,
        },
    }


def read_acceptance_metrics(
    metrics: RouterMetrics, model: AcceptanceModel, snapshots: AcceptanceSnapshots, sharing: AcceptanceSharing | None
) -> None:
    """Connects them; every reading is taken at a scrape."""
    metrics.read_counter("acceptance_samples", "Requests that taught acceptance.", lambda: model.samples)
    metrics.read_counter(
        "acceptance_refused_samples", "Speculation counts that cannot be.", lambda: model.refused_samples
    )
    metrics.read_counter(
        "acceptance_drift_alarms", "Times that an arm's acceptance moved.", lambda: model.drift_alarm_count
    )
    for arm, learning in model.learning.items():
        for text_type in learning.cells:
            labels = {"arm": arm, "text_type": text_type}

            def mean(arm: str = arm, text_type: str = text_type) -> float:
                return model.estimate(arm, text_type).mean

            def deviation(arm: str = arm, text_type: str = text_type) -> float:
                return model.estimate(arm, text_type).standard_deviation

            def samples(arm: str = arm, text_type: str = text_type) -> float:
                return model.estimate(arm, text_type).samples

            metrics.read_gauge("accept_length", "Estimated tokens per step.", mean, **labels)
            metrics.read_gauge("accept_length_deviation", "Standard deviation of the estimate.", deviation, **labels)
            metrics.read_gauge("accept_length_samples", "Requests behind the estimate, faded.", samples, **labels)
    if snapshots.path is not None:
        metrics.read_counter(
            "acceptance_snapshot_failures", "Snapshots that were not written.", lambda: snapshots.failures
        )
    if sharing is not None:
        metrics.read_counter("acceptance_share_failures", "Times sharing failed.", lambda: sharing.failures)
        metrics.read_counter("acceptance_share_refused", "What others told and cannot be.", lambda: sharing.refused)
        metrics.read_gauge("acceptance_share_routers", "Other routers heard of.", lambda: sharing.others)
