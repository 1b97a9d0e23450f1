"""Which headers pass through, in both directions, and those that the router adds."""

from __future__ import annotations

import re
from collections.abc import Iterable

OWN_PREFIX = b"x-drafter-selector-"

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# The body may change length; the host is the backend; events must arrive readable; `expect` was answered here.
_NOT_SENT_ON = _HOP_BY_HOP | {b"host", b"content-length", b"accept-encoding", b"expect"}

_MOST_REASON_CHARS = 256
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")

RawHeaders = Iterable[tuple[bytes, bytes]]


def request_headers(headers: RawHeaders, api_key: str | None) -> list[tuple[bytes, bytes]]:
    """The client's headers as they go to a backend; `api_key`, if the backend has one, replaces the client's."""
    passed = list(_end_to_end(headers, _NOT_SENT_ON))
    if api_key is not None:
        passed = [header for header in passed if header[0].lower() != b"authorization"]
        passed.append((b"authorization", f"Bearer {api_key}".encode()))
    return passed


def response_headers(headers: RawHeaders, *, keep_length: bool) -> list[tuple[bytes, bytes]]:
    """A backend's headers as they go to the client."""
    dropped = _HOP_BY_HOP if keep_length else _HOP_BY_HOP | {b"content-length"}
    return list(_end_to_end(headers, dropped))


def decision_headers(arm: str, backend: str, reason: str) -> list[tuple[bytes, bytes]]:
    """Where a request went, and why."""
    return [
        (OWN_PREFIX + b"arm", _line(arm)),
        (OWN_PREFIX + b"backend", _line(backend)),
        (OWN_PREFIX + b"reason", _line(reason)),
    ]


def _end_to_end(headers: RawHeaders, dropped: frozenset[bytes]) -> Iterable[tuple[bytes, bytes]]:
    """Without those dropped, those that `Connection` names, and those that only this router may set."""
    headers = list(headers)
    named = {
        token.strip().lower() for name, value in headers if name.lower() == b"connection" for token in value.split(b",")
    }
    for name, value in headers:
        lowered = name.lower()
        if lowered not in dropped and lowered not in named and not lowered.startswith(OWN_PREFIX):
            yield name, value


def _line(text: str) -> bytes:
    """One header value: a single line of latin-1, of bounded length."""
    return _CONTROL.sub(" ", text).strip()[:_MOST_REASON_CHARS].encode("latin-1", "replace")
