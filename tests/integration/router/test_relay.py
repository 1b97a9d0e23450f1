"""What the router does to bytes on their way through: as good as nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from tests.integration.router.fake_upstream import EAGLE3_K3, FakeUpstream, Script, answering, streaming
from tests.integration.router.harness import CHAT, DONE, ROLE, chat_stream, delta, event, routed, sglext, usage
from tests.integration.router.raw_client import request

STREAM: Mapping[str, Any] = {**CHAT, "stream": True}
ASKS_USAGE: Mapping[str, Any] = {**STREAM, "stream_options": {"include_usage": True}}


async def chunks_through(upstream: FakeUpstream, body: Mapping[str, Any], **kind: Any) -> list[bytes]:
    async with routed(upstream, **kind) as router, request(router.url, body=body) as answer:
        assert answer.status == 200
        return [chunk async for chunk in answer.chunks()]


async def test_a_client_that_asks_for_usage_gets_the_same_bytes_in_the_same_chunks_as_without_the_router() -> None:
    # Events of one chunk stay together, a chunk of one event stays alone, comments and odd fields pass.
    sent = [
        ROLE,
        delta(content="Hi") + delta(content=" there"),
        b": keep-alive\n\n",
        b"event: ping\r\ndata: {}\r\n\r\n",
        delta(content="!", odd={"choices": []}),
        *chat_stream()[-3:],
    ]
    async with FakeUpstream(script=streaming(*sent)) as upstream:
        async with request(upstream.url, body=ASKS_USAGE) as answer:
            direct = [chunk async for chunk in answer.chunks()]
        assert direct == sent
        assert await chunks_through(upstream, ASKS_USAGE) == direct


async def test_the_usage_chunk_is_withheld_from_a_client_that_did_not_ask_and_nothing_else_is() -> None:
    sent = chat_stream("Hi", " there")
    async with FakeUpstream(script=streaming(*sent)) as upstream:
        got = await chunks_through(upstream, STREAM)
        assert got == [chunk for chunk in sent if b'"usage"' not in chunk]
        assert upstream.seen[0].json["stream_options"] == {"include_usage": True}


async def test_a_usage_chunk_in_one_chunk_with_other_events_is_cut_out_of_it() -> None:
    sent = [ROLE, delta(content="Hi"), delta(finish_reason="stop") + usage(2) + DONE]
    async with FakeUpstream(script=streaming(*sent)) as upstream:
        assert await chunks_through(upstream, STREAM) == [*sent[:2], delta(finish_reason="stop") + DONE]


async def test_the_extension_chunk_is_asked_for_where_the_release_has_it_and_withheld() -> None:
    spec = sglext(spec_verify_ct=3, spec_num_correct_drafts=5, spec_accept_rate=0.5)
    sent = [*chat_stream("Hi")[:-2], spec, *chat_stream("Hi")[-2:]]
    async with FakeUpstream(EAGLE3_K3, script=streaming(*sent)) as upstream:
        got = await chunks_through(upstream, ASKS_USAGE, arms=["eagle3-k3"])
        assert got == [chunk for chunk in sent if b"sglext" not in chunk]
        assert upstream.seen[0].json["return_spec_tokens_details"] is True


@pytest.mark.parametrize("version", ["0.5.17", "0.4.9.post2", None])
async def test_an_older_release_is_not_asked_for_what_it_does_not_know(version: str | None) -> None:
    async with FakeUpstream({"version": version}, script=streaming(*chat_stream("Hi"))) as upstream:
        await chunks_through(upstream, STREAM)
        assert "return_spec_tokens_details" not in upstream.seen[0].json


async def test_a_client_that_asks_for_the_extension_gets_it() -> None:
    spec = sglext(spec_verify_ct=3, spec_num_correct_drafts=5)
    sent = [*chat_stream("Hi")[:-2], spec, *chat_stream("Hi")[-2:]]
    body = {**ASKS_USAGE, "return_spec_tokens_details": True}
    async with FakeUpstream(EAGLE3_K3, script=streaming(*sent)) as upstream:
        assert await chunks_through(upstream, body, arms=["eagle3-k3"]) == sent


@pytest.mark.parametrize("asks_extension", [False, True])
async def test_the_usage_that_a_client_asked_for_says_what_became_of_the_drafts(asks_extension: bool) -> None:
    spec = sglext(spec_verify_ct=1, spec_num_correct_drafts=1, spec_num_proposed_drafts=9)
    sent = [*chat_stream("Hi", "!")[:-2], spec, *chat_stream("Hi", "!")[-2:]]
    drafts = {"accepted_prediction_tokens": 1, "rejected_prediction_tokens": 8}
    body = {**ASKS_USAGE, **({"return_spec_tokens_details": True} if asks_extension else {})}
    async with FakeUpstream(EAGLE3_K3, script=streaming(*sent)) as upstream:
        got = await chunks_through(upstream, body, arms=["eagle3-k3"])
        filled = usage(2).replace(b"}}\n\n", b',"completion_tokens_details":' + orjson.dumps(drafts) + b"}}\n\n")
        assert got == [*sent[:-3], *([spec] if asks_extension else []), filled, DONE]
        # one that did not ask sees nothing of it
        assert await chunks_through(upstream, STREAM, arms=["eagle3-k3"]) == [*sent[:-3], DONE]


async def test_continuous_usage_gets_the_drafts_in_its_last_chunk_alone() -> None:
    counted = delta(content="Hi").replace(b'"choices"', b'"usage":{"completion_tokens":1},"choices"')
    spec = sglext(spec_verify_ct=1, spec_num_correct_drafts=1, spec_num_proposed_drafts=3)
    last = delta(finish_reason="stop").replace(b'"choices"', b'"usage":{"completion_tokens":2},"choices"')
    sent = [ROLE, counted, spec, last, usage(2), DONE]
    body = {**STREAM, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    async with FakeUpstream(EAGLE3_K3, script=streaming(*sent)) as upstream:
        got = await chunks_through(upstream, body, arms=["eagle3-k3"])
    assert got[:-2] == [ROLE, counted, last]
    assert b'"accepted_prediction_tokens":1' in got[-2]


async def test_an_extension_with_more_in_it_than_was_added_is_passed_on() -> None:
    more = event({"choices": [], "sglext": {"spec_tokens_details": {"spec_verify_ct": 1}, "routed_experts": "x"}})
    sent = [*chat_stream("Hi")[:-2], more, *chat_stream("Hi")[-2:]]
    async with FakeUpstream(script=streaming(*sent)) as upstream:
        assert more in await chunks_through(upstream, STREAM)


async def test_a_server_that_counts_every_stream_of_its_own_accord_is_left_alone() -> None:
    sent = chat_stream("Hi")
    async with FakeUpstream({"stream_response_default_include_usage": True}, script=streaming(*sent)) as upstream:
        assert await chunks_through(upstream, STREAM) == sent
    spec = sglext(spec_verify_ct=1, spec_num_correct_drafts=1, spec_num_proposed_drafts=3)
    info = {**EAGLE3_K3, "stream_response_default_include_usage": True}
    async with FakeUpstream(info, script=streaming(*sent[:-2], spec, *sent[-2:])) as upstream:
        assert await chunks_through(upstream, STREAM, arms=["eagle3-k3"]) == sent
        assert "stream_options" not in upstream.seen[0].json


async def test_continuous_usage_without_the_final_one_stays_as_the_client_wanted_it() -> None:
    counted = delta(content="Hi").replace(b'"choices"', b'"usage":{"completion_tokens":1},"choices"')
    sent = [ROLE, counted, delta(finish_reason="stop"), usage(2), DONE]
    body = {**STREAM, "stream_options": {"continuous_usage_stats": True}}
    async with FakeUpstream(script=streaming(*sent)) as upstream:
        assert await chunks_through(upstream, body) == [ROLE, counted, delta(finish_reason="stop"), DONE]
        assert upstream.seen[0].json["stream_options"] == {"continuous_usage_stats": True, "include_usage": True}


async def test_an_event_split_over_chunks_in_the_middle_of_a_character_comes_whole() -> None:
    first = delta(content="Grüezi, 世界")
    at = first.index("世".encode()) + 1
    sent = [ROLE, first[:at], first[at:-1], first[-1:], *chat_stream()[-3:]]
    async with FakeUpstream(script=streaming(*sent)) as upstream:
        assert await chunks_through(upstream, ASKS_USAGE) == [ROLE, first, *chat_stream()[-3:]]


async def test_a_body_gets_only_what_is_missing_and_keeps_every_byte_of_its_own() -> None:
    given = (
        b' {"model" : "m", "messages":[{"role":"user","content":"\\u00fc\xc3\xbc"}],'
        b'"seed":18446744073709551617,"top_p":1.0}'
    )
    async with (
        FakeUpstream(script=answering(200, b"{}")) as upstream,
        routed(upstream) as router,
        request(router.url, body=given),
    ):
        sent = upstream.seen[0].body
    added, rest = sent[: sent.index(b'"model"')], sent[sent.index(b'"model"') :]
    assert rest == given[given.index(b'"model"') :]
    fields = orjson.loads(added.rstrip(b",") + b"}")
    assert set(fields) == {"rid", "return_spec_tokens_details"}
    assert len(fields["rid"]) == 32


async def test_a_body_that_needs_nothing_is_sent_as_it_came() -> None:
    given = b'{"text": "hello", "rid": "mine", "sampling_params": {"max_new_tokens": 4}}'
    async with (
        FakeUpstream(script=answering(200, b"{}")) as upstream,
        routed(upstream) as router,
        request(router.url, "/generate?a=%20b&c=d", body=given),
    ):
        assert upstream.seen[0].body == given
        assert upstream.seen[0].target == "/generate?a=%20b&c=d"


async def test_a_null_rid_is_replaced_not_doubled() -> None:
    async with (
        FakeUpstream(script=answering(200, b"{}")) as upstream,
        routed(upstream) as router,
        request(router.url, body={"rid": None, **CHAT}),
    ):
        assert upstream.seen[0].body.count(b'"rid"') == 1
        assert len(upstream.seen[0].json["rid"]) == 32


@pytest.mark.parametrize("body", [{**CHAT, "n": 2}, {"model": "m", "prompt": ["a", "b"]}])
async def test_a_batch_is_named_by_the_server(body: Mapping[str, Any]) -> None:
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    async with (
        FakeUpstream(script=answering(200, b"{}")) as upstream,
        routed(upstream) as router,
        request(router.url, path, body=body),
    ):
        assert "rid" not in upstream.seen[0].json


async def test_a_whole_answer_passes_unchanged_but_for_drafts_in_its_usage_and_the_extension_not_asked_for() -> None:
    plain = b'{"id":"x", "choices":[{"message":{"content":"a\\",\\"sglext\\":{}"}}],"usage":{"completion_tokens":2}}'
    drafts = b'{"completion_tokens":2,"completion_tokens_details":{"accepted_prediction_tokens":1}}'
    filled = plain.replace(b'{"completion_tokens":2}', drafts)
    details = (
        b',"sglext":{"spec_tokens_details":{"spec_accept_rate":0.5,"spec_verify_ct":1,"spec_num_correct_drafts":1}}'
    )
    sent = plain[:-1] + details + b"}"
    async with (
        FakeUpstream(EAGLE3_K3, script=answering(200, sent)) as upstream,
        routed(upstream, arms=["eagle3-k3"]) as router,
    ):
        async with request(router.url, body=CHAT) as answer:
            assert await answer.body() == filled
        async with request(router.url, body={**CHAT, "return_spec_tokens_details": True}) as answer:
            assert await answer.body() == filled[:-1] + details + b"}"
        upstream.script = answering(200, plain)
        async with request(router.url, body=CHAT) as answer:
            assert await answer.body() == plain


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/score", "/v1/rerank"])
async def test_what_generates_nothing_passes_untouched_in_both_directions(path: str) -> None:
    async with FakeUpstream(script=answering(200, b'{"data": [1]}')) as upstream, routed(upstream) as router:
        async with request(router.url, path, body=b"\xffnot even JSON") as answer:
            assert await answer.body() == b'{"data": [1]}'
            assert answer.header("x-drafter-selector-backend") == "b0"
        assert upstream.seen[0].body == b"\xffnot even JSON"
        assert not list(router.state.dispatcher.journal.recent)


@pytest.mark.parametrize(
    "script",
    [
        answering(400, b'{"object":"error","message":"temperature","code":400}', ("content-type", "application/json")),
        answering(
            401, b'{"error":"Unauthorized"}', ("www-authenticate", "Bearer"), ("content-type", "application/json")
        ),
        answering(503, b'{"message":"The request queue is full."}', ("retry-after", "7")),
        answering(500, b"oops", ("content-type", "text/plain")),
    ],
)
async def test_an_error_passes_as_it_came_with_the_decision_beside_it(script: Script) -> None:
    async with FakeUpstream(script=script) as upstream, routed(upstream) as router:
        async with request(upstream.url, body=STREAM) as answer:
            direct = answer.status, await answer.body(), answer.headers
        async with request(router.url, body=STREAM) as answer:
            assert (answer.status, await answer.body()) == direct[:2]
            own = [header for header in answer.headers if header[0].startswith("x-drafter-selector-")]
            assert sorted(set(answer.headers) - set(own)) == sorted(direct[2])
            assert [name for name, _ in own] == [
                f"x-drafter-selector-{name}" for name in ("arm", "backend", "reason", "rid")
            ]


async def test_hop_by_hop_and_spoofed_headers_stay_behind_and_the_others_pass() -> None:
    async def script(exchange: Any) -> None:
        await exchange.answer(
            200,
            b"{}",
            ("content-type", "application/json"),
            ("x-drafter-selector-arm", "spoofed"),
            ("keep-alive", "timeout=5"),
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("x-request-id", "r1"),
        )

    headers = {
        "Connection": "keep-alive, X-Private, Authorization",
        "X-Private": "1",
        "X-Drafter-Selector-Backend": "b1",
        "X-Forwarded-For": "1.2.3.4",
        "Forwarded": "for=1.2.3.4",
        "Proxy-Authorization": "secret",
        "TE": "trailers",
        "Accept-Encoding": "gzip",
        "Authorization": "Bearer client-key",
        "X-Custom": "kept",
        "User-Agent": "test",
    }
    async with FakeUpstream(script=script) as upstream, routed(upstream) as router:
        async with request(router.url, body=CHAT, headers=headers) as answer:
            assert answer.header("x-drafter-selector-arm") == "none"
            assert answer.header("x-request-id") == "r1"
            assert answer.header("x-hop") is answer.header("keep-alive") is None
        got = upstream.seen[0]
        assert got.header("authorization") == "Bearer client-key"
        assert got.header("x-custom") == "kept"
        assert got.header("user-agent") == "test"
        assert got.header("host") == upstream.url.removeprefix("http://")
        names = {name.lower() for name, _ in got.headers}
        assert not names & {"x-private", "x-drafter-selector-backend", "proxy-authorization", "te", "accept-encoding"}
        assert not names & {"x-forwarded-for", "forwarded"}


async def test_a_backend_with_a_key_of_its_own_gets_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MADE_UP_KEY", "server-key")
    async with (
        FakeUpstream(script=answering(200, b"{}")) as upstream,
        routed(upstream, backend_more='api_key_env = "MADE_UP_KEY"') as router,
        request(router.url, body=CHAT, headers={"Authorization": "Bearer client-key"}),
    ):
        assert upstream.seen[0].header("authorization") == "Bearer server-key"


async def test_a_compressed_stream_passes_as_it_is() -> None:
    async def script(exchange: Any) -> None:
        await exchange.stream_head(("content-encoding", "gzip"))
        await exchange.chunk(b"\x1f\x8b")
        await exchange.chunk(b"rest")
        await exchange.end()

    async with (
        FakeUpstream(script=script) as upstream,
        routed(upstream) as router,
        request(router.url, body=STREAM) as answer,
    ):
        assert answer.header("content-encoding") == "gzip"
        assert await answer.body() == b"\x1f\x8brest"


async def test_a_body_of_several_mebibytes_arrives() -> None:
    body = orjson.dumps({**CHAT, "padding": "x" * 3_000_000})
    async with FakeUpstream(script=answering(200, b"{}")) as upstream, routed(upstream) as router:
        async with request(router.url, body=body) as answer:
            assert answer.status == 200
        assert upstream.seen[0].json["padding"] == "x" * 3_000_000
