"""What goes into a request, and out of the answer again."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selector.router.additions import Additions, additions_for, answer_without, body_with
from selector.router.request import ClientRequest
from selector.router.routes import ROUTES

ALL = Additions(rid=True, usage=True, spec_details=True)
SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
LEAVES = SCALARS | st.text(max_size=8)
VALUES = LEAVES | st.lists(LEAVES, max_size=2) | st.dictionaries(st.text(max_size=5), LEAVES, max_size=2)
NAMES = st.text(max_size=6) | st.sampled_from(["rid", "stream_options", "return_spec_tokens_details", "messages"])


def request_with(body: bytes) -> ClientRequest:
    fields: dict[str, Any] = orjson.loads(body)
    route = ROUTES["/v1/chat/completions"]
    return ClientRequest(id="f" * 32, route=route, body=body, arrival_s=0.0, fields=fields, view=None, streams=True)


@given(
    st.dictionaries(NAMES, VALUES, max_size=5),
    st.none() | st.dictionaries(st.text(max_size=5) | st.just("include_usage"), SCALARS, max_size=2),
    st.sampled_from([None, 1]),
    st.sampled_from([b"", b" \r\n\t"]),
)
def test_the_fields_of_a_body_are_the_client_s_and_the_additions(
    fields: dict[str, Any], options: dict[str, Any] | None, indent: int | None, space: bytes
) -> None:
    if "stream_options" in fields:
        fields["stream_options"] = options
    body = space + json.dumps(fields, indent=indent).encode() + space
    sent = body_with(request_with(body), ALL)
    wanted = {**(fields.get("stream_options") or {}), "include_usage": True}
    added = {"rid": "f" * 32, "stream_options": wanted, "return_spec_tokens_details": True}
    assert orjson.loads(sent) == {**orjson.loads(body), **added}
    assert len(json.loads(sent, object_pairs_hook=list)) == len({*fields, *added}), "a field came twice"


def test_a_body_to_which_nothing_is_added_is_the_same_object() -> None:
    body = b'{"a":1}'
    assert body_with(request_with(body), Additions()) is body


def test_options_that_the_server_will_refuse_are_left_to_it() -> None:
    for options, asks in (("null", True), ("{}", True), ("7", False), ("[]", False)):
        request = request_with(b'{"stream_options":' + options.encode() + b"}")
        assert additions_for(request, spec_details=False, usage_by_default=False).usage is asks


SPEC = {"spec_verify_ct": 3, "spec_accept_rate": 0.30000000000000004}


@pytest.mark.parametrize("compact", [True, False])
@given(answer=st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_an_answer_loses_the_extension_and_nothing_else(compact: bool, answer: dict[str, Any]) -> None:
    answer.pop("sglext", None)
    separators = (",", ":") if compact else (", ", ": ")
    body = json.dumps({**answer, "sglext": {"spec_tokens_details": SPEC}}, separators=separators).encode()
    assert orjson.loads(answer_without(body, ALL)) == orjson.loads(json.dumps(answer))
    if compact and answer:
        assert answer_without(body, ALL) == json.dumps(answer, separators=separators).encode()
    assert answer_without(body, Additions()) is body


def test_an_answer_that_quotes_the_extension_is_cut_in_the_right_place() -> None:
    extension = b',"sglext":{"spec_tokens_details":{"spec_verify_ct":3}}'
    inner = b'{"id":"x"' + extension + b"}"
    body = b'{"nested":' + inner + extension + b',"last":' + inner + b"}"
    cut = answer_without(body, ALL)
    assert orjson.loads(cut) == {"nested": orjson.loads(inner), "last": orjson.loads(inner)}


@pytest.mark.parametrize(
    "body", [b"", b'"sglext"', b'["sglext"]', b'{"sglext":1}', b'{"sglext":{"routed_experts":""}}']
)
def test_an_answer_of_another_shape_passes(body: bytes) -> None:
    assert answer_without(body, ALL) is body
