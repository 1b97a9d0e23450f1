"""Requests that are answered with an error, in SGLang's three shapes.

schema   {"object": "error", "message", "type": "Bad Request", …}      a body that is not what the route expects
value    {"object": "error", "message", "type": "BadRequestError", …}  on /v1/*
         {"error": {"message"}}                                        on /generate
path     {"detail"}                                                    no such path or method
"""

from __future__ import annotations

from selector.errors import SelectorError


class Refusal(SelectorError):
    """A request that the server will not serve. `schema` tells a malformed body from a value out of range."""

    def __init__(self, message: str, *, schema: bool, error_type: str) -> None:
        super().__init__(message)
        self.message = message
        self.schema = schema
        self.error_type = error_type

    @classmethod
    def of_value(cls, message: str, *, error_type: str = "BadRequestError") -> Refusal:
        """A field has a value that the server does not take."""
        return cls(message, schema=False, error_type=error_type)

    @classmethod
    def of_schema(cls, kind: str, location: tuple[str | int, ...], message: str, value: object) -> Refusal:
        """The body is not what the route expects; the wording is pydantic's, as SGLang passes it on."""
        finding = {"type": kind, "loc": location, "msg": message, "input": value}
        return cls(f"1 validation error:\n  {finding}", schema=True, error_type="Bad Request")


def error_body(message: str, error_type: str, code: int) -> dict[str, object]:
    """The flat error of SGLang's OpenAI routes."""
    return {"object": "error", "message": message, "type": error_type, "param": None, "code": code}


def refusal_body(refusal: Refusal, *, native: bool) -> dict[str, object]:
    """The body of a 400 answer, on `/generate` (`native`) or on the other routes."""
    if native and not refusal.schema:
        return {"error": {"message": refusal.message}}
    return error_body(refusal.message, refusal.error_type, 400)


def native_stream_error(refusal: Refusal) -> dict[str, object]:
    """The event that a `/generate` stream carries instead of an answer; its HTTP status is 200."""
    return {"error": {"message": refusal.message, "type": "invalid_request_error", "code": 400, "retryable": False}}
