"""Keeps account of what was predicted and what came, beside the data path: nothing here decides or delays anything.

    dispatcher ──decided, retracted, ended, polled──▶ Books ──▶ records        the last requests, for people
    meters     ──begin, reading─────────────────────▶   │  ├──▶ metrics        for Prometheus
                                                        │  └──▶ corrections    evidence on what backends cost
                                                        └──▶ the log           joules of each request

One call per event of a request, none per chunk. Corrections become due here and are put in force by the dispatcher
(`corrections`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from selector.core.acceptance import AcceptanceModel
from selector.core.correction import CorrectionModel
from selector.core.energyshare import EnergyShare, Settled
from selector.core.fleetwork import FleetWork
from selector.core.policy import BackendSpec
from selector.core.types import Correction, Decision, Outcome, RequestView
from selector.files.decision_log_writer import LogSection
from selector.router.metrics import RouterMetrics
from selector.router.outliers import Outliers
from selector.router.records import Records

_LEAST_STEPS = 8.0
"""Shorter answers say little about a step: their ends are blurred."""


@dataclass(slots=True)
class EnergyTotals:
    """Joules of a backend since the start."""

    requests_j: float = 0.0
    """Of requests that settled."""
    modelled_j: float = 0.0
    """Of the same requests, by the profile."""
    tokens: int = 0
    """Of the same requests."""

    @property
    def j_per_accepted_token(self) -> float | None:
        """Observed; `None` without tokens."""
        return self.requests_j / self.tokens if self.tokens else None

    @property
    def modelled_j_per_accepted_token(self) -> float | None:
        """By the profile."""
        return self.modelled_j / self.tokens if self.tokens else None


@dataclass(slots=True)
class GpuTotals:
    """Joules of a GPU since it is metered; the parts sum to the counter."""

    idle_j: float = 0.0
    others_j: float = 0.0
    requests_j: float = 0.0
    watts: float | None = None
    """Mean over the last reading."""


class Books:
    """Of one router, in its loop. `specs` have the costs of the profiles, which are never corrected."""

    def __init__(
        self,
        specs: Sequence[BackendSpec],
        acceptance: AcceptanceModel,
        metrics: RouterMetrics,
        *,
        metered: bool,
        outliers: Outliers,
        log: LogSection | None = None,
    ) -> None:
        """`outliers` are told how fast steps were."""
        self.records = Records(acceptance)
        self.corrections = CorrectionModel([spec.name for spec in specs])
        self.by_backend = {spec.name: EnergyTotals() for spec in specs}
        self.by_kind: dict[tuple[str, str], EnergyTotals] = {}
        """By arm and text type."""
        self.by_gpu: dict[str, GpuTotals] = {}
        """Metered ones."""
        self._drafts = {spec.name: spec.cost.verify_tokens > 1 for spec in specs}
        self._work = FleetWork(specs)
        self._share = EnergyShare(specs, self._work) if metered else None
        self._metrics = metrics
        self._outliers = outliers
        self._log = log
        self._outcomes: dict[tuple[str, str], Outcome] = {}
        """Outcomes of requests that are not settled, by backend and request."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """Of the fleet, where energy is metered."""
        return () if self._share is None else self._share.gpus

    def decided(
        self,
        view: RequestView,
        rids: Sequence[str],
        decision: Decision,
        arm: str | None,
        now_s: float,
        *,
        fallback: bool,
        correction: Correction,
        acceptance_arm: str | None = None,
    ) -> None:
        """A policy decided, and the request goes there if it named a backend."""
        self.records.decided(
            view,
            rids,
            decision,
            arm,
            now_s,
            fallback=fallback,
            correction=correction,
            acceptance_arm=acceptance_arm,
        )
        if decision.backend is not None:
            prefill_j = self._work.started(decision.backend, view, now_s)
            if self._share is not None:
                self._share.started(view.request_id, decision.backend, prefill_j, now_s)

    def settings_changed(self, backend: str, settings: Mapping[str, float], now_s: float) -> None:
        """Live settings came into force on a backend: the profile says something else of its steps."""
        self._work.settings_changed(backend, settings, now_s)

    def retracted(self, view: RequestView, backend: str, why: str, now_s: float) -> None:
        """The request was taken back from a backend."""
        self._metrics.retried(backend)
        self.records.retracted(view.request_id, why)
        self._left(view, backend, now_s)

    def ended(self, view: RequestView, outcome: Outcome, now_s: float) -> None:
        """The request ended."""
        record = self.records.ended(outcome)
        chosen = None if record is None else record.last.chosen
        if chosen is not None and chosen.tbt_ms is not None and outcome.tbt_ms is not None:
            self._metrics.tbt_predicted(outcome.arm, outcome.tbt_ms / chosen.tbt_ms)
        if self._share is not None:
            self._outcomes[outcome.backend, outcome.request_id] = outcome
            if len(self._outcomes) > self._share.most_waiting:
                del self._outcomes[next(iter(self._outcomes))]
        self._left(view, outcome.backend, now_s)
        self._compare_steps(view, outcome, now_s)

    def others(self, backend: str, requests: int, now_s: float) -> None:
        """So many requests of others are on a backend."""
        self._work.others(backend, requests, now_s)
        if self._share is not None:
            self._share.others_changed(backend, now_s)

    def begin(self, gpu: str, now_s: float) -> None:
        """The counter of a GPU is followed from now on. Only where energy is metered."""
        assert self._share is not None
        self.by_gpu.setdefault(gpu, GpuTotals())
        self._settle(self._share.begin(gpu, now_s), now_s)

    def reading(self, gpu: str, joules: float, seconds: float, now_s: float) -> None:
        """A GPU drew `joules` in the `seconds` since the last reading. Only where energy is metered."""
        assert self._share is not None
        interval = self._share.reading(gpu, joules, seconds, now_s)
        totals = self.by_gpu[gpu]
        totals.idle_j += interval.idle_j
        totals.others_j += interval.others_j
        totals.requests_j += interval.requests_j
        totals.watts = joules / seconds
        self._metrics.metered(gpu, idle_j=interval.idle_j, others_j=interval.others_j, requests_j=interval.requests_j)
        for backend, (counted_j, modelled_j) in interval.drew.items():
            self.corrections.drew(backend, counted_j, modelled_j, now_s)
        self._settle(interval.settled, now_s)

    def _left(self, view: RequestView, backend: str, now_s: float) -> None:
        self._work.ended(backend, view, now_s)
        if self._share is not None:
            self._share.ended(view.request_id, backend, now_s)

    def _compare_steps(self, view: RequestView, outcome: Outcome, now_s: float) -> None:
        """Steps that the request got, and those by the profile, over its time between first and last token."""
        if outcome.tbt_ms is None or outcome.ttft_ms is None:
            return
        made = float(outcome.verify_passes or 0) if self._drafts[outcome.backend] else outcome.accepted_tokens - 1.0
        if made < _LEAST_STEPS:
            return
        first_s = view.arrival_s + outcome.ttft_ms / 1e3
        last_s = min(now_s, first_s + outcome.tbt_ms * (outcome.accepted_tokens - 1) / 1e3)
        modelled = self._work.steps_between(outcome.backend, first_s, last_s)
        if modelled is not None:
            self.corrections.stepped(outcome.backend, made, modelled, now_s)
            if modelled > 0.0:
                self._outliers.stepped(outcome.backend, made, modelled)

    def _settle(self, settled: Iterable[Settled], now_s: float) -> None:
        for each in settled:
            self.records.settled(each.request_id, each.joules, each.modelled_j)
            if self._log is not None:
                fields = {"t_s": now_s, "id": each.request_id, "backend": each.backend}
                self._log.write("energy", {**fields, "joules": each.joules, "modelled_j": each.modelled_j})
            outcome = self._outcomes.pop((each.backend, each.request_id), None)
            if outcome is None or each.joules is None:
                continue
            kind = self.by_kind.setdefault((outcome.arm, outcome.text_type), EnergyTotals())
            for totals in (self.by_backend[each.backend], kind):
                totals.requests_j += each.joules
                totals.modelled_j += each.modelled_j
                totals.tokens += outcome.accepted_tokens
            self._metrics.settled(outcome, each.joules, each.modelled_j)
