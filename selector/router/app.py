"""The ASGI application: what the library server hands over. Everything but the data path goes through FastAPI."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

from selector.router.answers import RefusedRequest, method_not_allowed
from selector.router.client import (
    AsgiClient,
    ClientGone,
    ClientWatch,
    Incoming,
    Receive,
    Scope,
    Send,
    read_body,
    refuse,
)
from selector.router.routes import ROUTES, Route
from selector.router.serving import Serving

_QUERY_SAFE = "!$%&'()*+,/:;=?@[]~"
"""Everything a query may hold as it is; a client's own escapes stay."""


class RouterApp:
    """Dispatches by path. No middleware stands between a client and the relay."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry point."""
        route = ROUTES.get(scope["path"]) if scope["type"] == "http" else None
        if route is None:
            await self._serving.control(scope, receive, send)
            return
        client = AsgiClient(send, chunks=scope["http_version"] != "1.0")
        pump = asyncio.create_task(client.pump())
        try:
            if scope["method"] != "POST":
                client.whole(405, *method_not_allowed())
            else:
                await self._relayed(route, scope, receive, client)
            client.close()
            await pump
        except ClientGone:
            pass
        finally:
            pump.cancel()

    async def _relayed(self, route: Route, scope: Scope, receive: Receive, client: AsgiClient) -> None:
        headers, admission = scope["headers"], self._serving.admission
        try:
            lease = admission.admit(headers, _declared_length(headers))
        except RefusedRequest as refused:
            refuse(client, route, refused, admission.metrics)
            return
        try:
            body = await read_body(receive, admission.max_body_bytes)
            query = quote(scope["query_string"], safe=_QUERY_SAFE).encode()
            incoming = Incoming(route=route, query=query, headers=headers, body=body, lease=lease)
            del body
            async with ClientWatch(receive):
                await self._serving.relay.serve(incoming, client)
        except RefusedRequest as refused:
            refuse(client, route, refused, admission.metrics)
        finally:
            lease.end()


class PrivateApp:
    """What the control port answers, by the configuration in force."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry point."""
        await self._serving.private(scope, receive, send)


def _declared_length(headers: list[tuple[bytes, bytes]]) -> int | None:
    values = [value for name, value in headers if name == b"content-length"]
    return int(values[0]) if values and values[0].isdigit() else None
