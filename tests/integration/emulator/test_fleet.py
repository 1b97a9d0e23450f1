"""A fleet on real sockets: ports, shared GPUs, energy, leaving clients, the end."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from selector.emulator.fleet import EmulatedFleet
from selector.errors import FleetError
from selector.files.fleet import LoadedFleet
from tests.emulators import ManualClock, fleet_of, turns

FAST = 200.0
"""A time scale at which a request of 100 steps takes some milliseconds."""


def chat(tokens: int, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hello"}]
    return {"model": "smol", "messages": messages, "max_tokens": tokens, "ignore_eos": True, **fields}


async def energy_mj(session: aiohttp.ClientSession, url: str) -> dict[str, int]:
    async with session.get(url) as answer:
        return {gpu["id"]: gpu["energy_mj"] for gpu in (await answer.json())["gpus"]}


def with_url(loaded: LoadedFleet, url: str | None) -> LoadedFleet:
    backends = tuple(backend.model_copy(update={"url": url}) for backend in loaded.fleet.backends)
    return LoadedFleet(loaded.fleet.model_copy(update={"backends": backends}), loaded.where, loaded.profiles)


async def test_every_backend_answers_as_its_arm() -> None:
    loaded = fleet_of("none", "dspark-8")
    async with EmulatedFleet(loaded, time_scale=FAST, any_port=True) as fleet, aiohttp.ClientSession() as session:
        served = fleet.served()
        assert [backend.url for backend in served.fleet.backends] == [server.url for server in fleet.servers]
        for backend, algorithm in zip(served.fleet.backends, (None, "DSPARK"), strict=True):
            async with session.get(f"{backend.url}/server_info") as answer:
                info = await answer.json()
            assert info["speculative_algorithm"] == algorithm
            assert info["port"] == urlsplit(backend.url or "").port
        assert [server.arm for server in fleet.servers] == ["none", "dspark-8"]


async def test_answers_over_sockets_have_all_their_tokens() -> None:
    loaded = fleet_of("dspark-8")
    async with EmulatedFleet(loaded, time_scale=FAST, any_port=True) as fleet, aiohttp.ClientSession() as session:

        async def words(tokens: int) -> int:
            body = chat(tokens, stream=True)
            async with session.post(f"{fleet.servers[0].url}/v1/chat/completions", json=body) as answer:
                lines = [line async for line in answer.content if line.startswith(b'data: {"id"')]
            deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines]
            return sum(len(delta.get("content", "").split()) for delta in deltas)

        assert await asyncio.gather(*(words(tokens) for tokens in range(1, 200, 10))) == list(range(1, 200, 10))
        engine = fleet.servers[0].engine
        assert engine.totals.finished == 20
        assert fleet.lag_ms(0.5) >= 0.0


async def test_energy_covers_all_gpus_once_and_each_server_its_own() -> None:
    loaded = fleet_of("none", "dspark-8", "none", gpus=[["a"], ["a"], ["b"]])
    clock = ManualClock()
    async with EmulatedFleet(loaded, any_port=True, clock=clock) as fleet, aiohttp.ClientSession() as session:
        clock.advance_to(10.0)
        first, _, third = fleet.servers
        # 80 W and 15 W a server, for 10 s.
        assert await energy_mj(session, fleet.energy_url) == {"a": 950_000, "b": 950_000}
        assert await energy_mj(session, f"{first.url}/energy") == {"a": 950_000}
        assert await energy_mj(session, f"{third.url}/energy") == {"b": 950_000}


async def test_energy_over_a_run_is_what_the_servers_spent_and_the_gpus_idled() -> None:
    loaded = fleet_of("none", "dspark-8", gpus=[["a"], ["a"]])
    async with EmulatedFleet(loaded, time_scale=FAST, any_port=True) as fleet, aiohttp.ClientSession() as session:
        gpu = fleet.gpus["a"]
        idle_before_j = gpu.energy(fleet.clock.now_s()).idle_j
        before_mj = (await energy_mj(session, fleet.energy_url))["a"]

        async def ask(url: str) -> None:
            async with session.post(f"{url}/v1/chat/completions", json=chat(100)) as answer:
                assert (await answer.json())["usage"]["completion_tokens"] == 100

        await asyncio.gather(*(ask(server.url) for server in fleet.servers for _ in range(3)))
        after_mj = (await energy_mj(session, fleet.energy_url))["a"]
        spent_j = sum(s.engine.totals.decode_j + s.engine.totals.prefill_j for s in fleet.servers)
        idle_after_j = gpu.energy(fleet.clock.now_s()).idle_j
        # Outside the two readings of the counter the idle GPU drew some more.
        assert spent_j <= (after_mj - before_mj) / 1e3 + 0.01
        assert (after_mj - before_mj) / 1e3 <= spent_j + idle_after_j - idle_before_j + 0.01


async def test_a_connection_that_closes_ends_its_request() -> None:
    clock = ManualClock()
    async with EmulatedFleet(fleet_of("none"), any_port=True, clock=clock) as fleet:
        engine = fleet.servers[0].engine
        parts = urlsplit(fleet.servers[0].url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        body = json.dumps(chat(5_000, stream=True)).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        first = asyncio.create_task(reader.readuntil(b'"content":" '))
        await clock.play(until=first.done)
        assert engine.running == 1
        writer.close()
        await writer.wait_closed()
        await clock.play(until=lambda: engine.running == 0)
        assert engine.aborted_requests == 1
        assert engine.totals.accepted_tokens < 5_000


async def test_leaving_the_fleet_ends_open_answers() -> None:
    async with aiohttp.ClientSession() as session:
        async with EmulatedFleet(fleet_of("none"), time_scale=1.0, any_port=True) as fleet:
            url = fleet.servers[0].url
            answer = await session.post(f"{url}/v1/chat/completions", json=chat(5_000, stream=True))
        rest = await answer.read()
        assert b'"finish_reason":"abort"' in rest
        assert rest.endswith(b"data: [DONE]\n\n")
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(f"{url}/health")


async def test_urls_decide_the_ports_unless_any_will_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(FleetError, match=r"backends\[0\].url: cannot listen on 127.0.0.1:\d+ \(Address already in"):
            async with EmulatedFleet(with_url(fleet_of("none"), url)):
                pass
    async with EmulatedFleet(with_url(fleet_of("none"), url)) as fleet:
        assert fleet.servers[0].url == url


@pytest.mark.parametrize("url", [None, "https://127.0.0.1:1", "http://127.0.0.1:1/behind/a/path"])
async def test_urls_that_cannot_be_served_are_refused(url: str | None) -> None:
    with pytest.raises(FleetError, match=r"backends\[0\].url"):
        async with EmulatedFleet(with_url(fleet_of("none"), url)):
            pass


async def test_an_api_key_that_is_not_in_the_environment_is_refused() -> None:
    with pytest.raises(FleetError, match="the environment has no EMULATED_KEY"):
        async with EmulatedFleet(fleet_of("none", api_key_env="EMULATED_KEY"), any_port=True, environ={}):
            pass


async def test_the_same_seed_gives_the_same_answers_and_another_seed_others() -> None:
    async def histogram(seed: int) -> list[int]:
        clock = ManualClock()
        async with EmulatedFleet(fleet_of("dspark-8"), any_port=True, clock=clock, seed=seed) as fleet:
            async with aiohttp.ClientSession() as session:
                body = {"text": "hi", "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}}
                headers = {"x-emulated-text-type": "code"}
                asking = asyncio.create_task(
                    session.post(f"{fleet.servers[0].url}/generate", json=body, headers=headers)
                )
                await clock.play(until=asking.done)
                answer = await (await asking).json()
            return list(answer["meta_info"]["spec_correct_drafts_histogram"])

    assert await histogram(1) == await histogram(1)
    assert await histogram(1) != await histogram(2)
    await turns()
