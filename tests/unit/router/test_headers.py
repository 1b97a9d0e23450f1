"""What of a client's head goes on to a backend, and what of a backend's goes back."""

from __future__ import annotations

import pytest

from selector.files.security import Security
from selector.router.client import header_texts
from selector.router.headers import Passing, decision_headers, response_headers
from selector.router.wire import Headers

SPOOFED: Headers = [
    (b"x-drafter-selector-backend", b"b1"),
    (b"x-drafter-selector-", b""),
    (b"forwarded", b"for=1.2.3.4"),
    (b"x-forwarded-for", b"1.2.3.4"),
    (b"x-forwarded-host", b"elsewhere"),
    (b"x-forwarded-anything", b""),
    (b"x-real-ip", b"1.2.3.4"),
]
HOP_BY_HOP: Headers = [
    (name, b"x")
    for name in (
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
]
KEPT: Headers = [
    (b"content-type", b"application/json"),
    (b"accept", b"*/*"),
    (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    (b"x-custom", b"1"),
    (b"x-custom", b"2"),
]


def passed(headers: Headers, api_key: str | None = None, *, keyed: bool = False, **options: bool) -> Headers:
    return Passing(Security(**options)).request_headers(headers, api_key, keyed=keyed)


def test_what_is_of_this_connection_or_spoofed_stays_here() -> None:
    assert passed([*SPOOFED, *KEPT, *HOP_BY_HOP]) == KEPT


def test_a_proxy_that_is_trusted_may_say_for_whom_it_asks() -> None:
    assert passed([*SPOOFED, *KEPT], pass_forwarded=True) == [*SPOOFED[2:], *KEPT]


@pytest.mark.parametrize("values", [[b"x-hop, close"], [b"close", b" X-Hop\t"], [b"keep-alive,,x-hop,"]])
def test_what_connection_names_is_of_this_connection_too(values: list[bytes]) -> None:
    named = [(b"connection", value) for value in values]
    assert passed([*named, (b"x-hop", b"1"), *KEPT]) == KEPT
    assert response_headers([*named, (b"x-hop", b"1"), *KEPT]) == KEPT


def test_connection_cannot_take_away_what_the_backend_reads_the_request_by() -> None:
    given: Headers = [*KEPT, (b"authorization", b"Bearer c")]
    for value in (b"authorization, content-type, accept, traceparent", b"Authorization", b"close, CONTENT-TYPE"):
        assert passed([(b"connection", value), *given]) == given
    with_own = passed([(b"connection", b"authorization"), *given], "server-key")
    assert with_own == [*KEPT, (b"authorization", b"Bearer server-key")]


@pytest.mark.parametrize(
    ("api_key", "keyed", "option", "expected"),
    [
        (None, False, None, True),
        (None, True, None, False),
        (None, True, True, True),
        (None, False, False, False),
        ("server-key", False, None, False),
        ("server-key", False, True, False),
    ],
)
def test_a_client_s_key_goes_on_where_it_is_meant_for_the_backend(
    api_key: str | None, keyed: bool, option: bool | None, expected: bool
) -> None:
    options = {} if option is None else {"pass_authorization": option}
    own: Headers = [] if api_key is None else [(b"authorization", b"Bearer server-key")]
    credentials: Headers = [(b"authorization", b"Bearer client-key"), (b"x-api-key", b"client-key")]
    found = passed([*credentials, *KEPT], api_key, keyed=keyed, **options)
    assert found == [*(credentials if expected else ()), *KEPT, *own]


def test_a_backend_cannot_speak_for_the_router() -> None:
    assert response_headers([(b"x-drafter-selector-arm", b"spoofed"), *KEPT, *HOP_BY_HOP]) == KEPT


def test_of_several_headers_of_one_name_the_first_counts() -> None:
    assert header_texts([(b"x-slo-class", b"chat"), (b"accept", b"*/*"), (b"x-slo-class", b"batch")]) == {
        "x-slo-class": "chat",
        "accept": "*/*",
    }


def test_what_is_kept_of_a_place_is_in_no_other_answer() -> None:
    told = decision_headers("r1", "none", "b0", "planned", 12.5)
    told.append((b"x-other", b"1"))
    assert decision_headers("r2", "none", "b0", "overflow", None) == [
        (b"x-drafter-selector-arm", b"none"),
        (b"x-drafter-selector-backend", b"b0"),
        (b"x-drafter-selector-reason", b"overflow"),
        (b"x-drafter-selector-rid", b"r2"),
    ]
