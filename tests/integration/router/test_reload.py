"""A configuration that is replaced while the router serves: all of it or nothing, and no request notices."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from selector.core.controller import Controller
from selector.core.types import Finish
from selector.errors import InputError
from selector.files.decision_log import DecisionEvent, EndEvent, StartEvent, read_decision_log, runs
from selector.files.fleet import LoadedFleet, load_fleet_with_profiles
from selector.files.policy import load_policy_file
from selector.files.trace import load_trace
from selector.router.client import Incoming, Pausable
from selector.router.configuration import Configuration
from selector.router.generation import Generation
from selector.router.request import ClientRequest
from selector.router.routes import ROUTES
from selector.router.wire import Headers
from selector.simulator.replay import replay
from tests.fleets import request_view
from tests.integration.router.fake_upstream import (
    EAGLE3_K3,
    Exchange,
    FakeUpstream,
    answering,
    held,
    streaming,
)
from tests.integration.router.harness import CHAT, DONE, chat_stream, fleet_of, routed, sglext
from tests.integration.router.raw_client import answer_from, connection, request, request_bytes
from tests.integration.router.test_failures import in_flight
from tests.integration.router.test_serve_command import fleet_file, ready_url, serve

STREAM: Mapping[str, Any] = {**CHAT, "stream": True}
PATH = "/v1/chat/completions"


def configured(fleet: LoadedFleet, policy: str = "least_loaded") -> Callable[[], Configuration]:
    return lambda: Configuration(
        fleet=fleet, policy=load_policy_file(policy), fallback=load_policy_file("least_loaded")
    )


async def test_a_stream_ends_as_it_began_and_the_next_request_meets_the_new_fleet(tmp_path: Path) -> None:
    go_on = asyncio.Event()
    async with (
        FakeUpstream(script=held(go_on, *chat_stream("a"))) as old,
        FakeUpstream(script=answering(200, b"{}")) as new,
        routed(old, decision_log=tmp_path / "log.jsonl") as router,
        connection(router.url) as (reader, writer),
        request(router.url, body=STREAM) as running,
    ):
        chunks = running.chunks()
        await anext(chunks)
        before = router.state
        await router.reload(configured(fleet_of([new.url], ["none"])))
        writer.write(request_bytes(PATH, CHAT))  # on a connection from before
        answer = await answer_from(reader, writer)
        assert (answer.status, await answer.body()) == (200, b"{}")
        assert (len(old.seen), len(new.seen)) == (1, 1)
        assert len(before.dispatcher.flights) == 1
        go_on.set()
        assert [chunk async for chunk in chunks][-1] == DONE
        assert await router.drain()
        assert (before.dispatcher.flights, in_flight(router)) == ({}, 0)


async def test_draining_waits_for_requests_of_the_configuration_before() -> None:
    go_on = asyncio.Event()
    async with (
        FakeUpstream(script=held(go_on, *chat_stream("a"))) as upstream,
        routed(upstream) as router,
        request(router.url, body=STREAM) as running,
    ):
        chunks = running.chunks()
        await anext(chunks)
        await router.reload(configured(fleet_of([upstream.url], ["none"])))
        draining = asyncio.create_task(router.drain())
        async with request(router.url, body=STREAM) as refused:
            assert refused.status == 503
        assert not draining.done()
        go_on.set()
        assert [chunk async for chunk in chunks][-1] == DONE
        assert await draining


async def test_a_router_that_is_going_down_lets_nobody_in_because_of_a_reload() -> None:
    async with FakeUpstream(script=answering(200, b"{}")) as upstream, routed(upstream) as router:
        assert await router.drain()
        await router.reload(configured(fleet_of([upstream.url], ["none"])))
        assert router.state.draining
        async with request(router.url, body=CHAT) as refused:
            assert refused.status == 503
        assert upstream.seen == []


async def test_what_cannot_be_used_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad_policy = tmp_path / "bad.py"
    bad_policy.write_text("raise RuntimeError('no')", encoding="utf-8")
    log = tmp_path / "log.jsonl"
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    async with (
        FakeUpstream(script=answering(200, b"{}")) as upstream,
        routed(upstream, decision_log=log) as router,
    ):
        before = router.state
        urls = [upstream.url]
        keyless = fleet_of(urls, ["none"], backend_more='api_key_env = "NO_SUCH_KEY"')
        for load, complaint in (
            (lambda: load_fleet_with_profiles(tmp_path / "no such"), "there is no such fleet file"),
            (configured(fleet_of(urls, ["none"]), str(bad_policy)), "fails when loaded"),
            (configured(fleet_of(urls, ["none"]), "static:no-such-arm"), "no-such-arm"),
            (configured(keyless), "NO_SUCH_KEY"),
        ):
            with pytest.raises(InputError, match=complaint):
                await router.reload(load)  # type: ignore[arg-type] # the first never returns
            assert complaint in (before.reloads.last_problem or "")
        assert router.state is before
        assert (before.reloads.done, before.reloads.refused) == (0, 4)
        assert b'config_reloads_total{result="refused"} 4.0' in before.metrics.render()
        async with request(router.url, body=CHAT) as answer:
            assert answer.status == 200
    assert [event.event for event in read_decision_log(log)].count("start") == 1


async def test_metrics_go_on_and_speak_of_the_new_backends() -> None:
    async with (
        FakeUpstream(script=answering(200, b"{}")) as first,
        FakeUpstream(script=answering(200, b"{}")) as second,
        routed(first) as router,
    ):
        for urls in ([first.url, second.url], [second.url]):
            async with request(router.url, body=CHAT) as answer:
                assert answer.status == 200
            await router.reload(configured(fleet_of(urls, ["none"] * len(urls)), "round_robin"))
        text = router.state.metrics.render().decode()
        assert 'outcomes_total{arm="none",finish="done"} 2.0' in text
        assert 'in_flight_requests{arm="none",backend="b0"}' in text
        assert 'in_flight_requests{arm="none",backend="b1"}' not in text
        assert 'policy="round_robin"' in text
        assert 'policy="least_loaded"' not in text
        assert 'config_reloads_total{result="done"} 2.0' in text


async def test_what_was_learnt_of_the_same_arms_goes_on(tmp_path: Path) -> None:
    spec = sglext(spec_verify_ct=100, spec_num_correct_drafts=10)
    sent = [*chat_stream("a", tokens=110)[:-2], spec, *chat_stream("a", tokens=110)[-2:]]
    async with (
        FakeUpstream(EAGLE3_K3, script=streaming(*sent)) as upstream,
        routed(upstream, arms=["eagle3-k3"], acceptance={"snapshot": str(tmp_path / "learnt.json")}) as router,
    ):
        for _ in range(5):
            async with request(router.url, body=STREAM) as answer:
                await answer.body()
        before = router.state
        model = before.dispatcher.controller.context.acceptance
        unlearnt = fleet_of([upstream.url], ["eagle3-k3"]).policy_context().acceptance
        assert model.snapshot() != unlearnt.snapshot()
        name = before.snapshots.router
        await router.reload(
            configured(fleet_of([upstream.url], ["eagle3-k3"], acceptance={"snapshot": str(tmp_path / "learnt.json")}))
        )
        after = router.state.dispatcher.controller.context.acceptance
        assert after is not model
        assert after.snapshot() == model.snapshot()
        assert router.state.snapshots.router == name
        lengths = router.state.dispatcher.controller.lengths
        assert lengths is before.dispatcher.controller.lengths
        await router.reload(configured(fleet_of([upstream.url], ["none"])))  # other arms: nothing to take over
        assert router.state.dispatcher.controller.context.acceptance.samples == 0


async def test_a_log_over_a_reload_is_complete_and_each_part_replays(tmp_path: Path) -> None:
    go_on, log = asyncio.Event(), tmp_path / "log.jsonl"
    async with (
        FakeUpstream(script=held(go_on, *chat_stream("a"))) as slow,
        FakeUpstream(script=streaming(*chat_stream("b", "c"))) as quick,
        routed(slow, decision_log=log) as router,
        request(router.url, body=STREAM) as running,
    ):
        chunks = running.chunks()
        await anext(chunks)
        urls, arms = [slow.url, quick.url], ["none", "none"]
        await router.reload(configured(fleet_of(urls, arms), "round_robin"))
        slow.script = quick.script
        for _ in range(4):
            async with request(router.url, body=STREAM) as answer:
                await answer.body()
        go_on.set()
        assert [chunk async for chunk in chunks][-1] == DONE
    events = read_decision_log(log)
    decided = [event.request.request_id for event in events if isinstance(event, DecisionEvent)]
    ended = [event.outcome.request_id for event in events if isinstance(event, EndEvent)]
    assert sorted(decided) == sorted(ended)
    first, second = runs(events)
    assert isinstance(second[0], StartEvent)
    assert second[0].reloaded
    for run, fleet, policy in (
        (first, fleet_of(urls[:1], arms[:1]), "least_loaded"),
        (second, fleet_of(urls, arms), "round_robin"),
    ):
        context = fleet.policy_context()
        pairs = list(replay(run, Controller(context, load_policy_file(policy).make({}, context))))
        assert pairs
        assert [logged for logged, _ in pairs] == [again for _, again in pairs]
    assert len(load_trace(log).requests) == 5


async def test_a_decision_whose_request_is_about_to_be_sent_is_in_the_log_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log.jsonl"
    async with FakeUpstream() as upstream, routed(upstream, decision_log=log) as router:
        dispatcher, replace, flights = router.state.dispatcher, router._replace, []

        def replace_just_after_a_decision(new: Generation) -> None:
            view = request_view("r")
            route = ROUTES[PATH]
            flights.append(
                dispatcher.place(
                    ClientRequest(id="r", route=route, body=b"{}", arrival_s=0.0, fields={}, view=view, streams=True)
                )
            )
            replace(new)

        monkeypatch.setattr(router, "_replace", replace_just_after_a_decision)
        await router.reload(configured(fleet_of([upstream.url], ["none"])))
        dispatcher.end(flights[0], Finish.CANCELLED)
    told = [event for event in read_decision_log(log) if isinstance(event, (DecisionEvent, StartEvent, EndEvent))]
    assert [type(event) for event in told] == [StartEvent, DecisionEvent, StartEvent, EndEvent]


def replaced(config: Path, text: str) -> None:
    """Another file in its place at once: one that is written while the router looks is read by halves."""
    new = config.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(config)


async def test_sighup_and_a_changed_file_reload_and_a_bad_file_is_refused(tmp_path: Path) -> None:
    async with (
        FakeUpstream(script=answering(200, b"1")) as first,
        FakeUpstream(script=answering(200, b"2")) as second,
    ):
        config = fleet_file(tmp_path, first.url, more="reload_check_s = 0.02\n")
        text = config.read_text(encoding="utf-8")
        async with serve("--config", config) as process:
            url, _ = await ready_url(process)
            assert process.stdout is not None
            assert process.stderr is not None

            async def answered() -> bytes:
                async with request(url, body=CHAT) as answer:
                    return await answer.body()

            assert await answered() == b"1"
            replaced(config, text.replace(first.url, second.url))
            assert (await process.stdout.readline()).startswith(b"reloaded url=")
            assert await answered() == b"2"
            replaced(config, text + "unknown_key = 1\n")
            refusal = await process.stderr.readline()
            assert b"reload refused, the configuration stays as it was" in refusal
            assert b"router.unknown_key: is not a known field" in refusal
            assert await answered() == b"2"
            process.send_signal(signal.SIGHUP)
            assert b"reload refused" in await process.stderr.readline()
            replaced(config, text.replace("port = 0", "port = 1"))
            assert (await process.stdout.readline()).startswith(b"reloaded url=")
            assert b"a change of router.port needs a restart" in await process.stderr.readline()
            assert await answered() == b"1"
            process.send_signal(signal.SIGHUP)
            assert (await process.stdout.readline()).startswith(b"reloaded url=")
            process.send_signal(signal.SIGTERM)
            await process.communicate()
        assert process.returncode == 0


async def test_a_request_that_fails_after_a_reload_is_sent_on_by_the_new_configuration(tmp_path: Path) -> None:
    log, go_on = tmp_path / "log.jsonl", asyncio.Event()

    async def breaking(exchange: Exchange) -> None:
        await go_on.wait()
        exchange.break_off()

    async with (
        FakeUpstream(script=breaking) as bad,
        FakeUpstream() as unused,
        FakeUpstream(script=streaming(*chat_stream("a"))) as good,
        routed(bad, unused, decision_log=log) as router,
    ):
        asking = asyncio.create_task(_body_of(router.url))
        await bad.next_exchange()
        await router.reload(configured(fleet_of([good.url], ["none"])))
        go_on.set()
        assert (await asking).endswith(DONE)
        assert (len(unused.seen), len(good.seen)) == (0, 1)
    kinds = [event.event for event in read_decision_log(log)]
    assert (kinds.count("decision"), kinds.count("retract"), kinds.count("end")) == (2, 1, 1)


async def _body_of(url: str) -> bytes:
    async with request(url, body=STREAM) as answer:
        return await answer.body()


async def test_a_request_that_came_just_before_a_reload_is_decided_after_it(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    async with (
        FakeUpstream() as old,
        FakeUpstream(script=streaming(*chat_stream("a"))) as new,
        routed(old, decision_log=log) as router,
    ):
        replaced = router.state
        relay = router._generation.relay
        await router.reload(configured(fleet_of([new.url], ["none"])))
        incoming = Incoming(route=ROUTES[PATH], query=b"", headers=[], body=orjson.dumps(STREAM))
        await relay.serve(incoming, Taken())
        assert (len(new.seen), replaced.dispatcher.flights) == (1, {})
    kinds = [event.event for event in read_decision_log(log)]
    assert (kinds.count("decision"), kinds.count("end")) == (1, 1)


class Taken:
    """A client that takes everything."""

    takes_chunks = None

    def whole(self, status: int, headers: Headers, body: bytes) -> None: ...

    def start(self, status: int, headers: Headers) -> None: ...

    def pieces(self, pieces: Sequence[bytes], *, last: bool) -> None: ...

    def follow(self, source: Pausable) -> None: ...
