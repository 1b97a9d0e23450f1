"""The control routes that people look through: dashboard, what it shows, explanations, and resetting corrections."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Query, Response

from selector.router.corrections import corrections_report, reset
from selector.router.dashboard import dashboard_page
from selector.router.explain import explanation
from selector.router.live import live_document
from selector.router.state import RouterState

_NEVER_KEPT = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


def add_views(routes: APIRouter, state: RouterState, json: Callable[..., Response]) -> None:
    """Adds the routes; `json` makes an answer of a document and a status."""
    page, page_headers = dashboard_page()

    @routes.get("/")
    @routes.get("/dashboard")
    async def dashboard() -> Response:
        return Response(page, media_type="text/html; charset=utf-8", headers=page_headers)

    @routes.get("/router/live")
    async def live() -> Response:
        return _fresh(json(live_document(state)))

    @routes.get("/explain")
    async def explain(rid: str = Query(default="", max_length=1024)) -> Response:
        """By the name in `x-drafter-selector-rid`, or the client's own `rid`."""
        books, context = state.dispatcher.books, state.dispatcher.controller.context
        record = books.records.find(rid)
        if record is None:
            kept = len(books.records)
            detail = f"no request of that name among the last {kept}; the router's names are in x-drafter-selector-rid"
            return _fresh(json({"detail": detail}, 404))
        return _fresh(json(explanation(record, context.acceptance, context.tbt_quantile)))

    @routes.get("/router/corrections")
    async def corrections() -> Response:
        return _fresh(json(corrections_report(state.dispatcher, enabled=state.corrects)))

    @routes.post("/router/corrections/reset")
    async def reset_corrections() -> Response:
        """Back to the profile."""
        return json({"reset": reset(state.dispatcher)})


def _fresh(response: Response) -> Response:
    response.headers.update(_NEVER_KEPT)
    return response
