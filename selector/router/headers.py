"""Which headers pass through, in both directions, and those that the router adds. All names are in lower case."""

from __future__ import annotations

import re

from selector.router.wire import Headers

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
_NOT_PASSED_ON = _HOP_BY_HOP | {b"content-length"}

_MOST_REASON_CHARS = 256
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def request_headers(headers: Headers, api_key: str | None) -> Headers:
    """The client's headers as they go to a backend; `api_key`, if the backend has one, replaces the client's."""
    passed = _end_to_end(headers, _NOT_SENT_ON)
    if api_key is not None:
        passed = [header for header in passed if header[0] != b"authorization"]
        passed.append((b"authorization", f"Bearer {api_key}".encode()))
    return passed


def response_headers(headers: Headers) -> Headers:
    """A backend's headers as they go to the client; whoever writes the body says how long it is."""
    return _end_to_end(headers, _NOT_PASSED_ON)


def decision_headers(rid: str, arm: str, backend: str, reason: str, predicted_tbt_ms: float | None) -> Headers:
    """Where a request went and why, and by which name `/explain` says more."""
    headers = [
        (OWN_PREFIX + b"arm", _line(arm)),
        (OWN_PREFIX + b"backend", _line(backend)),
        (OWN_PREFIX + b"reason", _line(reason)),
        (OWN_PREFIX + b"rid", _line(rid)),
    ]
    if predicted_tbt_ms is not None:
        headers.append((OWN_PREFIX + b"predicted-tbt-ms", b"%.3f" % predicted_tbt_ms))
    return headers


def _end_to_end(headers: Headers, dropped: frozenset[bytes]) -> Headers:
    """Without those dropped, those that `Connection` names, and those that only this router may set."""
    named = [value for name, value in headers if name == b"connection"]
    if named:
        dropped = dropped.union(token.strip().lower() for value in named for token in value.split(b","))
    return [header for header in headers if header[0] not in dropped and not header[0].startswith(OWN_PREFIX)]


def _line(text: str) -> bytes:
    """One header value: a single line of latin-1, of bounded length."""
    return _CONTROL.sub(" ", text).strip()[:_MOST_REASON_CHARS].encode("latin-1", "replace")
