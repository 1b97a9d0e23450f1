"""Backends that fail and clients that leave: every request ends once, and nothing hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from selector.core.types import Finish
from selector.router.health import State
from selector.router.running import RunningRouter
from tests.integration.router.fake_upstream import (
    EAGLE3_K3,
    Exchange,
    FakeUpstream,
    Script,
    answering,
    broken,
    hanging,
    held,
    streaming,
)
from tests.integration.router.harness import CHAT, DONE, ROLE, chat_stream, delta, event, routed, usage
from tests.integration.router.raw_client import DEADLINE_S, answer_from, connection, request, request_bytes
from tests.integration.router.test_outcomes import outcomes

STREAM: Mapping[str, Any] = {**CHAT, "stream": True}


def finishes(router: RunningRouter) -> list[Finish]:
    return [outcome.finish for outcome in outcomes(router)]


def state_of(router: RunningRouter, backend: str) -> State:
    return router.state.watch.backends[backend].state


def in_flight(router: RunningRouter) -> int:
    assert len(router.state.dispatcher.flights) == router.state.dispatcher.controller.tracker.in_flight()
    return len(router.state.dispatcher.flights)


async def test_a_client_that_leaves_before_the_first_byte_frees_its_backend_at_once() -> None:
    async with FakeUpstream(script=hanging) as upstream, routed(upstream) as router:
        async with connection(router.url) as (_, writer):
            writer.write(request_bytes("/v1/chat/completions", STREAM))
            exchange = await upstream.next_exchange()
            assert in_flight(router) == 1
        await exchange.closed.wait()
        await router.drain()
        assert finishes(router) == [Finish.CANCELLED]
        assert in_flight(router) == 0


async def test_a_client_that_leaves_in_mid_stream_frees_its_backend_at_once() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.stream_head()
        await exchange.chunk(ROLE)
        await exchange.chunk(delta(content="a"))
        await exchange.wait_closed()

    async with FakeUpstream(script=script) as upstream, routed(upstream) as router:
        async with request(router.url, body=STREAM) as answer:
            chunks = answer.chunks()
            await anext(chunks)
            await anext(chunks)
            answer.leave()
            exchange = await upstream.next_exchange()
            await exchange.closed.wait()
        await router.drain()
        assert finishes(router) == [Finish.CANCELLED]
        assert outcomes(router)[0].accepted_tokens == 1
        assert in_flight(router) == 0


async def test_a_client_that_leaves_while_it_sends_its_body_disturbs_nobody() -> None:
    async with FakeUpstream(script=answering(200, b"{}")) as upstream, routed(upstream) as router:
        async with connection(router.url) as (_, writer):
            writer.write(request_bytes("/v1/chat/completions", CHAT)[:-3])
            await writer.drain()
        await upstream.polled_afresh()
        assert upstream.seen == []
        async with request(router.url, body=CHAT) as answer:
            assert answer.status == 200


async def test_a_client_that_closes_on_the_last_event_got_its_answer() -> None:
    closing = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.stream_head()
        for chunk in chat_stream("a"):
            await exchange.chunk(chunk)
        await exchange.wait_closed()  # the end of the body never comes
        closing.set()

    async with FakeUpstream(script=script) as upstream, routed(upstream) as router:
        async with request(router.url, body=STREAM) as answer:
            async for chunk in answer.chunks():
                if chunk == DONE:
                    answer.leave()
                    break
        await closing.wait()
        await router.drain()
        assert finishes(router) == [Finish.DONE]


CUTS: Mapping[str, tuple[bytes, ...]] = {
    "between events": (ROLE, delta(content="a")),
    "in the middle of an event": (ROLE, delta(content="a"), delta(content="b")[:40]),
    "before the end mark": (ROLE, delta(content="a"), delta(finish_reason="stop"), usage(3)),
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("ends_cleanly", [False, True])
async def test_a_stream_that_breaks_ends_in_an_error_event_and_the_end_mark(cut: str, ends_cleanly: bool) -> None:
    sent = CUTS[cut]

    async def script(exchange: Exchange) -> None:
        await exchange.stream_head()
        for chunk in sent:
            await exchange.chunk(chunk)
        if ends_cleanly:
            await exchange.end()
        else:
            await go_on.wait()
            exchange.break_off()

    go_on = asyncio.Event()
    whole = [chunk for chunk in sent if chunk.endswith(b"\n\n") and b'"usage"' not in chunk]
    async with FakeUpstream(script=script) as upstream, routed(upstream) as router:
        async with request(router.url, body=STREAM) as answer:
            chunks = answer.chunks()
            assert [await anext(chunks) for _ in whole] == whole
            go_on.set()
            end = b"".join([chunk async for chunk in chunks])
        assert end.endswith(DONE)
        error = orjson.loads(end.removesuffix(DONE).removeprefix(b"data: "))["error"]
        assert (error["type"], error["code"]) == ("upstream_error", 502)
        assert "b0" in error["message"]
        assert finishes(router) == [Finish.FAILED]
        assert in_flight(router) == 0


async def test_an_end_mark_without_its_blank_line_is_still_an_end() -> None:
    sent = [*chat_stream("a")[:-1], DONE[:-1]]
    async with FakeUpstream(script=streaming(*sent)) as upstream, routed(upstream) as router:
        async with request(router.url, body={**STREAM, "stream_options": {"include_usage": True}}) as answer:
            assert [chunk async for chunk in answer.chunks()] == sent
        assert finishes(router) == [Finish.DONE]


async def test_malformed_events_pass_as_they_are() -> None:
    sent = [ROLE, b"data: {oops\n\n", b"nonsense\n\n", b"data: [1]\n\n", b'data: {"usage":{,"meta_info"\n\n', DONE]
    async with (
        FakeUpstream(script=streaming(*sent)) as upstream,
        routed(upstream) as router,
        request(router.url, body=STREAM) as answer,
    ):
        assert [chunk async for chunk in answer.chunks()] == sent


async def test_a_whole_answer_that_breaks_off_is_answered_502() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.head(200, ("content-type", "application/json"), ("content-length", "100"))
        await exchange.raw(b'{"half"')
        exchange.break_off()

    async with FakeUpstream(script=script) as first, FakeUpstream(script=script) as second:
        async with routed(first, second) as router, request(router.url, body=CHAT) as answer:
            assert answer.status == 502
            assert (await answer.json())["object"] == "error"
            assert answer.header("x-drafter-selector-backend") == "b0"
            assert finishes(router) == [Finish.FAILED]
        assert len(first.seen) + len(second.seen) == 1


@pytest.mark.parametrize(
    "script", [broken, answering(503, b'{"message":"The request queue is full."}')], ids=["breaks off", "queue full"]
)
async def test_a_failure_before_the_first_byte_is_tried_on_another_backend(script: Script) -> None:
    async with FakeUpstream(script=script) as bad, FakeUpstream(script=streaming(*chat_stream("a"))) as good:
        async with routed(bad, good) as router, request(router.url, body=STREAM) as answer:
            assert answer.status == 200
            assert answer.header("x-drafter-selector-backend") == "b1"
            await answer.body()
            assert finishes(router) == [Finish.DONE]
            assert in_flight(router) == 0
        assert (len(bad.seen), len(good.seen)) == (1, 1)


async def test_each_backend_is_tried_once_at_most() -> None:
    async with FakeUpstream(script=broken) as first, FakeUpstream(script=broken) as second:
        async with routed(first, second, unhealthy_after_failures=100) as router:
            async with request(router.url, body=STREAM) as answer:
                assert answer.status == 503
                assert answer.header("retry-after") == "1"
                assert answer.header("x-drafter-selector-backend") == "b1"
            assert finishes(router) == [Finish.FAILED]
        assert (len(first.seen), len(second.seen)) == (1, 1)


async def test_a_backend_that_is_silent_for_too_long_is_given_up() -> None:
    async with (
        FakeUpstream(script=hanging) as silent,
        FakeUpstream(script=streaming(*chat_stream("a"))) as good,
        routed(silent, good, first_byte_timeout_s=0.05) as router,
        request(router.url, body=STREAM) as answer,
    ):
        assert answer.status == 200
        assert answer.header("x-drafter-selector-backend") == "b1"
        await (await silent.next_exchange()).closed.wait()


async def test_a_whole_answer_may_take_as_long_as_its_tokens() -> None:
    """Its first byte comes after its last token, so a limit for streams must not end it."""
    stream_was_given_up = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        if exchange.json.get("stream"):
            await exchange.wait_closed()
        else:
            await stream_was_given_up.wait()
            await exchange.answer(200, b'{"late": true}')

    async with (
        FakeUpstream(script=script) as upstream,
        routed(upstream, first_byte_timeout_s=0.05, unhealthy_after_failures=100) as router,
        connection(router.url) as (reader, writer),
    ):
        writer.write(request_bytes("/v1/chat/completions", {**CHAT, "max_tokens": 100}))
        await upstream.next_exchange()
        async with request(router.url, body=STREAM) as answer:
            assert answer.status == 503
        stream_was_given_up.set()
        late = await answer_from(reader, writer)
        assert (late.status, await late.json()) == (200, {"late": True})


async def test_a_stream_that_pauses_for_too_long_is_given_up() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.stream_head()
        await exchange.chunk(ROLE)
        await exchange.wait_closed()

    async with FakeUpstream(script=script) as upstream, routed(upstream, stream_idle_timeout_s=0.05) as router:
        async with request(router.url, body=STREAM) as answer:
            assert b"upstream_error" in await answer.body()
        assert finishes(router) == [Finish.FAILED]


async def test_with_every_backend_down_the_answer_is_503_at_once() -> None:
    async with FakeUpstream() as upstream:
        await upstream.refuse_connections()
        async with routed(upstream) as router:
            for path in ("/v1/chat/completions", "/generate", "/v1/embeddings"):
                async with request(router.url, path, CHAT) as answer:
                    assert answer.status == 503
                    assert answer.header("retry-after") == "1"
                    body = await answer.json()
                    assert (body["object"], body["code"]) == ("error", 503)
                    assert "no connection (Connection refused)" in body["message"]
            async with request(router.url, "/ready", method="GET") as answer:
                assert answer.status == 503
            async with request(router.url, "/health", method="GET") as answer:
                assert answer.status == 200


async def test_a_killed_backend_gets_no_requests_until_it_is_back() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.stream_head()
        await exchange.chunk(ROLE)
        await exchange.wait_closed()

    async with (
        FakeUpstream(script=script) as killed,
        FakeUpstream(script=streaming(*chat_stream("a"))) as good,
        routed(killed, good) as router,
    ):
        async with request(router.url, body=STREAM) as answer:
            assert answer.header("x-drafter-selector-backend") == "b0"
            chunks = answer.chunks()
            await anext(chunks)
            await killed.refuse_connections()
            assert b"upstream_error" in b"".join([chunk async for chunk in chunks])
        for _ in range(3):
            async with request(router.url, body=STREAM) as answer:
                assert answer.header("x-drafter-selector-backend") == "b1"
                assert (await answer.body()).endswith(DONE)
        killed.script = streaming(*chat_stream("back"))
        await killed.listen()
        await killed.polled_afresh()
        assert state_of(router, "b0") is State.AVAILABLE
        async with request(router.url, body=STREAM) as answer:
            assert answer.header("x-drafter-selector-backend") == "b0"
            assert b"back" in await answer.body()


async def test_a_failure_makes_the_router_look_at_the_backend_at_once() -> None:
    async with FakeUpstream(script=broken) as upstream, routed(upstream, poll_interval_s=3600.0) as router:
        async with request(router.url, body=CHAT) as answer:
            assert answer.status == 503
        async with asyncio.timeout(DEADLINE_S):
            await upstream.polls_begun(2)


async def test_a_backend_that_is_not_ready_gets_no_requests() -> None:
    async with FakeUpstream() as starting, FakeUpstream(script=answering(200, b"{}")) as good:
        starting.ready_status = 503
        async with routed(starting, good) as router:
            async with request(router.url, body=CHAT) as answer:
                assert answer.header("x-drafter-selector-backend") == "b1"
            starting.ready_status = 404  # an older release
            starting.script = answering(200, b"{}")
            await starting.polled_afresh()
            async with request(router.url, body=CHAT) as answer:
                assert answer.header("x-drafter-selector-backend") == "b0"


async def test_a_backend_with_the_wrong_arm_is_quarantined_until_it_has_the_right_one() -> None:
    async with (
        FakeUpstream() as wrong,
        FakeUpstream(script=answering(200, b"{}")) as good,
        routed(wrong, good, arms=["eagle3-k3", "none"]) as router,
    ):
        assert state_of(router, "b0") is State.QUARANTINED
        assert "speculative_algorithm" in (router.state.watch.backends["b0"].reason or "")
        async with request(router.url, body=CHAT) as answer:
            assert answer.header("x-drafter-selector-backend") == "b1"
        wrong.info.update(EAGLE3_K3)
        await wrong.polled_afresh()
        assert state_of(router, "b0") is State.AVAILABLE


async def test_a_restart_with_another_arm_is_noticed_by_its_counters() -> None:
    async with FakeUpstream(EAGLE3_K3) as upstream:
        loads = {"num_running_reqs": 0, "num_waiting_reqs": 0, "decode_moments": [9, 9, 1, 1, 1, 20]}
        upstream.loads = {"loads": [loads]}
        async with routed(upstream, arms=["eagle3-k3"]) as router:
            assert state_of(router, "b0") is State.AVAILABLE
            upstream.info["speculative_num_steps"] = 5
            await upstream.polled_afresh()
            assert state_of(router, "b0") is State.AVAILABLE  # nothing made it ask
            loads["decode_moments"] = [1, 1, 1, 1, 1, 2]
            await upstream.polled_afresh()
            assert state_of(router, "b0") is State.QUARANTINED


async def test_a_policy_that_raises_costs_no_request(tmp_path: Path) -> None:
    policy = tmp_path / "raising.py"
    policy.write_text(
        "from dataclasses import dataclass\n"
        "@dataclass(frozen=True)\n"
        "class Params: pass\n"
        "class Raising:\n"
        "    def decide(self, request, fleet): raise RuntimeError('boom')\n"
        "    def observe(self, outcome): raise RuntimeError('boom')\n"
        "def make_policy(params, context): return Raising()\n",
        encoding="utf-8",
    )
    async with (
        FakeUpstream(script=answering(200, b"{}")) as upstream,
        routed(upstream, policy=str(policy)) as router,
    ):
        async with request(router.url, body=CHAT) as answer:
            assert answer.status == 200
        assert b"drafter_selector_policy_failures_total 2.0" in router.state.metrics.render()
        assert router.state.dispatcher.controller.last_policy_failure == "RuntimeError: boom"


async def test_a_policy_that_insists_on_a_failed_backend_does_not_loop(tmp_path: Path) -> None:
    policy = tmp_path / "insisting.py"
    policy.write_text(
        "from dataclasses import dataclass\n"
        "from selector.core.types import Decision\n"
        "@dataclass(frozen=True)\n"
        "class Params: pass\n"
        "class Insisting:\n"
        "    def decide(self, request, fleet): return Decision(backend='b0', reason='I insist')\n"
        "    def observe(self, outcome): pass\n"
        "def make_policy(params, context): return Insisting()\n",
        encoding="utf-8",
    )
    async with FakeUpstream(script=broken) as first, FakeUpstream() as second:
        async with routed(first, second, policy=str(policy), unhealthy_after_failures=100) as router:
            async with request(router.url, body=CHAT) as answer:
                assert answer.status == 503
            assert in_flight(router) == 0
        assert len(first.seen) == 1


async def test_a_policy_that_refuses_is_answered_503(tmp_path: Path) -> None:
    policy = tmp_path / "refusing.py"
    policy.write_text(
        "from dataclasses import dataclass\n"
        "from selector.core.types import Decision\n"
        "@dataclass(frozen=True)\n"
        "class Params: pass\n"
        "class Refusing:\n"
        "    def decide(self, request, fleet): return Decision(backend=None, reason='enough for today')\n"
        "    def observe(self, outcome): pass\n"
        "def make_policy(params, context): return Refusing()\n",
        encoding="utf-8",
    )
    async with FakeUpstream() as upstream, routed(upstream, policy=str(policy)) as router:
        async with request(router.url, body=CHAT) as answer:
            assert answer.status == 503
            assert "enough for today" in (await answer.json())["message"]
        assert in_flight(router) == 0


async def test_draining_refuses_new_requests_and_lets_running_ones_end() -> None:
    go_on = asyncio.Event()
    async with (
        FakeUpstream(script=held(go_on, *chat_stream("a"))) as upstream,
        routed(upstream) as router,
        connection(router.url) as (reader, writer),
        request(router.url, body=STREAM) as running,
    ):
        chunks = running.chunks()
        await anext(chunks)
        draining = asyncio.create_task(router.drain())
        await asyncio.sleep(0)  # lets it begin
        writer.write(request_bytes("/v1/chat/completions", STREAM))
        refused = await answer_from(reader, writer)
        assert (refused.status, refused.header("connection")) == (503, "close")
        async with request(router.url, "/ready", method="GET") as answer:
            assert answer.status == 503
        assert not draining.done()
        go_on.set()
        assert [chunk async for chunk in chunks][-1] == DONE
        assert await draining


async def test_draining_gives_up_at_its_limit() -> None:
    async with (
        FakeUpstream(script=hanging) as upstream,
        routed(upstream, drain_timeout_s=0.05) as router,
        connection(router.url) as (_, writer),
    ):
        writer.write(request_bytes("/v1/chat/completions", STREAM))
        await upstream.next_exchange()
        assert await router.drain() is False
    assert finishes(router) == [Finish.CANCELLED]


async def test_the_error_event_of_the_newer_routes_follows_their_conventions() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.stream_head()
        await exchange.chunk(event({"type": "message_start", "role": "assistant"}))
        await exchange.end()

    async with FakeUpstream(script=script) as upstream, routed(upstream) as router:
        for path, kind in (("/v1/messages", b'"api_error"'), ("/v1/responses", b'"upstream_error"')):
            async with request(router.url, path, {**STREAM, "input": "hi"}) as answer:
                body = await answer.body()
            assert b"event: error\n" in body
            assert kind in body
            assert DONE not in body
