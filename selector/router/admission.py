"""The one place where a request is let in, from its head alone: before its body is read and before any policy sees it.

Both ways into the relay ask here, and so do the routes by which the router tells of itself. Whatever may turn a request
away for who sent it or for how much is going on belongs here, or in the ring of keys behind it, and nowhere else.
"""

from __future__ import annotations

from selector.router.answers import CLOSE, RETRY_SOON, RefusedRequest, too_large
from selector.router.keyring import Lease
from selector.router.state import RouterState
from selector.router.wire import Headers


class Admission:
    """Admits or refuses."""

    def __init__(self, state: RouterState, *, max_body_bytes: int) -> None:
        self.max_body_bytes = max_body_bytes
        self.metrics = state.metrics
        self._state = state

    def admit(self, headers: Headers, length: int | None) -> Lease:
        """Leave to come in, to be ended when the request is over. Raises `RefusedRequest`.

        `headers` have their names in lower case; `length` is the declared length of the body, if it has one. A refused
        request's body is not read, so the refusal closes the connection.
        """
        if self._state.draining:
            raise RefusedRequest(503, "the router is shutting down", headers=[RETRY_SOON, CLOSE])
        if length is not None and length > self.max_body_bytes:
            raise too_large(self.max_body_bytes)
        return self._state.keys.admit(headers)
