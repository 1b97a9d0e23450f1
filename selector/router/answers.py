"""What the router answers by itself: errors in the shapes that SGLang gives them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import orjson

from selector.errors import SelectorError
from selector.router.routes import Dialect

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

RETRY_SOON: Header = (b"retry-after", b"1")
CLOSE: Header = (b"connection", b"close")

_TYPES = {400: "BadRequestError", 413: "RequestTooLarge", 502: "BadGatewayError", 503: "ServiceUnavailableError"}
_MESSAGES_TYPES = {400: "invalid_request_error", 413: "request_too_large", 503: "overloaded_error"}


class RefusedRequest(SelectorError):
    """A request that the router answers with an error instead of passing an answer on."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        headers: Iterable[Header] = (),
        nested: bool = False,
    ) -> None:
        """`nested` asks for the shape `{"error": {"message"}}` where the route has it."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.headers = tuple(headers)
        self.nested = nested

    async def answer(self, dialect: Dialect, send: Send) -> None:
        """Sends it as the whole response."""
        if dialect is Dialect.MESSAGES:
            kind = _MESSAGES_TYPES.get(self.status, "api_error")
            body: dict[str, object] = {"type": "error", "error": {"type": kind, "message": self.message}}
        elif dialect is Dialect.GENERATE and self.nested:
            body = {"error": {"message": self.message}}
        else:
            body = flat_error(self.status, self.message, self.param)
        await send_json(send, self.status, body, self.headers)


def flat_error(status: int, message: str, param: str | None = None) -> dict[str, object]:
    """SGLang's error body on the OpenAI routes."""
    return {
        "object": "error",
        "message": message,
        "type": _TYPES.get(status, "InternalServerError"),
        "param": param,
        "code": status,
    }


async def send_json(send: Send, status: int, body: object, headers: Iterable[Header] = ()) -> None:
    """A whole JSON response."""
    data = orjson.dumps(body)
    await send_whole(send, status, data, [(b"content-type", b"application/json"), *headers])


async def send_whole(send: Send, status: int, body: bytes, headers: Iterable[Header]) -> None:
    """A whole response; the content length is added."""
    all_headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})


def broken_stream(dialect: Dialect, message: str) -> bytes:
    """The events that end a stream whose backend failed: the error, and the route's end."""
    fault: dict[str, object]
    match dialect:
        case Dialect.OPENAI | Dialect.GENERATE:
            error = {"message": message, "type": "upstream_error", "code": 502}
            return b"data: " + orjson.dumps({"error": error}) + b"\n\ndata: [DONE]\n\n"
        case Dialect.RESPONSES:
            fault = {"type": "error", "code": "upstream_error", "message": message}
            return b"event: error\ndata: " + orjson.dumps(fault) + b"\n\n"
        case Dialect.MESSAGES:
            fault = {"type": "error", "error": {"type": "api_error", "message": message}}
            return b"event: error\ndata: " + orjson.dumps(fault) + b"\n\n"
