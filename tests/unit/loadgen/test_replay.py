"""The replay sends when requests are due, whatever comes back, and reports what a reader would have seen."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from selector.files.trace import TraceRequest
from selector.loadgen.replay import Answer, LagWatch, Replay, TimedRequest
from selector.simulator.arrivals import Arrivals, ClosedLoop
from selector.simulator.run import SimulatedRequest
from tests.skippingloop import SkippingLoop, run_skipping

ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
FINISH = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def content(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


def usage(tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}}


@dataclass(slots=True)
class Received:
    """One request as it came, and the connection it is answered on."""

    at_s: float
    path: str
    headers: dict[str, str]
    body: Any
    writer: asyncio.StreamWriter

    def start(self, status: str = "200 OK", **headers: str) -> None:
        """The head of an answer that ends when the connection closes."""
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        head = [f"HTTP/1.1 {status}", "connection: close", *lines]
        self.writer.write("\r\n".join([*head, "", ""]).encode())

    def event(self, data: object) -> None:
        """One server-sent event."""
        payload = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
        self.writer.write(f"data: {payload}\n\n".encode())


Handler = Callable[[Received], Awaitable[None]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[tuple[str, list[Received]]]:
    """A server on a free port that knows as much of HTTP as the replay needs; its url, and what it received."""
    received: list[Received] = []

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:]) if name}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        request = Received(asyncio.get_running_loop().time(), head[0].split()[1], headers, body, writer)
        received.append(request)
        try:
            await handler(request)
        finally:
            writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"http://{host}:{port}", received
    finally:
        server.close()
        await server.wait_closed()


def timed(number: int, due_s: float = 0.0, **headers: str) -> TimedRequest:
    return TimedRequest(
        number=number, due_s=due_s, body={"n": number}, headers=headers, text_type="code", tbt_target_ms=25.0
    )


def replayed(handler: Handler, requests: Sequence[TimedRequest], **options: Any) -> tuple[list[Answer], list[Received]]:
    """Replays `requests` against a server with that handler, on a clock that skips its waits."""

    async def main() -> tuple[list[Answer], list[Received]]:
        async with serving(handler) as (url, received):
            replay = Replay(url, requests, **options)
            answers = await replay.run()
            assert replay.in_flight == 0
            return answers, received

    return run_skipping(main)


async def four_tokens(request: Received) -> None:
    """The first token after 250 ms, the others 30 ms apart, two of them in one event."""
    request.start(x_drafter_selector_arm="dspark-8")
    await asyncio.sleep(0.25)
    request.event(content("one"))
    await asyncio.sleep(0.03)
    request.event(content("two three"))
    await asyncio.sleep(0.06)
    request.event(content("four"))
    request.event(FINISH)
    request.event(usage(4))
    request.event("[DONE]")


def test_an_answer_is_measured_as_its_reader_sees_it() -> None:
    ((answer,), (received,)) = replayed(four_tokens, [timed(7, x_text_type="code")])
    assert (answer.error, answer.status, answer.arm, answer.tokens) == (None, 200, "dspark-8", 4)
    assert answer.ttft_ms == pytest.approx(250.0)
    assert answer.tbt_ms == pytest.approx(90.0 / 3), "by tokens, not by events"
    assert answer.finished_s == pytest.approx(0.34)
    assert answer.late_ms == pytest.approx(0.0)
    assert answer.request.number == 7
    assert received.path == "/v1/chat/completions"
    assert received.body == {"n": 7}
    assert received.headers["content-type"] == "application/json"
    assert received.headers["x_text_type"] == "code"


@pytest.mark.parametrize("time_scale", [0.5, 4.0])
def test_times_are_those_of_the_replayed_clock(time_scale: float) -> None:
    requests = [timed(number, due_s=float(number)) for number in range(3)]
    answers, received = replayed(four_tokens, requests, time_scale=time_scale)
    assert [request.at_s for request in received] == pytest.approx([0.0, 1.0 / time_scale, 2.0 / time_scale])
    for number, answer in enumerate(answers):
        assert answer.ttft_ms == pytest.approx(250.0 * time_scale)
        assert answer.tbt_ms == pytest.approx(30.0 * time_scale)
        assert answer.finished_s == pytest.approx(number + 0.34 * time_scale)


def test_requests_are_sent_when_they_are_due_though_nothing_is_answered() -> None:
    """An open loop: a closed one would wait for an answer, and the server answers none before it has them all."""
    all_there = asyncio.Event()
    count = 0

    async def patient(request: Received) -> None:
        nonlocal count
        count += 1
        if count == 20:
            all_there.set()
        await all_there.wait()
        await four_tokens(request)

    due_s = [0.5 * number for number in range(20)]
    answers, received = replayed(patient, [timed(number, due) for number, due in enumerate(due_s)])
    assert [request.at_s for request in received] == pytest.approx(due_s)
    assert [answer.error for answer in answers] == [None] * 20
    assert answers[0].ttft_ms == pytest.approx(1e3 * (9.5 + 0.25))


def test_answers_come_in_the_order_they_were_due_and_are_told_as_they_end() -> None:
    told: list[int] = []

    async def later_ones_first(request: Received) -> None:
        await asyncio.sleep(5.0 - 2.0 * request.body["n"])
        await four_tokens(request)

    requests = [timed(2, 0.2), timed(0, 0.0), timed(1, 0.1)]
    answers, _ = replayed(later_ones_first, requests, on_answer=lambda answer: told.append(answer.request.number))
    assert [answer.request.number for answer in answers] == [0, 1, 2]
    assert told == [2, 1, 0]


def clients(count: int, clients_at: Sequence[tuple[float, int]], **options: Any) -> Arrivals:
    """Clients that have so many requests to send."""
    trace = TraceRequest(request_id="", arrival_s=0.0, prompt_tokens=10, output_tokens=4)
    request = SimulatedRequest(trace=trace, text_type="code", slo_class="live", tbt_target_ms=None)
    return ClosedLoop([request] * count, clients_at, **options).start()


@pytest.mark.parametrize("time_scale", [0.5, 4.0])
def test_clients_send_their_next_request_when_their_last_one_was_answered(time_scale: float) -> None:
    arrivals = clients(9, [(0.0, 1), (1.0, 1), (1.0, 2), (2.0, 2), (2.0, 0)])
    requests = [timed(number) for number in range(9)]
    answers, received = replayed(four_tokens, requests, time_scale=time_scale, arrivals=arrivals)
    sent_s = [request.at_s * time_scale for request in received]
    # An answer takes 0.34 s of the server; at 2 s clients go, who were two from 1 s on.
    assert max(sent_s) < 2.0
    assert [answer.request.number for answer in answers] == list(range(len(received)))
    takes_s = 0.34 * time_scale
    alone = [at_s for at_s in sent_s if at_s < 1.0]
    assert alone == pytest.approx([number * takes_s for number in range(len(alone))])
    assert any(at_s == pytest.approx(1.0) for at_s in sent_s), "the second client"
    for at_s in sent_s:
        there = sum(other <= at_s < other + takes_s - 1e-6 for other in sent_s)
        assert there <= (1 if at_s < 1.0 else 2)


def test_clients_end_with_their_requests() -> None:
    answers, received = replayed(four_tokens, [timed(0), timed(1), timed(2)], arrivals=clients(3, [(0.0, 2)]))
    assert len(received) == len(answers) == 3


def test_a_client_that_is_refused_tries_again_later_with_its_next_request() -> None:
    async def at_second_try(request: Received) -> None:
        if request.body["n"] == 0:
            request.start(status="503 Service Unavailable")
        else:
            await four_tokens(request)

    arrivals = clients(2, [(0.0, 1)], retry_s=3.0)
    answers, received = replayed(at_second_try, [timed(0), timed(1)], arrivals=arrivals)
    assert [answer.error is None for answer in answers] == [False, True]
    assert [request.at_s for request in received] == pytest.approx([0.0, 3.0])


def test_how_late_requests_were_sent_is_told_in_real_time() -> None:
    async def main() -> list[Answer]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SkippingLoop)
        async with serving(four_tokens) as (url, _):
            # While the loop is busy from 0.9 s to 1.1 s, the second request becomes due.
            loop.call_at(loop.time() + 0.9, loop.pass_s, 0.2)
            return await Replay(url, [timed(0), timed(1, 2.0)], time_scale=2.0).run()

    first, second = run_skipping(main)
    assert first.late_ms == pytest.approx(0.0)
    assert second.late_ms == pytest.approx(100.0)
    assert second.ttft_ms == pytest.approx(500.0), "from when it was sent"


def test_nothing_to_send_is_done_at_once() -> None:
    assert replayed(four_tokens, []) == ([], [])


# ---- answers that fail


async def refusing(request: Received) -> None:
    request.start("503 Service Unavailable", x_drafter_selector_arm="none")
    request.writer.write(b'{"object":"error","message":"The request queue is full."}')


async def garbled(request: Received) -> None:
    request.start("500 Internal Server Error", content_type="text/plain; charset=utf-8")
    request.writer.write(b"\xff\xfe oops")


async def dropping(request: Received) -> None:
    request.start(transfer_encoding="chunked")
    request.writer.write(b"f4\r\n")
    request.event(content("one"))


async def hanging_up(request: Received) -> None:
    """Closes the connection without a word."""


async def ending_early(request: Received) -> None:
    request.start()
    request.event(content("one"))
    request.event(content("two"))


async def failing_in_the_stream(request: Received) -> None:
    request.start()
    request.event(content("one"))
    request.event({"error": {"message": "backend b0 failed", "type": "upstream_error", "code": 502}})
    request.event("[DONE]")


async def never_answering(request: Received) -> None:
    await asyncio.sleep(1e6)


@pytest.mark.parametrize(
    ("handler", "status", "words"),
    [
        (refusing, 503, 'HTTP 503: {"object":"error","message":"The request queue is full."}'),
        (garbled, 500, "HTTP 500: \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER} oops"),
        (dropping, 200, "ClientPayloadError: "),
        (hanging_up, None, "ServerDisconnectedError: "),
        (ending_early, 200, "the stream ended without [DONE]"),
        (failing_in_the_stream, 200, "backend b0 failed"),
    ],
)
def test_an_answer_that_fails_says_how_and_the_others_go_on(handler: Handler, status: int | None, words: str) -> None:
    async def first_fails(request: Received) -> None:
        await (handler if request.body["n"] == 0 else four_tokens)(request)

    (failed, fine), _ = replayed(first_fails, [timed(0), timed(1, 0.1)])
    assert failed.status == status
    assert failed.error is not None and failed.error.startswith(words)
    assert (fine.error, fine.tokens) == (None, 4)


def test_an_answer_that_never_comes_is_given_up() -> None:
    ((answer,), _) = replayed(never_answering, [timed(0)], timeout_s=120.0)
    assert answer.error is not None and "Timeout" in answer.error
    assert (answer.tokens, answer.ttft_ms, answer.tbt_ms) == (0, None, None)
    assert answer.finished_s == pytest.approx(120.0, abs=1.0)


def test_a_server_that_is_not_there_is_an_error_of_each_request() -> None:
    async def main() -> list[Answer]:
        async with serving(four_tokens) as (url, _):
            pass
        return await Replay(url, [timed(0), timed(1, 0.1)]).run()

    answers = run_skipping(main)
    assert [answer.status for answer in answers] == [None, None]
    assert all(answer.error and answer.error.startswith("ClientConnectorError: ") for answer in answers)


def test_a_role_chunk_is_the_first_sign_of_an_answer_whose_text_is_held_back() -> None:
    async def held_back(request: Received) -> None:
        request.start()
        await asyncio.sleep(0.1)
        request.event(ROLE)
        await asyncio.sleep(0.9)
        request.event(content("all of it"))
        request.event(FINISH)
        request.event(usage(10))
        request.event("[DONE]")

    ((answer,), _) = replayed(held_back, [timed(0)])
    assert answer.ttft_ms == pytest.approx(100.0)
    assert answer.tbt_ms == pytest.approx(900.0 / 9)


# ---- the loop's own lag


async def test_lag_is_how_long_a_callback_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock here is 25 ms ahead where callbacks run of where they are posted, as if they had waited that long."""
    runs_here, enough, calls = threading.current_thread(), asyncio.Event(), 0

    def clock() -> float:
        nonlocal calls
        if threading.current_thread() is not runs_here:
            return 10.0
        calls += 1
        if calls == 3:
            enough.set()
        return 10.025

    monkeypatch.setattr(time, "perf_counter", clock)
    async with LagWatch(interval_s=0.001) as lag:
        await enough.wait()
    assert len(lag.lags_ms) >= 3
    assert lag.lags_ms == pytest.approx([25.0] * len(lag.lags_ms))
    assert "lag-watch" not in {thread.name for thread in threading.enumerate()}


async def test_the_watch_ends_when_its_user_fails() -> None:
    with pytest.raises(ZeroDivisionError):
        async with LagWatch():
            raise ZeroDivisionError
    assert "lag-watch" not in {thread.name for thread in threading.enumerate()}
