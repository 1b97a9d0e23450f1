"""Connects the metrics that are read at a scrape and not counted: what others know already."""

from __future__ import annotations

import math

from selector import __version__
from selector.router.acceptancereport import read_acceptance_metrics
from selector.router.breaker import Circuit
from selector.router.health import State
from selector.router.meters import Meter
from selector.router.state import RouterState


def read_by_metrics(state: RouterState) -> None:
    """All of them, once per router."""
    metrics, controller = state.metrics, state.dispatcher.controller
    about = {"version": __version__, "target": state.target, "policy": state.policy.label}
    metrics.read_gauge("router_info", "What runs.", lambda: 1.0, **about)
    metrics.read_gauge("draining", "Whether new requests are refused.", lambda: float(state.draining))
    metrics.read_counter("policy_failures", "Times the fallback stepped in.", lambda: controller.policy_failures)
    _read_backends(state)
    read_acceptance_metrics(metrics, controller.context.acceptance, state.snapshots, state.sharing)
    _read_corrections(state)
    _read_meters(state)
    budget = state.retries.budget
    metrics.read_gauge("retry_budget_requests", "Retries that there are.", lambda: budget.left(state.now_s()))
    for result, count in (("done", lambda: state.reloads.done), ("refused", lambda: state.reloads.refused)):
        metrics.read_counter("config_reloads", "Configurations taken over, or refused.", count, result=result)
    log = state.log
    if log is not None:
        metrics.read_counter("decision_log_dropped_lines", "Lines that were not written.", lambda: log.dropped)


def _read_backends(state: RouterState) -> None:
    metrics, tracker = state.metrics, state.dispatcher.controller.tracker
    for name, watched in state.watch.backends.items():
        labels = {"backend": name, "arm": watched.upstream.arm}

        def in_flight(name: str = name) -> float:
            return tracker.in_flight(name)

        def foreign(name: str = name) -> float:
            return tracker.foreign(name)

        def available(name: str = name) -> float:
            return float(state.watch.backends[name].state is State.AVAILABLE)

        metrics.read_gauge("in_flight_requests", "Requests on a backend.", in_flight, **labels)
        metrics.read_gauge("foreign_requests", "Requests on a backend that others sent.", foreign, **labels)
        metrics.read_gauge("backend_available", "Whether a backend gets requests.", available, **labels)
        for setting in state.dispatcher.controller.context.spec(name).settings[:1]:
            for knob in setting.values:

                def in_force(name: str = name, knob: str = knob) -> float:
                    return tracker.settings(name)[knob]

                metrics.read_gauge("live_setting", "A live setting in force.", in_force, **labels, setting=knob)

        def openings(name: str = name) -> float:
            return state.watch.backends[name].breaker.openings

        def ejections(name: str = name) -> float:
            return state.watch.outliers.counts[name]

        metrics.read_counter("breaker_openings", "Times a circuit breaker opened.", openings, **labels)
        metrics.read_counter("outlier_ejections", "Times a backend was left out for its peers.", ejections, **labels)
        for circuit in Circuit:

            def is_in(name: str = name, circuit: Circuit = circuit) -> float:
                return float(state.watch.backends[name].breaker.circuit is circuit)

            metrics.read_gauge(
                "breaker_state", "1 for the state a circuit breaker is in.", is_in, **labels, circuit=circuit.value
            )
        for wanted in State:

            def is_so(name: str = name, wanted: State = wanted) -> float:
                return float(state.watch.backends[name].state is wanted)

            metrics.read_gauge("backend_state", "1 for the state a backend is in.", is_so, **labels, state=wanted.value)


def _read_corrections(state: RouterState) -> None:
    metrics, model = state.metrics, state.dispatcher.books.corrections
    for name, watched in state.watch.backends.items():
        labels = {"backend": name, "arm": watched.upstream.arm}

        def step_time(name: str = name) -> float:
            return _known(model.ratios(name).step_time_frac)

        def power(name: str = name) -> float:
            return _known(model.ratios(name).power_frac)

        def time_factor(name: str = name) -> float:
            return model.in_force(name).step_time_frac

        def energy_factor(name: str = name) -> float:
            return model.in_force(name).step_energy_frac

        for what, observed in (("step_time", step_time), ("power", power)):
            metrics.read_gauge(
                "observed_ratio", "Observed over the profile, recently; NaN: unknown.", observed, **labels, of=what
            )
        for what, factor in (("step_time", time_factor), ("step_energy", energy_factor)):
            metrics.read_gauge("correction_ratio", "Factor on the profile in force.", factor, **labels, of=what)


def _read_meters(state: RouterState) -> None:
    meters = state.meters
    if meters is None:
        return
    metrics = state.metrics
    metrics.read_gauge("unmetered_gpus", "GPUs that no meter tells of.", lambda: float(len(meters.unmetered)))
    for meter in meters.meters:
        labels = {"meter": meter.name}

        def is_up(meter: Meter = meter) -> float:
            return float(meter.up)

        def failures(meter: Meter = meter) -> float:
            return meter.failures

        def refused(meter: Meter = meter) -> float:
            return meter.refused

        def age_s(meter: Meter = meter) -> float:
            return _known(None if meter.answered_s is None else state.now_s() - meter.answered_s)

        metrics.read_gauge("meter_up", "Whether a meter answered the last time.", is_up, **labels)
        metrics.read_counter("meter_failures", "Times that a meter did not answer.", failures, **labels)
        metrics.read_counter("meter_refused_readings", "Readings that cannot be.", refused, **labels)
        metrics.read_gauge("meter_age_seconds", "Since a meter answered; NaN: never.", age_s, **labels)


def _known(value: float | None) -> float:
    """Absent is not 0."""
    return math.nan if value is None else value
