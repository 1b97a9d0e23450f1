"""What the router says about itself and its fleet: everything but the data path."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
from fastapi import FastAPI, Query, Request, Response

from selector import __version__
from selector.core.types import BackendView
from selector.router.acceptancereport import acceptance_report
from selector.router.answers import flat_error
from selector.router.health import State
from selector.router.loads import LoadReport
from selector.router.models import FleetModels
from selector.router.state import RouterState
from selector.router.views import add_views
from selector.router.watch import WatchedBackend


def control_app(state: RouterState) -> FastAPI:
    """The control routes; unknown paths and wrong methods are answered as SGLang answers them."""
    app = FastAPI(title="drafter-selector", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    models = FleetModels(state)

    @app.get("/health")
    async def health() -> Response:
        """The process serves."""
        return Response()

    @app.get("/ready")
    async def ready() -> Response:
        """Requests can be served: a backend is available and the router is not going down."""
        return Response(status_code=200 if state.ready else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(state.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/models")
    async def v1_models() -> Response:
        return _json({"object": "list", "data": await models.all()})

    @app.get("/v1/models/{name:path}")
    async def v1_model(name: str) -> Response:
        card = await models.one(name)
        return _json(_no_model(name), 404) if card is None else _json(card)

    @app.get("/server_info")
    @app.get("/get_server_info")
    async def server_info() -> Response:
        return _json(fleet_info(state))

    @app.get("/model_info")
    @app.get("/get_model_info")
    async def model_info() -> Response:
        return _json(model_facts(state))

    @app.get("/v1/loads")
    async def loads() -> Response:
        return _json(fleet_loads(state))

    @app.get("/router/state")
    async def router_state() -> Response:
        return _json(router_summary(state))

    @app.get("/router/decisions")
    async def decisions(n: int = Query(default=50, ge=1, le=1000)) -> Response:
        return _json({"events": list(state.dispatcher.recent)[-n:]})

    @app.post("/abort_request")
    async def abort_request(request: Request) -> Response:
        return await _abort(state, await request.body())

    add_views(app, state, _json)
    return app


def router_summary(state: RouterState) -> dict[str, Any]:
    """Policy, health and load: what a person wants to see first."""
    controller = state.dispatcher.controller
    now_s = state.now_s()
    log = state.log
    return {
        "version": __version__,
        "target": state.target,
        "uptime_s": now_s,
        "draining": state.draining,
        "policy": state.policy.model_dump(),
        "fallback": state.fallback.model_dump(),
        "policy_failures": controller.policy_failures,
        "last_policy_failure": controller.last_policy_failure,
        "in_flight": len(state.dispatcher.flights),
        "backends": [
            {
                "name": view.name,
                "arm": view.arm,
                "url": watched.upstream.url,
                "state": watched.state,
                "reason": watched.reason,
                "differences": watched.differences,
                "breaker": watched.breaker.circuit,
                "breaker_openings": watched.breaker.openings,
                "ejections": state.watch.outliers.counts[view.name],
                "version": watched.facts.version,
                "batch": view.batch,
                "own_in_flight": controller.tracker.in_flight(view.name),
                "waiting": view.waiting,
                "kv_tokens": view.kv_tokens,
                "polled_age_s": _age_s(controller.tracker.polled_s(view.name), now_s),
                "groups": view.groups,
            }
            for view, watched in _backends(state)
        ],
        "acceptance": controller.context.acceptance.snapshot(),
        "acceptance_samples": controller.context.acceptance.samples,
        "acceptance_refused_samples": controller.context.acceptance.refused_samples,
        "acceptance_learning": acceptance_report(controller.context.acceptance, state.snapshots, state.sharing),
        "configuration": {
            "since": state.reloads.since,
            "reloads": state.reloads.done,
            "refused": state.reloads.refused,
            "last_problem": state.reloads.last_problem,
            "needs_restart": state.reloads.kept_back,
        },
        "decision_log": log and {"path": str(log.path), "dropped": log.dropped, "last_error": log.last_error},
    }


def fleet_info(state: RouterState) -> dict[str, Any]:
    """`/server_info` of the fleet: sums over its backends, and each of them.

    `internal_states` has one entry, since the fleet is one server to its clients. Its accept length is the mean over
    all decode steps of all backends since they started, `None` when none told. The limits are those the router keeps
    to, summed over backends that get requests; `context_length` is the longest that any of all could take.
    """
    watched = state.watch.backends.values()
    reports = [backend.report for backend in watched if backend.report is not None]
    steps = sum(report.request_steps or 0.0 for report in reports)
    tokens = sum(report.accepted_tokens or 0.0 for report in reports)
    views = [view for view, _ in _backends(state)]
    serving = [view for view in views if view.available]
    return {
        **model_facts(state),
        "router": "drafter-selector",
        "router_version": __version__,
        "version": _same([backend.facts.version for backend in watched]),
        "status": "ready" if state.ready else "unavailable",
        "context_length": max(view.max_context_tokens for view in views),
        "max_running_requests": sum(view.max_running_requests for view in serving),
        "max_total_num_tokens": sum(view.max_kv_tokens for view in serving),
        "internal_states": [{"avg_spec_accept_length": tokens / steps if steps else None}],
        "backends": [
            {
                "name": view.name,
                "arm": view.arm,
                "gpus": view.gpus,
                "state": backend.state,
                "reason": backend.reason,
                "version": backend.facts.version,
                "avg_spec_accept_length": None if backend.report is None else backend.report.accept_length,
            }
            for view, backend in _backends(state)
        ],
    }


def model_facts(state: RouterState) -> dict[str, Any]:
    """`/model_info`: what the backends agree on, else the target of the fleet file."""
    facts = [backend.facts for backend in state.watch.backends.values()]
    path = _same([fact.model_path for fact in facts]) or state.target
    return {
        "model_path": path,
        "tokenizer_path": _same([fact.tokenizer_path for fact in facts]) or path,
        "served_model_name": _same([fact.served_model_name for fact in facts]) or state.target,
        "is_generation": True,
    }


def fleet_loads(state: RouterState) -> dict[str, Any]:
    """`/v1/loads` of the fleet: one load per backend, as last polled, with the router's own count beside it.

    What a backend that does not answer had to do when it last did is of no use to anybody: its counts are null.
    """
    loads = []
    now_s = state.now_s()
    for rank, (view, backend) in enumerate(_backends(state)):
        report = _report_of(backend)
        signal = None if report is None else report.signal
        loads.append(
            {
                "dp_rank": rank,
                "backend": view.name,
                "arm": view.arm,
                "available": view.available,
                "polled_age_s": _age_s(state.dispatcher.controller.tracker.polled_s(view.name), now_s),
                "num_running_reqs": signal and signal.running,
                "num_waiting_reqs": signal and signal.waiting,
                "num_used_tokens": signal and signal.kv_tokens,
                "max_running_requests": view.max_running_requests,
                "max_total_num_tokens": view.max_kv_tokens,
                "gen_throughput": report and report.gen_throughput,
                "num_in_flight_reqs": state.dispatcher.controller.tracker.in_flight(view.name),
                "speculative": {"accept_length": report and report.accept_length},
            }
        )
    return {"timestamp": datetime.now(UTC).isoformat(), "version": __version__, "loads": loads}


async def _abort(state: RouterState, body: bytes) -> Response:
    """Passes an abort on to the backend that has the request; to all when it is not one of ours.

    Another router may have sent it there. Aborting what a backend does not know does nothing.
    """
    try:
        wanted = orjson.loads(body)
    except orjson.JSONDecodeError:
        wanted = None
    rid = wanted.get("rid", "") if isinstance(wanted, Mapping) else None
    if not isinstance(wanted, Mapping) or not isinstance(rid, str):
        return _json(flat_error(400, "the body must be an object with a string rid", "rid"), 400)
    everything = wanted.get("abort_all") is True
    if not rid and not everything:
        return Response()  # as SGLang does: an empty rid would match every request
    known = {flight.backend for flight in state.dispatcher.flights.values() if rid in flight.request.rids}
    for name, backend in state.watch.backends.items():
        if everything or not known or name in known:
            await backend.upstream.abort(body)
    return Response()


def _backends(state: RouterState) -> list[tuple[BackendView, WatchedBackend]]:
    views = state.dispatcher.controller.tracker.view(state.now_s()).backends
    return [(view, state.watch.backends[view.name]) for view in views]


def _age_s(then_s: float | None, now_s: float) -> float | None:
    return None if then_s is None else now_s - then_s


def _report_of(backend: WatchedBackend) -> LoadReport | None:
    return None if backend.state is State.UNAVAILABLE else backend.report


def _no_model(name: str) -> dict[str, object]:
    """What SGLang says of a model that it does not serve."""
    message = f"The model '{name}' does not exist"
    return {"error": {"message": message, "type": "invalid_request_error", "param": "model", "code": "model_not_found"}}


def _same(values: list[str | None]) -> str | None:
    """The value that all who know one agree on."""
    known = {value for value in values if value is not None}
    return known.pop() if len(known) == 1 else None


def _json(document: object, status_code: int = 200) -> Response:
    data = orjson.dumps(document, default=_plain)
    return Response(data, status_code=status_code, media_type="application/json")


def _plain(value: object) -> object:
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be shown")
