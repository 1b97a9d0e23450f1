"""Which headers pass through, in both directions, and those that the router adds. All names are in lower case."""

from __future__ import annotations

import re
from functools import lru_cache

from selector.files.security import Security
from selector.router.wire import Headers

OWN_PREFIX = b"x-drafter-selector-"
_ARM, _BACKEND, _REASON, _RID, _PREDICTED_TBT_MS = (
    OWN_PREFIX + name for name in (b"arm", b"backend", b"reason", b"rid", b"predicted-tbt-ms")
)

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

_CREDENTIALS = frozenset({b"authorization", b"x-api-key"})
_FORWARDED = frozenset({b"forwarded", b"x-real-ip"})
_FORWARDED_PREFIX = b"x-forwarded-"
_NOT_HOP_BY_HOP = _CREDENTIALS | {b"accept", b"content-type", b"traceparent", b"tracestate"}
"""What `Connection` cannot make the router drop: a backend would take the request for another one."""

_MOST_REASON_CHARS = 256
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


class Passing:
    """Which of a client's headers go on to backends, by the rules of one fleet file."""

    def __init__(self, options: Security) -> None:
        self._authorization = options.pass_authorization
        self._not_sent_on = _NOT_SENT_ON if options.pass_forwarded else _NOT_SENT_ON | _FORWARDED
        self._without_credentials = self._not_sent_on | _CREDENTIALS
        self._prefixes = (OWN_PREFIX,) if options.pass_forwarded else (OWN_PREFIX, _FORWARDED_PREFIX)

    def request_headers(self, headers: Headers, api_key: str | None, *, keyed: bool) -> Headers:
        """The client's headers as they go to a backend; `api_key`, if the backend has one, replaces the client's.

        `keyed`: the router asked for a key itself, so that what the client sent was meant for it alone, unless the
        fleet file says otherwise.
        """
        passes = self._authorization if self._authorization is not None else not keyed
        if passes and api_key is None:
            return _end_to_end(headers, self._not_sent_on, self._prefixes)
        passed = _end_to_end(headers, self._without_credentials, self._prefixes)
        if api_key is not None:
            passed.append((b"authorization", b"Bearer " + api_key.encode()))
        return passed


def response_headers(headers: Headers) -> Headers:
    """A backend's headers as they go to the client; whoever writes the body says how long it is."""
    return _end_to_end(headers, _NOT_PASSED_ON, (OWN_PREFIX,))


def decision_headers(rid: str, arm: str, backend: str, reason: str, predicted_tbt_ms: float | None) -> Headers:
    """Where a request went and why, and by which name `/explain` says more."""
    headers = [*_place_headers(arm, backend), (_REASON, _line(reason)), (_RID, _line(rid))]
    if predicted_tbt_ms is not None:
        headers.append((_PREDICTED_TBT_MS, b"%.3f" % predicted_tbt_ms))
    return headers


@lru_cache(maxsize=1_024)
def _place_headers(arm: str, backend: str) -> tuple[tuple[bytes, bytes], ...]:
    """Few backends are named in all answers."""
    return (_ARM, _line(arm)), (_BACKEND, _line(backend))


def _end_to_end(headers: Headers, dropped: frozenset[bytes], prefixes: tuple[bytes, ...]) -> Headers:
    """Without those dropped by name or by prefix, and those that `Connection` names."""
    named = [value for name, value in headers if name == b"connection"]
    if named:
        tokens = {token.strip().lower() for value in named for token in value.split(b",")}
        dropped = dropped | (tokens - _NOT_HOP_BY_HOP)
    return [header for header in headers if header[0] not in dropped and not header[0].startswith(prefixes)]


def _line(text: str) -> bytes:
    """One header value: a single line of latin-1, of bounded length."""
    if not (text.isascii() and text.isprintable()):
        text = _CONTROL.sub(" ", text)
    return text.strip()[:_MOST_REASON_CHARS].encode("latin-1", "replace")
