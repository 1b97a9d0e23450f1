"""`/abort_request`: passed on to the backend that has the request; to all when it is not one of this router's."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from selector.router.answers import RefusedRequest
from selector.router.state import RouterState


async def abort(state: RouterState, body: bytes) -> None:
    """Passes an abort on. Raises `RefusedRequest` (400) for a body that is none.

    Another router may have sent the request there. Aborting what a backend does not know does nothing.
    """
    try:
        wanted = orjson.loads(body)
    except orjson.JSONDecodeError:
        wanted = None
    rid = wanted.get("rid", "") if isinstance(wanted, Mapping) else None
    if not isinstance(wanted, Mapping) or not isinstance(rid, str):
        raise RefusedRequest(400, "the body must be an object with a string rid", param="rid")
    everything = wanted.get("abort_all") is True
    if not rid and not everything:
        return  # as SGLang does: an empty rid would match every request
    known = {flight.backend for flight in state.dispatcher.flights.values() if rid in flight.request.rids}
    for name, backend in state.watch.backends.items():
        if everything or not known or name in known:
            await backend.upstream.abort(body)
