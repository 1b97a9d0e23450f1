"""The ASGI application: the data path as it is, everything else through FastAPI."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI

from selector.router.answers import CLOSE, RETRY_SOON, RefusedRequest, Send, send_json
from selector.router.client import Receive
from selector.router.relay import Relay, Scope
from selector.router.routes import ROUTES, Route
from selector.router.state import RouterState


class RouterApp:
    """Dispatches by path. No middleware stands between a client and the relay."""

    def __init__(self, relay: Relay, control: FastAPI, state: RouterState) -> None:
        self._relay = relay
        self._control = control
        self._state = state
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry point."""
        route = ROUTES.get(scope["path"]) if scope["type"] == "http" else None
        if route is None:
            await self._control(scope, receive, send)
        elif scope["method"] != "POST":
            await send_json(send, 405, {"detail": "Method Not Allowed"}, [(b"allow", b"POST")])
        elif self._state.draining:
            refused = RefusedRequest(503, "the router is shutting down", headers=[RETRY_SOON, CLOSE])
            await refused.answer(route.dialect, send)
        else:
            await self._relayed(route, scope, receive, send)

    async def _relayed(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        self._running += 1
        self._idle.clear()
        try:
            await self._relay.serve(route, scope, receive, send)
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def idle(self) -> None:
        """Returns when no request is being relayed."""
        await self._idle.wait()
