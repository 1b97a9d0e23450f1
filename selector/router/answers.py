"""What the router answers by itself: errors in the shapes that SGLang gives them."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from selector.errors import SelectorError
from selector.router.routes import Dialect

Header = tuple[bytes, bytes]

RETRY_SOON: Header = (b"retry-after", b"1")
CLOSE: Header = (b"connection", b"close")

_TYPES = {400: "BadRequestError", 413: "RequestTooLarge", 502: "BadGatewayError", 503: "ServiceUnavailableError"}
_OPENAI_TYPES = {401: "invalid_request_error", 403: "invalid_request_error", 429: "requests"}
_MESSAGES_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


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
        code: str | None = None,
    ) -> None:
        """`nested` asks for the shape `{"error": {"message"}}` where the route has it.

        `code` is OpenAI's name of an error that SGLang does not know, which is then in OpenAI's own shape.
        """
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.headers = tuple(headers)
        self.nested = nested
        self.code = code

    def answer(self, dialect: Dialect) -> tuple[list[Header], bytes]:
        """Headers and body of the response."""
        if dialect is Dialect.MESSAGES:
            kind = _MESSAGES_TYPES.get(self.status, "api_error")
            body: dict[str, object] = {"type": "error", "error": {"type": kind, "message": self.message}}
        elif self.code is not None:
            kind = _OPENAI_TYPES[self.status]
            body = {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}
        elif dialect is Dialect.GENERATE and self.nested:
            body = {"error": {"message": self.message}}
        else:
            body = flat_error(self.status, self.message, self.param)
        return [(b"content-type", b"application/json"), *self.headers], orjson.dumps(body)


def too_large(max_body_bytes: int) -> RefusedRequest:
    """The refusal of a body over the limit. The rest of it is not read, so the connection cannot be used again."""
    return RefusedRequest(413, f"the body is larger than {max_body_bytes} bytes", headers=[CLOSE])


def method_not_allowed() -> tuple[list[Header], bytes]:
    """Headers and body of a 405, as SGLang gives them."""
    headers = [(b"content-type", b"application/json"), (b"allow", b"POST")]
    return headers, orjson.dumps({"detail": "Method Not Allowed"})


def flat_error(status: int, message: str, param: str | None = None) -> dict[str, object]:
    """SGLang's error body on the OpenAI routes."""
    return {
        "object": "error",
        "message": message,
        "type": _TYPES.get(status, "InternalServerError"),
        "param": param,
        "code": status,
    }


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
