"""From headers and bodies to what the policy sees, and what is refused before any backend is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from selector.core.types import Capability, RequestView
from selector.router.running import RunningRouter
from tests.integration.router.fake_upstream import FakeUpstream, answering, hanging
from tests.integration.router.harness import CHAT, routed
from tests.integration.router.raw_client import answer_from, connection, request, request_bytes


def seen_by_policy(router: RunningRouter) -> RequestView:
    """The last request that was decided on."""
    views = [entry["request"] for entry in router.state.dispatcher.journal.recent if entry["event"] == "decision"]
    view = views[-1]
    assert isinstance(view, RequestView)
    return view


async def view_of(
    headers: Mapping[str, str], body: Mapping[str, Any] = CHAT, path: str = "/v1/chat/completions", **router: Any
) -> RequestView:
    async with FakeUpstream(script=answering(200, b"{}")) as upstream, routed(upstream, **router) as running:
        async with request(running.url, path, body, headers) as answer:
            assert answer.status == 200
        return seen_by_policy(running)


@pytest.mark.parametrize(
    ("headers", "target_ms", "slo_class"),
    [
        ({}, 25.0, "chat"),
        ({"x-slo-class": "batch"}, None, "batch"),
        ({"x-tbt-target-ms": "12.5"}, 12.5, "chat"),
        ({"x-slo-tpot-ms": "40"}, 40.0, "chat"),
        ({"x-slo-tpot-ms": "40", "x-tbt-target-ms": "12.5"}, 12.5, "chat"),
        ({"x-slo-class": "batch", "x-slo-tpot-ms": "40"}, 40.0, "batch"),
    ],
)
async def test_the_target_is_the_header_s_else_the_class_s(
    headers: Mapping[str, str], target_ms: float | None, slo_class: str
) -> None:
    view = await view_of(headers)
    assert (view.tbt_target_ms, view.slo_class) == (target_ms, slo_class)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-tbt-target-ms", "fast"),
        ("x-tbt-target-ms", "0"),
        ("x-tbt-target-ms", "-3"),
        ("x-tbt-target-ms", "inf"),
        ("x-slo-tpot-ms", "nan"),
        ("x-slo-tpot-ms", ""),
        ("x-slo-class", "premium"),
    ],
)
async def test_a_header_that_cannot_be_used_is_refused_by_name(header: str, value: str) -> None:
    async with FakeUpstream() as upstream, routed(upstream) as router:
        async with request(router.url, body=CHAT, headers={header: value}) as answer:
            assert answer.status == 400
            body = await answer.json()
        assert (body["object"], body["type"], body["param"], body["code"]) == ("error", "BadRequestError", header, 400)
        assert repr(value) in body["message"]
        assert upstream.seen == []


async def test_a_text_type_from_the_client_counts_only_where_the_fleet_file_trusts_it() -> None:
    trusted = await view_of({"x-text-type": "romansh"}, trust_text_type_header=True)
    assert (trusted.text_type, trusted.text_probabilities) == ("romansh", None)
    assert trusted.text_reasons == ("told by the client",)
    for value in ("romansh", "no such type"):
        untrusted = await view_of({"x-text-type": value})
        assert untrusted.text_type == "conversation"
        assert sum(untrusted.text_probabilities or ()) == pytest.approx(1)


async def test_a_trusted_text_type_that_does_not_exist_is_refused() -> None:
    async with (
        FakeUpstream() as upstream,
        routed(upstream, trust_text_type_header=True) as router,
        request(router.url, body=CHAT, headers={"x-text-type": "poetry"}) as answer,
    ):
        assert answer.status == 400
        assert (await answer.json())["param"] == "x-text-type"


async def test_what_a_body_says_reaches_the_policy() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    view = await view_of({}, {**CHAT, "max_completion_tokens": 7, "max_tokens": 9, "tools": tools, "logprobs": True})
    assert view.max_output_tokens == 7
    assert view.expected_output_tokens <= 7
    assert view.text_reasons[0] == "tools offered (1)"
    assert view.needs == {Capability.TOOLS, Capability.LOGPROBS}
    assert view.session_key
    assert view.prompt_tokens > 10


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "x" * 400, "sampling_params": {"max_new_tokens": 11}}),
        ("/v1/completions", {"prompt": "x" * 400, "max_tokens": 11}),
        ("/v1/responses", {"input": "x" * 400, "max_output_tokens": 11}),
        ("/v1/messages", {"system": "x" * 352, "messages": [{"role": "user", "content": "y" * 9}], "max_tokens": 11}),
    ],
)
async def test_every_route_is_read_in_its_own_way(path: str, body: Mapping[str, Any]) -> None:
    view = await view_of({}, body, path)
    assert view.max_output_tokens == 11
    assert 95 <= view.prompt_tokens <= 105


@pytest.mark.parametrize(
    "body",
    [b"{oops", b"", b"\xff{}", b"[]", b"null", b'"text"', b'{"messages": [' + b"[" * 2000],
    ids=["cut", "empty", "not UTF-8", "list", "null", "string", "deep"],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/generate"])
async def test_a_body_that_is_no_json_object_is_refused_as_sglang_does(path: str, body: bytes) -> None:
    async with FakeUpstream() as upstream, routed(upstream) as router:
        async with request(router.url, path, body) as answer:
            assert answer.status == 400
            error = await answer.json()
        assert set(error) == {"object", "message", "type", "param", "code"}
        assert error["message"].startswith("1 validation error")
        assert upstream.seen == []


@pytest.mark.parametrize(
    "sent",
    [
        b"Content-Length: 1001\r\n\r\n",  # and not a byte of the body
        b"Transfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001 + b"\r\n",  # and no end
    ],
    ids=["declared", "chunked"],
)
async def test_a_body_that_is_too_large_is_refused_without_waiting_for_all_of_it(sent: bytes) -> None:
    async with (
        FakeUpstream() as upstream,
        routed(upstream, max_body_bytes=1000) as router,
        connection(router.url) as (reader, writer),
    ):
        writer.write(b"POST /generate HTTP/1.1\r\nHost: r\r\n" + sent)
        answer = await answer_from(reader, writer)
        assert (answer.status, answer.header("connection")) == (413, "close")
        assert (await answer.json())["code"] == 413
        assert upstream.seen == []


async def test_an_input_over_every_context_is_refused_as_sglang_does() -> None:
    async with FakeUpstream() as upstream, routed(upstream) as router:
        long = {**CHAT, "messages": [{"role": "user", "content": "a " * 8000}]}
        async with request(router.url, body=long) as answer:
            assert answer.status == 400
            error = await answer.json()
        assert error["type"] == "BadRequestError"
        assert error["message"].endswith("is longer than the model's context length (2048 tokens).")
        async with request(router.url, "/generate", {"input_ids": [1] * 2110}) as answer:
            message = "The input (2110 tokens) is longer than the model's context length (2048 tokens)."
            assert (answer.status, await answer.json()) == (400, {"error": {"message": message}})
        async with request(router.url, body={**CHAT, "max_tokens": 5000}) as answer:
            assert answer.status == 400
            assert "max_completion_tokens is too large: 5000." in (await answer.json())["message"]
        assert upstream.seen == []


async def test_a_need_that_no_backend_can_meet_is_refused_and_one_that_some_can_goes_there() -> None:
    body = {**CHAT, "return_hidden_states": True}
    info = {"speculative_algorithm": "EAGLE3"}
    async with FakeUpstream(info) as drafting, FakeUpstream(script=answering(200, b"{}")) as plain:
        async with routed(drafting, arms=["eagle3-k3"]) as router, request(router.url, body=body) as answer:
            assert answer.status == 400
            assert "hidden_states" in (await answer.json())["message"]
        async with (
            routed(drafting, plain, arms=["eagle3-k3", "none"]) as router,
            request(router.url, body=body) as answer,
        ):
            assert answer.header("x-drafter-selector-arm") == "none"


async def test_the_reason_is_one_line_of_latin_1(tmp_path: Any) -> None:
    policy = tmp_path / "wordy.py"
    policy.write_text(
        "from dataclasses import dataclass\n"
        "from selector.core.types import Decision\n"
        "@dataclass(frozen=True)\n"
        "class Params: pass\n"
        "class Wordy:\n"
        "    def decide(self, request, fleet):\n"
        "        return Decision(backend='b0', reason='a ≤ b\\r\\nx-injected: 1 – ü' + '!' * 500)\n"
        "    def observe(self, outcome): pass\n"
        "def make_policy(params, context): return Wordy()\n",
        encoding="utf-8",
    )
    async with (
        FakeUpstream(script=answering(200, b"{}")) as upstream,
        routed(upstream, policy=str(policy)) as router,
        request(router.url, body=CHAT) as answer,
    ):
        reason = answer.header("x-drafter-selector-reason")
        assert reason is not None
        assert reason.startswith("a ? b x-injected: 1 ? ü!!")
        assert len(reason) == 256
        assert answer.header("x-injected") is None


async def test_two_requests_sent_at_once_on_one_connection_are_both_answered() -> None:
    async with FakeUpstream(script=answering(200, b'{"n":1}')) as upstream, routed(upstream) as router:
        async with connection(router.url) as (reader, writer):
            writer.write(2 * request_bytes("/v1/chat/completions", CHAT))
            for _ in range(2):
                answer = await answer_from(reader, writer)
                assert (answer.status, await answer.body()) == (200, b'{"n":1}')
        assert len(upstream.seen) == 2


async def test_concurrent_requests_see_each_other() -> None:
    """The second of two requests goes to the other backend although no poll came between them."""
    async with (
        FakeUpstream(script=hanging) as first,
        FakeUpstream(script=hanging) as second,
        routed(first, second, poll_interval_s=60.0) as router,
        connection(router.url) as (_, one),
        connection(router.url) as (_, two),
    ):
        one.write(request_bytes("/v1/chat/completions", CHAT))
        await first.next_exchange()
        two.write(request_bytes("/v1/chat/completions", CHAT))
        await second.next_exchange()
