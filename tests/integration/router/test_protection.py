"""What keeps failing backends from harming requests: breakers, ejection, and retries that stay few and safe."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from selector.core.types import Finish
from selector.router.health import State
from selector.router.running import RunningRouter
from tests.integration.router.fake_upstream import EAGLE3_K3, Exchange, FakeUpstream, answering, broken, streaming
from tests.integration.router.harness import CHAT, DONE, INFO, chat_stream, event, routed
from tests.integration.router.raw_client import DEADLINE_S, Answer, connection, request, request_bytes
from tests.integration.router.test_failures import finishes, in_flight, state_of

STREAM: Mapping[str, Any] = {**CHAT, "stream": True}
FINE = streaming(*chat_stream("a"))
NO_PAUSE = "retry_backoff_ms = 0"


class Clock:
    """A router's clock that a test turns."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def faults(*settings: str) -> str:
    return "\n".join(("[faults]", *settings))


async def answered(router: RunningRouter, body: Mapping[str, Any] = STREAM, path: str = "/v1/chat/completions") -> int:
    async with request(router.url, path, body) as answer:
        await answer.body()
        return answer.status


async def until(router: RunningRouter, backend: str, state: State) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while state_of(router, backend) is not state:  # noqa: ASYNC110 - the state has no event to wait for
            await asyncio.sleep(0)


def reason(router: RunningRouter, backend: str = "b0") -> str:
    return router.state.watch.backends[backend].reason or ""


def metric(router: RunningRouter, line: str) -> float:
    """The value of the metric whose name and labels end in `line`."""
    (found,) = [text for text in router.state.metrics.render().decode().splitlines() if f"{line} " in text]
    return float(found.rpartition(" ")[2])


async def explained(router: RunningRouter, rid: str) -> dict[str, Any]:
    async with request(router.url, f"/explain?rid={rid}", method="GET") as answer:
        told: dict[str, Any] = await answer.json()
        return told


async def test_a_server_that_is_ready_but_fails_every_request_is_tried_by_one_now_and_then() -> None:
    clock = Clock()
    async with (
        FakeUpstream(script=broken) as upstream,
        routed(
            upstream,
            tables_more=faults("breaker_failures = 3", "breaker_open_s = 10.0"),
            unhealthy_after_failures=1_000,
            clock=clock,
        ) as router,
    ):
        for _ in range(3):
            assert await answered(router) == 503
        assert state_of(router, "b0") is State.TRIPPED
        assert "circuit breaker open after 3 failures in a row: the connection broke" in reason(router)
        await upstream.polled_afresh()
        async with request(router.url, body=STREAM) as answer:
            assert (answer.status, answer.header("retry-after")) == (503, "1")
            assert "circuit breaker open" in (await answer.json())["message"]
        assert len(upstream.seen) == 3  # polls that succeed do not close it
        assert metric(router, 'breaker_openings_total{arm="none",backend="b0"}') == 1
        assert metric(router, 'breaker_state{arm="none",backend="b0",circuit="open"}') == 1

        go_on = asyncio.Event()

        async def held(exchange: Exchange) -> None:
            await go_on.wait()
            await FINE(exchange)

        upstream.script = held
        clock.now_s = 10.0
        await until(router, "b0", State.AVAILABLE)
        trying = asyncio.create_task(answered(router))
        await until(router, "b0", State.TRIPPED)
        assert await answered(router) == 503  # only one tries
        go_on.set()
        assert await trying == 200
        assert state_of(router, "b0") is State.AVAILABLE
        assert await answered(router) == 200
        assert in_flight(router) == 0


async def test_a_client_that_leaves_while_its_request_tries_a_backend_decides_nothing() -> None:
    clock = Clock()
    async with (
        FakeUpstream(script=broken) as upstream,
        routed(
            upstream, tables_more=faults("breaker_failures = 1"), unhealthy_after_failures=1_000, clock=clock
        ) as router,
    ):
        assert await answered(router) == 503
        upstream.script = lambda exchange: exchange.wait_closed()
        clock.now_s = 100.0
        await until(router, "b0", State.AVAILABLE)
        async with connection(router.url) as (_, writer):
            writer.write(request_bytes("/v1/chat/completions", STREAM))
            await until(router, "b0", State.TRIPPED)
        await until(router, "b0", State.AVAILABLE)
        upstream.script = FINE
        assert await answered(router) == 200
        assert in_flight(router) == 0


async def test_a_backend_whose_answers_are_errors_is_left_out_while_its_peers_answer() -> None:
    async with (
        FakeUpstream(script=answering(500, b"{}")) as bad,
        FakeUpstream(script=FINE) as good,
        routed(
            bad, good, policy="round_robin", tables_more=faults("outlier_min_requests = 5", "outlier_eject_s = 300.0")
        ) as router,
    ):
        statuses = [await answered(router) for _ in range(12)]
        # What a backend answers is the client's, until it is left out: from the fifth on, as soon as that is looked at.
        assert statuses[:10:2] == [500] * 5 and statuses.count(500) <= 6
        await until(router, "b0", State.EJECTED)
        assert "of its requests fail" in reason(router)
        assert [await answered(router) for _ in range(4)] == [200] * 4
        assert metric(router, 'outlier_ejections_total{arm="none",backend="b0"}') == 1
        await good.refuse_connections()
        assert await answered(router) in (500, 503)
        await until(router, "b0", State.AVAILABLE)  # better a poor one than none
        assert await answered(router) == 500


async def test_a_backend_that_is_slow_for_its_arm_and_load_is_left_out() -> None:
    clock, read = Clock(), asyncio.Semaphore(0)

    async def script(exchange: Exchange) -> None:
        await exchange.stream_head()
        for chunk in chat_stream(*"abcdefghijkl"):
            await exchange.chunk(chunk)
            if b'"usage"' not in chunk:  # which the client does not see
                await read.acquire()
        await exchange.end()

    async with (
        FakeUpstream(script=script) as slow,
        FakeUpstream(script=script) as fast,
        routed(slow, fast, policy="round_robin", tables_more=faults("outlier_min_requests = 3"), clock=clock) as router,
    ):
        for _ in range(8):
            async with request(router.url, body=STREAM) as answer:
                step_s = 0.06 if answer.header("x-drafter-selector-backend") == "b0" else 0.006
                async for _ in answer.chunks():
                    clock.now_s += step_s
                    read.release()
        await until(router, "b0", State.EJECTED)
        assert "times as long as its peers" in reason(router)
        assert state_of(router, "b1") is State.AVAILABLE


async def test_poison_that_fails_everywhere_ejects_nobody() -> None:
    async with (
        FakeUpstream(script=answering(500, b"{}")) as first,
        FakeUpstream(script=streaming(event({"error": {"message": "no"}}), DONE)) as second,
        routed(first, second, policy="round_robin", tables_more=faults("outlier_min_requests = 5")) as router,
    ):
        for _ in range(20):
            await answered(router)
        await first.polled_afresh()
        assert [state_of(router, name) for name in ("b0", "b1")] == [State.AVAILABLE] * 2


async def test_when_everything_fails_retries_are_soon_given_up() -> None:
    async with FakeUpstream(script=broken) as first, FakeUpstream(script=broken) as second:
        budget = faults(NO_PAUSE, "retry_budget_burst = 3", "retry_budget_frac = 0.1", "retry_budget_per_s = 0")
        more = "\nbreaker_failures = 1000"
        async with routed(first, second, tables_more=budget + more, unhealthy_after_failures=1_000) as router:
            for _ in range(20):
                assert await answered(router) == 503
            assert len(first.seen) + len(second.seen) <= 20 + 3 + 20 * 0.1
            assert metric(router, 'retries_denied_total{why="budget"}') >= 15
            assert in_flight(router) == 0


async def test_a_request_is_sent_no_more_often_than_is_allowed() -> None:
    async with FakeUpstream(script=broken) as first, FakeUpstream(script=broken) as second, FakeUpstream() as third:
        third.script = broken
        settings = faults(NO_PAUSE, "retries = 1")
        async with routed(first, second, third, tables_more=settings, unhealthy_after_failures=1_000) as router:
            assert await answered(router) == 503
            assert metric(router, 'retries_denied_total{why="attempts"}') == 1
        assert sum(len(upstream.seen) for upstream in (first, second, third)) == 2


async def test_a_client_that_leaves_during_the_pause_is_forgotten() -> None:
    async with (
        FakeUpstream(script=broken) as first,
        FakeUpstream(script=FINE) as second,
        routed(
            first, second, tables_more=faults("retry_backoff_ms = 3600000", "retry_backoff_max_ms = 3600000")
        ) as router,
    ):
        async with connection(router.url) as (_, writer):
            writer.write(request_bytes("/v1/chat/completions", STREAM))
            await first.next_exchange()
            async with asyncio.timeout(DEADLINE_S):
                while in_flight(router):  # noqa: ASYNC110 - it has no event to wait for
                    await asyncio.sleep(0)
        assert await router.drain()
        assert second.seen == []


@pytest.mark.parametrize("reached", [True, False])
async def test_what_must_not_be_done_twice_is_sent_again_only_if_it_was_not_received(reached: bool) -> None:
    body = {"model": "m", "input": "Write a long story", "background": True}
    async with (
        FakeUpstream(script=broken) as first,
        FakeUpstream(script=answering(200, b"{}")) as second,
        routed(first, second, tables_more=faults(NO_PAUSE), poll_interval_s=3_600.0) as router,
    ):
        if not reached:
            await first.refuse_connections()
        status = await answered(router, body, "/v1/responses")
        assert status == (503 if reached else 200)
        assert (len(first.seen), len(second.seen)) == ((1, 0) if reached else (0, 1))
        if reached:
            assert metric(router, 'retries_denied_total{why="unsafe"}') == 1


async def test_a_full_queue_everywhere_is_told_with_when_to_come_back() -> None:
    full = answering(503, b'{"message":"The request queue is full."}')
    async with (
        FakeUpstream(script=full) as first,
        FakeUpstream(script=full) as second,
        routed(first, second, tables_more=faults(NO_PAUSE)) as router,
    ):
        for _ in range(12):
            async with request(router.url, body=STREAM) as answer:
                assert (answer.status, answer.header("retry-after")) == (503, "1")
                assert await answer.body() == b'{"message":"The request queue is full."}'
        # Being full is no fault: neither is kept from requests.
        assert [state_of(router, name) for name in ("b0", "b1")] == [State.AVAILABLE] * 2
        assert set(finishes(router)) == {Finish.FAILED}


REFUSAL = b'{"object":"error","message":"this server has a drafter","code":400}'
TOOLS: Mapping[str, Any] = {**STREAM, "tools": [{"type": "function", "function": {"name": "f"}}]}


async def test_a_drafter_that_cannot_do_what_a_request_needs_is_answered_for_by_a_plain_backend() -> None:
    async with (
        FakeUpstream(EAGLE3_K3, script=answering(400, REFUSAL)) as drafting,
        FakeUpstream(EAGLE3_K3, script=answering(400, REFUSAL)) as other,
        FakeUpstream(script=FINE) as plain,
        routed(drafting, other, plain, arms=["eagle3-k3", "eagle3-k3", "none"], tables_more=faults(NO_PAUSE)) as router,
    ):
        async with request(router.url, body=TOOLS) as answer:
            await answer.body()
            assert (answer.status, answer.header("x-drafter-selector-arm")) == (200, "none")
        assert (len(drafting.seen), len(other.seen), len(plain.seen)) == (1, 0, 1)
        assert plain.seen[0].json["tools"] == TOOLS["tools"]
        told = await explained(router, answer.header("x-drafter-selector-rid") or "")
        assert [decision["retracted"] for decision in told["decisions"]] == [
            "answered 400 to a request that needs tools",
            None,
        ]
        # An answer is no fault, and the others are back for the next request.
        assert [state_of(router, name) for name in ("b0", "b1", "b2")] == [State.AVAILABLE] * 3
        assert finishes(router) == [Finish.DONE]


@pytest.mark.parametrize(
    ("arms", "body", "sent"),
    [
        (["eagle3-k3", "none"], STREAM, [1, 0]),  # needs nothing that an arm may lack
        (["eagle3-k3", "none"], TOOLS, [1, 1]),  # its own fault, as the plain one says too
        (["none", "none"], TOOLS, [1, 0]),
        (["eagle3-k3", "eagle3-k3"], TOOLS, [1, 0]),
    ],
)
async def test_another_refusal_is_passed_on_as_it_came(
    arms: list[str], body: Mapping[str, Any], sent: list[int]
) -> None:
    async with (
        FakeUpstream(INFO[arms[0]], script=answering(400, REFUSAL)) as first,
        FakeUpstream(INFO[arms[1]], script=answering(400, REFUSAL)) as second,
        routed(first, second, arms=arms, tables_more=faults(NO_PAUSE)) as router,
    ):
        async with request(router.url, body=body) as answer:
            assert (answer.status, await answer.body()) == (400, REFUSAL)
        assert [len(first.seen), len(second.seen)] == sent
        assert metric(router, 'retries_denied_total{why="no_backend"}') == 0


@contextmanager
def never_accepting() -> Iterator[FakeUpstream]:
    """A listener whose queue is full: who connects waits for an answer to the very first packet."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = []
        for _ in range(4):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
            waiting.append(client)
        upstream = FakeUpstream()
        upstream.port = listener.getsockname()[1]
        try:
            yield upstream
        finally:
            for client in waiting:
                client.close()


async def test_a_backend_that_does_not_accept_in_time_is_passed_over() -> None:
    async with (
        FakeUpstream(script=FINE) as slow,
        FakeUpstream(script=FINE) as good,
        routed(slow, good, connect_timeout_s=0.05, poll_interval_s=3_600.0) as router,
    ):
        await slow.refuse_connections()
        with never_accepting() as deaf:
            router.state.watch.backends["b0"].upstream._pool._port = deaf.port
            async with request(router.url, body=STREAM) as answer:
                assert answer.header("x-drafter-selector-backend") == "b1"
                assert (await answer.body()).endswith(DONE)
        assert finishes(router) == [Finish.DONE]
        assert metric(router, 'retries_total{backend="b0"}') == 1


async def test_a_host_name_that_is_not_found_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    look_up = socket.getaddrinfo

    def unknown(host: str | bytes | None, *args: Any, **options: Any) -> Any:
        if host == "gpu-host.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", unknown)

    class Nowhere(FakeUpstream):
        @property
        def url(self) -> str:
            return "http://gpu-host.invalid:30000"

    async with FakeUpstream(script=FINE) as good, routed(Nowhere(), good) as router:
        assert "host name not found" in reason(router)
        assert await answered(router) == 200
        await good.refuse_connections()
        await until(router, "b1", State.UNAVAILABLE)
        async with request(router.url, body=STREAM) as answer:
            assert (answer.status, answer.header("retry-after")) == (503, "1")
            assert "host name not found" in (await answer.json())["message"]


async def test_backends_that_come_and_go_cost_no_request() -> None:
    async def ask(router: RunningRouter) -> list[int]:
        return [await answered(router) for _ in range(10)]

    async with (
        FakeUpstream(script=FINE) as flapping,
        FakeUpstream(script=FINE) as steady,
        routed(flapping, steady, tables_more=faults(NO_PAUSE, "retry_budget_burst = 1000")) as router,
    ):
        for _ in range(5):
            asking = [asyncio.create_task(ask(router)) for _ in range(3)]
            await flapping.refuse_connections()
            results = await asyncio.gather(*asking)
            # A stream that breaks off has status 200 and an error event: see `test_failures`.
            assert set(itertools.chain(*results)) == {200}
            await flapping.listen()
            await flapping.polled_afresh()
        assert in_flight(router) == 0


async def test_a_backend_that_comes_back_with_another_model_is_quarantined() -> None:
    async with FakeUpstream(EAGLE3_K3, script=FINE) as upstream, routed(upstream, arms=["eagle3-k3"]) as router:
        upstream.info.update(served_model_name="Other-8B", model_path="/models/Other-8B")
        await upstream.refuse_connections()
        await until(router, "b0", State.UNAVAILABLE)
        await upstream.listen()
        await until(router, "b0", State.QUARANTINED)
        assert reason(router).startswith("another model: served_model_name is 'Other-8B', expected 'Made-Up-8B'")
        async with request(router.url, body=STREAM) as answer:
            assert answer.status == 503
            assert "another model" in (await answer.json())["message"]
        upstream.info.update(served_model_name="Made-Up-8B", model_path="/elsewhere/Made-Up-8B")
        await until(router, "b0", State.AVAILABLE)


async def test_another_arm_is_noticed_without_any_sign_of_a_restart() -> None:
    async with (
        FakeUpstream(EAGLE3_K3) as upstream,
        routed(upstream, arms=["eagle3-k3"], identity_interval_s=0.01) as router,
    ):
        upstream.info["speculative_num_steps"] = 5
        await until(router, "b0", State.QUARANTINED)
        assert "another arm: speculative_num_steps is 5, expected 3" in reason(router)


async def test_what_went_wrong_is_in_the_state() -> None:
    async with FakeUpstream(script=broken) as upstream:
        settings = faults("breaker_failures = 1")
        async with routed(upstream, tables_more=settings, unhealthy_after_failures=1_000) as router:
            await answered(router)
            async with request(router.url, "/router/state", method="GET") as answer:
                (backend,) = await _backends(answer)
    assert (backend["state"], backend["breaker"], backend["breaker_openings"]) == ("tripped", "open", 1)
    assert backend["ejections"] == 0


async def _backends(answer: Answer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await answer.json())["backends"]
    return found
