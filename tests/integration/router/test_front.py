"""Client connections: what is plain is relayed, what is odd the library judges, and nobody is harmed by either."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from uvicorn.server import ServerState

from selector.core.types import Finish
from selector.router.app import RouterApp
from selector.router.exchange import Exchange as RouterExchange
from selector.router.front import Front
from selector.router.pool import ConnectionPool
from selector.router.tcp import prepare
from tests.integration.router.fake_upstream import Exchange, FakeUpstream, answering, hanging, held, streaming
from tests.integration.router.fuzzing import mutated_requests
from tests.integration.router.harness import CHAT, DONE, ROLE, chat_stream, delta, routed
from tests.integration.router.raw_client import DEADLINE_S, Answer, answer_from, connection, request, request_bytes
from tests.integration.router.test_failures import finishes, in_flight

STREAM: Mapping[str, Any] = {**CHAT, "stream": True}
PATH = "/v1/chat/completions"
BODY = orjson.dumps(CHAT)


def library_request(body: Mapping[str, Any]) -> bytes:
    """The same request in a way that is not plain: its body is chunked."""
    data = orjson.dumps(body)
    head = f"POST {PATH} HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n{len(data):x}\r\n"
    return head.encode() + data + b"\r\n0\r\n\r\n"


async def chunks_of(url: str, sent: bytes) -> list[bytes]:
    async with connection(url) as (reader, writer):
        writer.write(sent)
        answer = await answer_from(reader, writer)
        assert answer.status == 200
        return [chunk async for chunk in answer.chunks()]


@pytest.fixture
def library_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that came to the ASGI application."""
    calls: list[str] = []
    served = RouterApp.__call__

    async def noted(self: RouterApp, scope: Any, receive: Any, send: Any) -> None:
        calls.append(scope["path"])
        await served(self, scope, receive, send)

    monkeypatch.setattr(RouterApp, "__call__", noted)
    return calls


async def test_plain_requests_never_reach_the_library_and_keep_both_connections(library_calls: list[str]) -> None:
    async with (
        FakeUpstream(script=streaming(*chat_stream("a"))) as upstream,
        routed(upstream) as router,
        connection(router.url) as (reader, writer),
    ):
        for _ in range(3):
            writer.write(request_bytes(PATH, STREAM))
            answer = await answer_from(reader, writer)
            assert [chunk async for chunk in answer.chunks()][-1] == DONE
        assert len({exchange.writer for exchange in upstream.seen}) == 1
        assert library_calls == []
        writer.write(request_bytes("/health", method="GET"))
        assert (await answer_from(reader, writer)).status == 200
        assert library_calls == ["/health"]


async def test_the_library_s_way_gives_the_same_bytes(library_calls: list[str]) -> None:
    sent = [ROLE, delta(content="Hi") + delta(content=" there"), b": ping\n\n", *chat_stream()[-3:]]
    async with FakeUpstream(script=streaming(*sent)) as upstream, routed(upstream) as router:
        plain = await chunks_of(router.url, request_bytes(PATH, STREAM))
        assert library_calls == []
        odd = await chunks_of(router.url, library_request(STREAM))
        assert library_calls == [PATH]
        assert plain == odd == [*sent[:3], *[chunk for chunk in sent[3:] if b'"usage"' not in chunk]]
        bodies = [orjson.loads(exchange.body) for exchange in upstream.seen]
        assert {**bodies[0], "rid": ""} == {**bodies[1], "rid": ""}
        upstream.script = answering(200, b'{"n":1}')
        async with connection(router.url) as (reader, writer):
            writer.write(library_request(CHAT))
            assert await (await answer_from(reader, writer)).body() == b'{"n":1}'


async def test_a_client_that_expects_to_be_asked_for_its_body_is_asked() -> None:
    async with (
        FakeUpstream(script=answering(200, b"{}")) as upstream,
        routed(upstream) as router,
        connection(router.url) as (reader, writer),
    ):
        head, _, body = request_bytes(PATH, CHAT, {"Expect": "100-continue"}).partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await answer_from(reader, writer)).status == 200


async def test_a_client_of_http_1_0_gets_a_whole_answer_without_chunks() -> None:
    async with (
        FakeUpstream(script=streaming(*chat_stream("a"))) as upstream,
        routed(upstream) as router,
        connection(router.url) as (reader, writer),
    ):
        writer.write(request_bytes(PATH, STREAM).replace(b"HTTP/1.1", b"HTTP/1.0"))
        answer = await answer_from(reader, writer)
        assert answer.header("transfer-encoding") is None
        assert answer.header("connection") == "close"
        assert (await answer.body()).endswith(DONE)
        assert await reader.read() == b""


async def test_the_head_of_a_relayed_route_is_refused_as_its_get_is() -> None:
    async with FakeUpstream() as upstream, routed(upstream) as router:
        for method in ("GET", "HEAD", "PUT"):
            async with request(router.url, PATH, b"", method=method) as answer:
                assert (answer.status, answer.header("allow")) == (405, "POST")
        assert upstream.seen == []


async def test_a_request_may_come_byte_by_byte() -> None:
    async with (
        FakeUpstream(script=answering(200, b"{}")) as upstream,
        routed(upstream) as router,
        connection(router.url) as (reader, writer),
    ):
        for byte in request_bytes(PATH, CHAT):
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await answer_from(reader, writer)).status == 200
        assert upstream.seen[0].json["messages"] == CHAT["messages"]


async def test_requests_sent_ahead_are_answered_in_order_whoever_answers_them() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.answer(200, orjson.dumps(exchange.json["n"]))

    async with (
        FakeUpstream(script=script) as upstream,
        routed(upstream) as router,
        connection(router.url) as (reader, writer),
    ):
        ahead = [
            request_bytes(PATH, {**CHAT, "n": 11}),
            request_bytes(PATH, {**CHAT, "n": 12}),
            request_bytes("/health", method="GET"),
            request_bytes(PATH, {**CHAT, "n": 13}),
            library_request({**CHAT, "n": 14}),
        ]
        writer.write(b"".join(ahead))
        answers = [await _read(await answer_from(reader, writer)) for _ in ahead]
        assert answers == [(200, b"11"), (200, b"12"), (200, b""), (200, b"13"), (200, b"14")]


async def _read(answer: Answer) -> tuple[int, bytes]:
    return answer.status, await answer.body()


async def test_what_is_sent_ahead_without_end_is_dropped_and_the_leaving_after_it_noticed() -> None:
    async with FakeUpstream(script=hanging) as upstream, routed(upstream) as router:
        async with connection(router.url) as (_, writer):
            writer.write(request_bytes(PATH, CHAT))
            exchange = await upstream.next_exchange()
            writer.write(b"x" * 1_000_000)
            await writer.drain()
            assert in_flight(router) == 1
        await exchange.closed.wait()


async def test_an_answer_under_way_survives_what_is_sent_ahead_of_its_end() -> None:
    go_on = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await go_on.wait()
        await exchange.answer(200, b"{}")

    async with (
        FakeUpstream(script=script) as upstream,
        routed(upstream) as router,
        connection(router.url) as (reader, writer),
    ):
        writer.write(request_bytes(PATH, CHAT))
        await upstream.next_exchange()
        writer.write(b"x" * 1_000_000)
        await writer.drain()
        go_on.set()
        answer = await answer_from(reader, writer)
        assert await _read(answer) == (200, b"{}")
        assert answer.header("connection") == "close"
        assert await reader.read() == b""


@pytest.mark.parametrize("begun", [True, False])
async def test_nonsense_behind_a_request_ends_both_and_is_no_part_of_an_answer(
    begun: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(exchange: Exchange) -> None:
        if begun:
            await exchange.stream_head()
            await exchange.chunk(ROLE)
        await exchange.wait_closed()

    async with (
        FakeUpstream(script=script) as upstream,
        routed(upstream) as router,
        connection(router.url) as (reader, writer),
    ):
        writer.write(library_request(STREAM))
        exchange = await upstream.next_exchange()
        if begun:
            answer = await answer_from(reader, writer)
            assert await anext(answer.chunks()) == ROLE
        writer.write(b"nonsense\r\n\r\n")
        received = await reader.read()
        assert received.count(b"HTTP/1.1") == (0 if begun else 1)
        await exchange.closed.wait()
        await router.drain()
        assert (finishes(router), in_flight(router)) == ([Finish.CANCELLED], 0)
        assert b'refused_requests_total{status="400"} 1.0' in router.state.metrics.render()
    assert "ASGI" not in caplog.text


SMUGGLED = b"POST /generate HTTP/1.1\r\nHost: r\r\nContent-Length: 2\r\n\r\n{}"
LENGTH = f"Content-Length: {len(BODY)}".encode()
REFUSED = {
    "two lengths": b"Content-Length: 0\r\n" + LENGTH,
    "a length and chunks": LENGTH + b"\r\nTransfer-Encoding: chunked",
    "chunks and a length": b"Transfer-Encoding: chunked\r\n" + LENGTH,
    "chunks of another name": b"Transfer-Encoding: xchunked\r\n" + LENGTH,
    "chunks that are not the last": b"Transfer-Encoding: chunked, identity\r\n" + LENGTH,
    "a folded length": b"Content-Length:\r\n " + str(len(BODY)).encode(),
    "a folded line": b"X-A: b\r\n c\r\n" + LENGTH,
    "a negative length": b"Content-Length: -1",
    "a length with a plus": LENGTH.replace(b": ", b": +"),
    "a length in hex": b"Content-Length: 0x10",
    "a list of lengths": LENGTH + b", " + str(len(BODY)).encode(),
    "a space before the colon": LENGTH.replace(b":", b" :"),
    "a bare carriage return": b"X-A: b\rContent-Length: 0\r\n" + LENGTH,
    "a NUL in a value": b"X-A: \0\r\n" + LENGTH,
    "a NUL in a name": b"X\0A: b\r\n" + LENGTH,
    "no colon": b"X-A\r\n" + LENGTH,
}


@pytest.mark.parametrize("shape", REFUSED)
async def test_a_request_that_two_servers_could_read_differently_is_refused(shape: str) -> None:
    async with (
        FakeUpstream(script=answering(200, b"{}")) as upstream,
        routed(upstream) as router,
        connection(router.url) as (reader, writer),
    ):
        head = f"POST {PATH} HTTP/1.1\r\nHost: r\r\n".encode()
        writer.write(head + REFUSED[shape] + b"\r\n\r\n" + BODY + SMUGGLED)
        answer = await answer_from(reader, writer)
        assert (answer.status, answer.header("connection")) == (400, "close")
        assert await answer.body()
        assert await reader.read() == b""  # closed, with no second answer
        assert upstream.seen == []


@pytest.mark.parametrize("value", ["close, keep-alive", "keep-alive, close", "keep-alive\r\nConnection: close"])
async def test_a_client_that_contradicts_itself_about_its_connection_loses_it(value: str) -> None:
    async with (
        FakeUpstream(script=answering(200, b"{}")) as upstream,
        routed(upstream) as router,
        connection(router.url) as (reader, writer),
    ):
        writer.write(request_bytes(PATH, CHAT, {"Connection": value}))
        answer = await answer_from(reader, writer)
        assert (answer.status, answer.header("connection"), await answer.body()) == (200, "close", b"{}")
        assert await reader.read() == b""
        assert upstream.seen[0].header("connection") is None


async def test_a_request_without_a_length_has_no_body_and_hides_none() -> None:
    async with (
        FakeUpstream(script=answering(200, b"{}")) as upstream,
        routed(upstream) as router,
        connection(router.url) as (reader, writer),
    ):
        writer.write(f"POST {PATH} HTTP/1.1\r\nHost: r\r\n\r\n".encode() + request_bytes("/generate", {"text": "x"}))
        first, second = [await _read(await answer_from(reader, writer)) for _ in range(2)]
        assert (first[0], second[0]) == (400, 200)
        assert [exchange.target for exchange in upstream.seen] == ["/generate"]


@pytest.mark.parametrize("first", [b"POST /generate HTTP/1.1\r\nX: ", b"GET /health HTTP/1.1\r\nX: "])
@pytest.mark.parametrize("flood", [b"x" * 70_000, b"\r\nX: y" * 12_000])
async def test_an_endless_head_is_refused(first: bytes, flood: bytes) -> None:
    async with FakeUpstream() as upstream, routed(upstream) as router, connection(router.url) as (reader, writer):
        writer.write(first + flood)
        answer = await answer_from(reader, writer)
        assert answer.status in (400, 431)
        assert answer.header("connection") == "close"


async def test_a_client_that_does_not_read_slows_its_backend_and_nobody_else() -> None:
    event = delta(content="x" * 60_000)
    total = 400
    written = 0

    async def script(exchange: Exchange) -> None:
        nonlocal written
        if not exchange.json.get("slow"):
            await streaming(*chat_stream("a"))(exchange)
            return
        await exchange.stream_head()
        for _ in range(total):
            await exchange.chunk(event)
            written += 1
        await exchange.chunk(DONE)
        await exchange.end()

    for sent in (request_bytes(PATH, {**STREAM, "slow": 1}), library_request({**STREAM, "slow": 1})):
        written = 0
        async with (
            FakeUpstream(script=script) as upstream,
            routed(upstream) as router,
            connection(router.url) as (reader, writer),
        ):
            writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            writer.write(sent)
            answer = await answer_from(reader, writer)
            before = -1
            while before != written:  # until the backend is stuck
                before = written
                for _ in range(5):
                    async with request(router.url, body=STREAM) as other:
                        assert (await other.body()).endswith(DONE)
            assert written < total / 2, "everything is held for the client"
            body = b"".join([chunk async for chunk in answer.chunks()])
            assert body == total * event + DONE


UNFINISHED = {
    "a plain head": request_bytes(PATH, CHAT)[:60],
    "a plain body": request_bytes(PATH, CHAT)[:-3],
    "a head that is not plain": b"GET /v1/models HTTP/1.1\r\nHost: r\r\n",
    "a body that is not plain": library_request(CHAT)[:-20],
}


@pytest.mark.parametrize("what", UNFINISHED)
async def test_a_client_that_vanishes_in_the_middle_of_its_request_is_let_go(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("selector.router.listening._KEEP_ALIVE_S", 0)
    monkeypatch.setattr("selector.router.front.LOOK_EVERY_S", 0.01)
    monkeypatch.setattr("selector.router.library.LOOK_EVERY_S", 0.01)
    async with FakeUpstream() as upstream, routed(upstream) as router, connection(router.url) as (reader, writer):
        writer.write(UNFINISHED[what])
        assert await reader.read() == b""
        assert upstream.seen == []


async def test_a_peer_that_vanished_is_noticed_by_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep-alive probes find it when nothing is sent, and unacknowledged data when something is."""
    raw = socket.socket()
    try:
        prepare(raw)
        assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 20
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 5
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 75_000
        monkeypatch.delattr(socket, "TCP_USER_TIMEOUT")
        prepare(raw)
    finally:
        raw.close()


async def test_a_client_that_closes_its_side_has_left() -> None:
    async with (
        FakeUpstream(script=hanging) as upstream,
        routed(upstream) as router,
        connection(router.url) as (_, writer),
    ):
        writer.write(request_bytes(PATH, STREAM))
        exchange = await upstream.next_exchange()
        writer.write_eof()
        await exchange.closed.wait()
        await router.drain()
        assert (finishes(router), in_flight(router)) == ([Finish.CANCELLED], 0)


async def test_clients_that_leave_behind_the_library_free_their_backends_too() -> None:
    async with FakeUpstream(script=hanging) as upstream, routed(upstream) as router:
        async with connection(router.url) as (_, writer):
            writer.write(library_request(STREAM))
            exchange = await upstream.next_exchange()
        await exchange.closed.wait()
        await router.drain()
        assert (finishes(router), in_flight(router)) == ([Finish.CANCELLED], 0)


@pytest.mark.parametrize("reset", [True, False])
async def test_a_client_that_leaves_with_several_requests_behind_the_library_frees_the_first_too(reset: bool) -> None:
    async with FakeUpstream(script=hanging) as upstream, routed(upstream) as router:
        async with connection(router.url) as (_, writer):
            raw = writer.transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", reset, 0))
            writer.write(library_request(STREAM))
            exchange = await upstream.next_exchange()
            writer.write(library_request(STREAM))
            await writer.drain()
        async with asyncio.timeout(DEADLINE_S):
            await exchange.closed.wait()
        await router.drain()
        assert (finishes(router), in_flight(router)) == ([Finish.CANCELLED], 0)


async def test_requests_cut_off_at_the_end_are_no_faults_and_nonsense_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeUpstream(script=hanging) as upstream:
        async with (
            routed(upstream, drain_timeout_s=0.01) as router,
            connection(router.url) as (reader, writer),
            connection(router.url) as (_, hanging_writer),
        ):
            writer.write(b"nonsense\r\n\r\n")
            assert (await answer_from(reader, writer)).status == 400
            hanging_writer.write(library_request(STREAM))
            await upstream.next_exchange()
            await router.drain()
            await router.__aexit__(None, None, None)
        assert [record for record in caplog.records if record.name != "asyncio"] == []


async def test_a_client_that_sends_ahead_without_end_is_closed() -> None:
    async with (
        FakeUpstream(script=hanging) as upstream,
        routed(upstream) as router,
        connection(router.url) as (reader, writer),
    ):
        writer.write(16 * library_request(STREAM))
        exchange = await upstream.next_exchange()
        assert in_flight(router) == 1
        writer.write(library_request(STREAM))
        assert await reader.read() == b""
        await exchange.closed.wait()
        await router.drain()
        assert (finishes(router), in_flight(router), len(upstream.seen)) == ([Finish.CANCELLED], 0, 1)


async def test_the_body_is_let_go_once_an_answer_has_begun() -> None:
    go_on = asyncio.Event()
    async with (
        FakeUpstream(script=held(go_on, *chat_stream("a"))) as upstream,
        routed(upstream) as router,
        request(router.url, body={**STREAM, "rid": "mine"}) as answer,
    ):
        chunks = answer.chunks()
        await anext(chunks)
        (flight,) = router.state.dispatcher.flights.values()
        assert (flight.request.body, flight.request.fields) == (b"", {})
        assert flight.request.rids == ("mine",)
        go_on.set()
        assert [chunk async for chunk in chunks][-1] == DONE


async def test_a_fault_of_the_router_is_answered_500_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        FakeUpstream(script=streaming(*chat_stream("a"))) as upstream,
        routed(upstream) as router,
    ):
        with monkeypatch.context() as broken:
            broken.setattr("selector.router.relay.response_headers", lambda headers: [(b"x", b"\r\n")])
            async with request(router.url, body=STREAM) as answer:
                assert (answer.status, answer.header("connection")) == (500, "close")
        assert (finishes(router), in_flight(router)) == ([Finish.FAILED], 0)
        assert "could not be served" in caplog.text
        async with request(router.url, body=STREAM) as answer:
            assert (await answer.body()).endswith(DONE)


async def test_small_packets_are_not_held_back_on_either_side() -> None:
    def held_back(raw: Any) -> bool:
        return not raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    loop = asyncio.get_running_loop()
    fronts: list[Front] = []
    accepted = asyncio.Event()

    class Noted(Front):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
            super().connection_made(transport)
            fronts.append(self)
            accepted.set()

    config: Any = SimpleNamespace(timeout_keep_alive=75)
    nothing: Any = None
    server = await loop.create_server(lambda: Noted(config, ServerState(), {}, serving=nothing), "127.0.0.1", 0)
    pool = ConnectionPool("127.0.0.1", server.sockets[0].getsockname()[1], tls=None, connect_timeout_s=5.0)
    to_backend = await pool.connect()
    await accepted.wait()
    assert not held_back(fronts[0]._transport.get_extra_info("socket"))
    assert not held_back(to_backend._transport.get_extra_info("socket"))
    await pool.close()
    fronts[0]._transport.abort()
    server.close()


async def test_an_idle_connection_to_a_backend_that_closes_or_speaks_is_not_used() -> None:
    async with FakeUpstream(script=answering(200, b"{}")) as upstream:
        pool = ConnectionPool("127.0.0.1", upstream.port, tls=None, connect_timeout_s=5.0)
        first = await pool.connect()
        exchange = RouterExchange(first, asyncio.get_running_loop(), 60.0)
        first.begin(exchange, request_bytes(PATH, CHAT))
        await exchange.head(5.0)
        assert await exchange.whole_body() == b"{}"
        assert pool.idle() is first
        pool.give_back(first)
        (await upstream.next_exchange()).break_off()
        async with asyncio.timeout(DEADLINE_S):
            while first.usable:  # noqa: ASYNC110 - it has no event to wait for
                await asyncio.sleep(0)
        assert pool.idle() is None
        late = RouterExchange(first, asyncio.get_running_loop(), 60.0)
        first.begin(late, b"x")
        with pytest.raises(Exception, match="the connection broke"):
            await late.head(5.0)
        await pool.close()


async def test_odd_requests_by_the_hundred_cost_an_answer_each_at_most() -> None:
    """`FUZZ_REQUESTS=10000` makes it a long run."""
    count = int(os.environ.get("FUZZ_REQUESTS", "400"))
    statuses: dict[int, int] = {}
    async with (
        FakeUpstream(script=streaming(*chat_stream("a"))) as upstream,
        routed(upstream, max_body_bytes=10_000, unhealthy_after_failures=1_000_000) as router,
    ):
        for sent in mutated_requests(count, seed=7):
            async with connection(router.url) as (reader, writer):
                writer.write(sent)
                writer.write_eof()
                received = await _everything(reader)
            for line in received.split(b"\r\n"):
                if line.startswith(b"HTTP/1.1 "):
                    statuses[int(line[9:12])] = statuses.get(int(line[9:12]), 0) + 1
        assert 500 not in statuses, statuses
        assert statuses.get(400, 0) > count / 20, "the requests are not odd enough"
        await router.drain()
        assert in_flight(router) == 0
        for exchange in upstream.seen:
            assert orjson.loads(exchange.body) is not None
            assert [name for name, _ in exchange.headers].count("content-length") == 1
            assert "transfer-encoding" not in [name.lower() for name, _ in exchange.headers]


async def _everything(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""
