"""What the dashboard shows, as one document of bounded size, made when it is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from selector import __version__
from selector.core.quantile import quantile
from selector.core.types import TEXT_TYPES, BackendView, Finish
from selector.router.books import EnergyTotals
from selector.router.corrections import corrections_report
from selector.router.explain import came, in_words, predicted
from selector.router.records import Record
from selector.router.state import RouterState
from selector.router.watch import WatchedBackend

_WINDOW = 500
"""The last requests that ended, over which times and attainment are taken."""
_SHOWN_DECISIONS = 30
_MOST_PARTS = 400
"""Values in what a policy says of itself; what is beyond is cut off."""


def live_document(state: RouterState) -> dict[str, Any]:
    """Everything. Shares are `None` where nothing was seen."""
    controller, books = state.dispatcher.controller, state.dispatcher.books
    recent = list(islice(books.records.latest_ended(), _WINDOW))
    views = controller.tracker.view(state.now_s()).backends
    return {
        "version": __version__,
        "target": state.target,
        "policy": state.policy.label,
        "uptime_s": state.now_s(),
        "draining": state.draining,
        "ready": state.ready,
        "policy_failures": controller.policy_failures,
        "last_policy_failure": controller.last_policy_failure,
        "log_dropped": state.log and state.log.dropped,
        "tbt_quantile": controller.context.tbt_quantile,
        "summary": {
            "window": len(recent),
            "in_flight": len(state.dispatcher.flights),
            "attainment": attainment(recent),
            "tbt_within_prediction": _within_prediction(recent),
            "energy": _energy(_sum(books.by_backend.values())),
            "watts": _watts([totals.watts for totals in books.by_gpu.values()]),
        },
        "classes": _classes(recent),
        "backends": [_backend(state, view, state.watch.backends[view.name], recent) for view in views],
        "gpus": [
            {
                "gpu": gpu,
                "watts": totals.watts,
                "idle_j": totals.idle_j,
                "others_j": totals.others_j,
                "requests_j": totals.requests_j,
            }
            for gpu, totals in books.by_gpu.items()
        ],
        "meters": None if state.meters is None else _meters(state),
        "acceptance": _acceptance(state),
        "corrections": corrections_report(state.dispatcher, enabled=state.corrects),
        "plan": bounded(controller.policy_state()),
        "decisions": [
            _decision(record, controller.context.tbt_quantile) for record in books.records.latest(_SHOWN_DECISIONS)
        ],
    }


def attainment(records: Iterable[Record]) -> float | None:
    """The share within their target of those that have one and did not leave; a failed one missed it."""
    met = judged = 0
    for record in records:
        outcome, target_ms = record.outcome, record.view.tbt_target_ms
        if outcome is None or target_ms is None or outcome.finish is Finish.CANCELLED:
            continue
        if outcome.finish is Finish.DONE and outcome.tbt_ms is None:
            continue
        judged += 1
        met += outcome.finish is Finish.DONE and outcome.tbt_ms is not None and outcome.tbt_ms <= target_ms
    return met / judged if judged else None


def bounded(data: object) -> object:
    """Plain data of at most a few hundred values: a policy is foreign code, and may say too much."""
    return _Bounded(_MOST_PARTS).of(data, 6)


class _Bounded:
    def __init__(self, parts: int) -> None:
        self._parts = parts

    def of(self, data: object, depth: int) -> object:
        self._parts -= 1
        if self._parts < 0 or depth < 0:
            return "…"
        match data:
            case None | bool() | int():
                return data
            case float():
                return data if math.isfinite(data) else str(data)
            case Mapping():
                return {
                    str(key)[:64]: self.of(value, depth - 1)
                    for key, value in islice(data.items(), _MOST_PARTS)
                    if self._parts >= 0
                }
            case list() | tuple():
                return [self.of(value, depth - 1) for value in islice(data, _MOST_PARTS) if self._parts >= 0]
            case _:
                return str(data)[:256]


def _backend(
    state: RouterState, view: BackendView, watched: WatchedBackend, recent: Sequence[Record]
) -> dict[str, Any]:
    own = [record for record in recent if record.outcome is not None and record.outcome.backend == view.name]
    polled_s = state.dispatcher.controller.tracker.polled_s(view.name)
    tbts = [record.outcome.tbt_ms for record in own if record.outcome and record.outcome.tbt_ms is not None]
    targets = [group.tbt_target_ms for group in view.groups if group.tbt_target_ms is not None]
    targets += [record.view.tbt_target_ms for record in own if record.view.tbt_target_ms is not None]
    return {
        "name": view.name,
        "arm": view.arm,
        "gpus": view.gpus,
        "settings": dict(view.settings),
        "settings_fixed": view.settings_fixed,
        "state": watched.state,
        "reason": watched.reason,
        "batch": view.batch,
        "max_running_requests": view.max_running_requests,
        "waiting": view.waiting,
        "kv_frac": min(1.0, view.kv_tokens / view.max_kv_tokens),
        "polled_age_s": None if polled_s is None else state.now_s() - polled_s,
        "requests": len(own),
        "tbt_p50_ms": quantile(tbts, 0.5),
        "tbt_p90_ms": quantile(tbts, 0.9),
        "tightest_target_ms": min(targets, default=None),
        "attainment": attainment(own),
        "energy": _energy(state.dispatcher.books.by_backend[view.name]),
    }


def _classes(recent: Sequence[Record]) -> list[dict[str, Any]]:
    by_class: dict[str, list[Record]] = {}
    for record in recent:
        by_class.setdefault(record.view.slo_class, []).append(record)
    return [
        {"slo_class": name, "requests": len(records), "attainment": attainment(records)}
        for name, records in sorted(by_class.items())
    ]


def _acceptance(state: RouterState) -> dict[str, Any]:
    model, books = state.dispatcher.controller.context.acceptance, state.dispatcher.books
    arms = []
    for arm in model.arms:
        drafts = arm in model.learning
        cells = []
        for text_type in TEXT_TYPES:
            energy = books.by_kind.get((arm, text_type), EnergyTotals())
            estimate = model.estimate(arm, text_type) if drafts else None
            cells.append(
                {
                    "text_type": text_type,
                    "accept_length": 1.0 if estimate is None else estimate.mean,
                    "standard_deviation": None if estimate is None else estimate.standard_deviation,
                    "samples": None if estimate is None else estimate.samples,
                    "j_per_accepted_token": energy.j_per_accepted_token,
                }
            )
        arms.append({"arm": arm, "drafts": drafts, "types": cells})
    return {"arms": arms, "refused_samples": model.refused_samples, "drift_alarms": model.drift_alarm_count}


def _decision(record: Record, tbt_quantile: float) -> dict[str, Any]:
    last, outcome = record.last, record.outcome
    return {
        "rid": record.view.request_id,
        "t_s": last.t_s,
        "arm": last.arm,
        "backend": last.decision.backend,
        "reason": last.decision.reason,
        "fallback": last.fallback,
        "attempts": len(record.attempts),
        "text_type": record.view.text_type,
        "slo_class": record.view.slo_class,
        "tbt_target_ms": record.view.tbt_target_ms,
        "predicted": predicted(last, tbt_quantile),
        "came": None if outcome is None else came(record, outcome),
        "in_words": in_words(record),
    }


def _meters(state: RouterState) -> dict[str, Any]:
    assert state.meters is not None
    return {
        "unmetered": state.meters.unmetered,
        "meters": [
            {
                "name": meter.name,
                "up": meter.up,
                "last_error": meter.last_error,
                "refused": meter.refused,
                "last_refused": meter.last_refused,
                "gpus": list(meter.gpus),
                "age_s": None if meter.answered_s is None else state.now_s() - meter.answered_s,
            }
            for meter in state.meters.meters
        ],
    }


def _energy(totals: EnergyTotals) -> dict[str, Any]:
    return {
        "tokens": totals.tokens,
        "j_per_accepted_token": totals.j_per_accepted_token,
        "modelled_j_per_accepted_token": totals.modelled_j_per_accepted_token,
    }


def _sum(totals: Iterable[EnergyTotals]) -> EnergyTotals:
    total = EnergyTotals()
    for each in totals:
        total.requests_j += each.requests_j
        total.modelled_j += each.modelled_j
        total.tokens += each.tokens
    return total


def _watts(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _within_prediction(recent: Sequence[Record]) -> float | None:
    """The share of requests whose TBT was at most the predicted one: the quantile asked for, if predictions hold."""
    pairs = [
        (record.outcome.tbt_ms, record.last.chosen.tbt_ms)
        for record in recent
        if record.outcome is not None and record.outcome.tbt_ms is not None
        if record.last.chosen is not None and record.last.chosen.tbt_ms is not None
    ]
    return sum(tbt <= bound for tbt, bound in pairs) / len(pairs) if pairs else None
