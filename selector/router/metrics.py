"""What the router tells Prometheus, in a registry of its own, in base units."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from selector.core.types import Finish, Outcome, RequestView
from selector.router.retries import Denied

_TBT_BUCKETS_S = (0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0)
_TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0)
_RATIO_BUCKETS = (0.25, 0.5, 0.67, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)
_MOST_REASON_KINDS = 32
_KIND = re.compile(r"[^\d:;,(]*")
_PREFIX = "drafter_selector_"

Reading = Callable[[], float]
_Labelled = TypeVar("_Labelled", Counter, Gauge, Histogram)
_Family = type[CounterMetricFamily] | type[GaugeMetricFamily]


class KeepsBack(Protocol):
    """Tells metrics some things later."""

    def catch_up(self) -> None:
        """Tells everything that was kept back."""


class RouterMetrics:
    """All metrics. Label values come from the fleet file or are bounded in number."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._readings = _Readings()
        self._registry.register(self._readings)
        self._keepers: WeakSet[KeepsBack] = WeakSet()
        self._reason_kinds: set[str] = set()
        self._children: dict[tuple[object, tuple[str, ...]], Any] = {}
        self._decisions = self._counter("decisions", "Decisions, by arm and kind of reason.", ["arm", "reason"])
        self._outcomes = self._counter("outcomes", "Requests that ended, by how.", ["arm", "finish"])
        self._attainment = self._counter(
            "tbt_target", "Requests with a target: met, missed, or unknown.", ["slo_class", "result"]
        )
        self._accepted_tokens = self._counter("accepted_tokens", "Tokens delivered.", ["arm", "text_type"])
        self._tbt = self._histogram(
            "tbt_seconds", "Mean time between tokens of a request.", "slo_class", _TBT_BUCKETS_S
        )
        self._ttft = self._histogram("ttft_seconds", "Time to the first token.", "slo_class", _TTFT_BUCKETS_S)
        self._tbt_ratio = self._histogram(
            "tbt_prediction_ratio", "Time between tokens over what the policy predicted.", "arm", _RATIO_BUCKETS
        )
        self._retries = self._counter("retries", "Requests taken back before the first byte.", ["backend"])
        self.retries_denied = self._counter("retries_denied", "Requests not sent again, by why.", ["why"])
        for why in Denied:
            self.retries_denied.labels(why.value)  # 0 is a value, and an alert needs it
        self._state_changes = self._counter(
            "backend_state_changes", "Times a backend became available or not.", ["backend", "available"]
        )
        self._settings = self._counter(
            "settings_changes",
            "Asked for live settings: in force, refused, failed.",
            ["backend", "result"],
        )
        drawn = ["backend", "arm", "text_type"]
        self._request_joules = self._counter("request_energy_joules", "Board energy of requests, shared out.", drawn)
        self._modelled_joules = self._counter("modelled_energy_joules", "Of the same, by the profile.", drawn)
        self._metered_tokens = self._counter("metered_tokens", "Tokens of the same.", drawn)
        self._energy_ratio = self._histogram(
            "energy_prediction_ratio", "Joules of a request over those by the profile.", "arm", _RATIO_BUCKETS
        )
        self._gpu_joules = self._counter(
            "gpu_energy_joules", "Board energy by what it went into: requests, others, idle.", ["gpu", "part"]
        )
        self.upstream_errors = self._counter("upstream_errors", "Failures of backends under requests.", ["backend"])
        self.refused_requests = self._counter("refused_requests", "Requests that the router answered.", ["status"])
        self._key_requests = self._counter(
            "key_requests", "Requests by whose key they came with and what became of them.", ["holder", "result"]
        )
        self._key_in_flight = self._gauge(
            "key_in_flight_requests", "Requests that a holder of a key has under way.", ["holder"]
        )
        self.refused_rates = self._counter("refused_accept_rates", "Accept rates outside 0 to 1.", [])

    def ask_before_a_scrape(self, keeper: KeepsBack) -> None:
        """`keeper`, as long as it lives, is asked before each scrape to tell what it has kept back."""
        self._keepers.add(keeper)

    def decided(self, arm: str | None, reason: str) -> None:
        """A policy decided."""
        self._of(self._decisions, "" if arm is None else arm, self.reason_kind(reason)).inc()

    def reason_kind(self, reason: str) -> str:
        """The words of a reason before its first number or aside: reasons are free text, label values must be few."""
        match = _KIND.match(reason)
        kind = match.group().strip() if match else ""
        if kind not in self._reason_kinds:
            if len(self._reason_kinds) >= _MOST_REASON_KINDS:
                return "other"
            self._reason_kinds.add(kind)
        return kind

    def ended(self, request: RequestView, outcome: Outcome) -> None:
        """A request ended."""
        self._of(self._outcomes, outcome.arm, outcome.finish.value).inc()
        self._of(self._accepted_tokens, outcome.arm, outcome.text_type).inc(outcome.accepted_tokens)
        if outcome.tbt_ms is not None:
            self._of(self._tbt, request.slo_class).observe(outcome.tbt_ms / 1e3)
        if outcome.ttft_ms is not None:
            self._of(self._ttft, request.slo_class).observe(outcome.ttft_ms / 1e3)
        if request.tbt_target_ms is not None:
            self._of(self._attainment, request.slo_class, _attained(request.tbt_target_ms, outcome)).inc()

    def retried(self, backend: str) -> None:
        """A request was taken back from a backend before its first byte."""
        self._of(self._retries, backend).inc()

    def keyed(self, holder: str, result: str) -> None:
        """A request came with a key: admitted, forbidden, or over a limit (limited)."""
        self._of(self._key_requests, holder, result).inc()

    def key_in_flight(self, holder: str) -> Gauge:
        """Where the requests that a holder has under way are counted."""
        return self._of(self._key_in_flight, holder)

    def availability_changed(self, backend: str, available: bool) -> None:
        """A backend gets requests from now on, or none."""
        self._of(self._state_changes, backend, "true" if available else "false").inc()

    def settings_asked_for(self, backend: str, result: str) -> None:
        """A backend was asked for live settings, or started with them."""
        self._of(self._settings, backend, result).inc()

    def tbt_predicted(self, arm: str, ratio: float) -> None:
        """A request whose TBT was predicted ended at `ratio` times that."""
        self._of(self._tbt_ratio, arm).observe(ratio)

    def metered(self, gpu: str, *, idle_j: float, others_j: float, requests_j: float) -> None:
        """A board was read."""
        for part, joules in (("idle", idle_j), ("others", others_j), ("requests", requests_j)):
            self._of(self._gpu_joules, gpu, part).inc(max(0.0, joules))

    def settled(self, outcome: Outcome, joules: float, modelled_j: float) -> None:
        """What a request drew is known."""
        labels = outcome.backend, outcome.arm, outcome.text_type
        self._of(self._request_joules, *labels).inc(joules)
        self._of(self._modelled_joules, *labels).inc(modelled_j)
        self._of(self._metered_tokens, *labels).inc(outcome.accepted_tokens)
        if modelled_j > 0.0:
            self._of(self._energy_ratio, outcome.arm).observe(joules / modelled_j)

    def _of(self, metric: _Labelled, *labels: str) -> _Labelled:
        """The metric for these label values. `labels` checks and locks each time, and there are few that ever come."""
        key = (metric, labels)
        child: _Labelled | None = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*labels)
        return child

    def read_gauge(self, name: str, text: str, value: Reading, **labels: str) -> None:
        """A gauge whose value is read at each scrape; once per set of label values."""
        self._readings.add(GaugeMetricFamily, name, text, value, labels)

    def read_counter(self, name: str, text: str, value: Reading, **labels: str) -> None:
        """A counter that somebody else keeps, read at each scrape."""
        self._readings.add(CounterMetricFamily, name, text, value, labels)

    def forget_readings(self) -> None:
        """What is read at a scrape is connected anew; what is counted stays."""
        self._readings.clear()

    def render(self) -> bytes:
        """The text exposition format."""
        for keeper in list(self._keepers):
            keeper.catch_up()
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, labels: Iterable[str]) -> Counter:
        return Counter(_PREFIX + name, text, list(labels), registry=self._registry)

    def _gauge(self, name: str, text: str, labels: Iterable[str]) -> Gauge:
        return Gauge(_PREFIX + name, text, list(labels), registry=self._registry)

    def _histogram(self, name: str, text: str, label: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(_PREFIX + name, text, [label], buckets=buckets, registry=self._registry)


def _attained(target_ms: float, outcome: Outcome) -> str:
    if outcome.finish is Finish.FAILED:
        return "missed"
    if outcome.finish is Finish.CANCELLED or outcome.tbt_ms is None:
        return "unknown"
    return "met" if outcome.tbt_ms <= target_ms else "missed"


class _Readings(Collector):
    """Values that live elsewhere."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[_Family, str, list[tuple[Mapping[str, str], Reading]]]] = {}

    def add(self, family: _Family, name: str, text: str, value: Reading, labels: Mapping[str, str]) -> None:
        self._families.setdefault(name, (family, text, []))[2].append((labels, value))

    def clear(self) -> None:
        self._families.clear()

    def collect(self) -> Iterator[Metric]:
        for name, (family, text, values) in self._families.items():
            metric = family(_PREFIX + name, text, labels=list(values[0][0]))
            for labels, value in values:
                metric.add_metric(list(labels.values()), value())
            yield metric
