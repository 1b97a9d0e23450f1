"""What the router says about itself and its fleet: everything but the data path."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import orjson
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response

from selector import __version__
from selector.core.types import BackendView
from selector.files.plainjson import plain
from selector.router.abort import abort
from selector.router.acceptancereport import acceptance_report
from selector.router.answers import CLOSE, RefusedRequest
from selector.router.client import ClientGone, read_body
from selector.router.health import State
from selector.router.loads import LoadReport
from selector.router.models import FleetModels
from selector.router.routes import Dialect
from selector.router.state import RouterState
from selector.router.views import add_views
from selector.router.watch import WatchedBackend

_MOST_ABORT_BYTES = 65_536
"""A name and some flags; nobody makes the router hold more for it."""


def control_app(state: RouterState, *, private: bool, keyed: bool) -> FastAPI:
    """The control routes; unknown paths and wrong methods are answered as SGLang answers them.

    `private` routes tell more than a client needs to know, or change something. Where it is `keyed`, the ring of keys
    is asked at every route but those of health: for a key of control at the private ones, for any at the others.
    """
    app = FastAPI(title="drafter-selector", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(RefusedRequest, _refusal)
    _add_health(app, state)
    app.include_router(_fleet_routes(state), dependencies=_asked_for_keys(state, keyed=keyed, control=False))
    if private:
        keys = _asked_for_keys(state, keyed=keyed, control=True)
        app.include_router(_private_routes(state), dependencies=[*keys, Depends(_from_no_other_site)])
    return app


def _asked_for_keys(state: RouterState, *, keyed: bool, control: bool) -> list[Any]:
    """What FastAPI does before every route of a group."""

    async def look(request: Request) -> None:
        state.keys.look(request.headers.raw, control=control)

    return [Depends(look)] if keyed else []


async def _from_no_other_site(request: Request) -> None:
    """A page that somebody looks at elsewhere can send what it likes to any address that their browser reaches.

    Browsers name the page that a request comes from wherever it could change something; other clients do not.
    """
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        message = "a page of another site may not do this"
        raise RefusedRequest(403, message, headers=[CLOSE], code="permission_denied")


async def _refusal(request: Request, refused: Exception) -> Response:
    assert isinstance(refused, RefusedRequest)
    headers, body = refused.answer(Dialect.OPENAI)
    texts = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    return Response(body, status_code=refused.status, headers=texts)


def _add_health(app: FastAPI, state: RouterState) -> None:

    @app.get("/health")
    async def health() -> Response:
        """The process serves."""
        return Response()

    @app.get("/ready")
    async def ready() -> Response:
        """Requests can be served: a backend is available and the router is not going down."""
        return Response(status_code=200 if state.ready else 503)


def _fleet_routes(state: RouterState) -> APIRouter:
    """What a client may want to know of the fleet, as SGLang tells it of a server."""
    routes = APIRouter()
    models = FleetModels(state)

    @routes.get("/v1/models")
    async def v1_models() -> Response:
        return _json({"object": "list", "data": await models.all()})

    @routes.get("/v1/models/{name:path}")
    async def v1_model(name: str) -> Response:
        card = await models.one(name)
        return _json(_no_model(name), 404) if card is None else _json(card)

    @routes.get("/server_info")
    @routes.get("/get_server_info")
    async def server_info() -> Response:
        return _json(fleet_info(state))

    @routes.get("/model_info")
    @routes.get("/get_model_info")
    async def model_info() -> Response:
        return _json(model_facts(state))

    @routes.get("/v1/loads")
    async def loads() -> Response:
        return _json(fleet_loads(state))

    return routes


def _private_routes(state: RouterState) -> APIRouter:
    """What the people who run the router look at, and what acts on more than one request."""
    routes = APIRouter()

    @routes.get("/metrics")
    async def metrics() -> Response:
        return Response(state.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @routes.get("/router/state")
    async def router_state() -> Response:
        return _json(router_summary(state))

    @routes.get("/router/decisions")
    async def decisions(n: int = Query(default=50, ge=1, le=1000)) -> Response:
        return _json({"events": list(state.dispatcher.journal.recent)[-n:]})

    @routes.post("/abort_request")
    async def abort_request(request: Request) -> Response:
        with suppress(ClientGone):
            await abort(state, await read_body(request.receive, _MOST_ABORT_BYTES))
        return Response()

    add_views(routes, state, _json)
    return routes


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
                "settings": view.settings,
                "settings_fixed": view.settings_fixed,
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
    data = orjson.dumps(document, default=plain, option=orjson.OPT_PASSTHROUGH_DATACLASS)
    return Response(data, status_code=status_code, media_type="application/json")
