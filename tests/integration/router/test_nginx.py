"""Several routers behind nginx with the shipped configuration: `deploy/nginx.conf`."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import pytest

from selector.router.running import RunningRouter
from tests.integration.router.fake_upstream import Exchange, FakeUpstream, answering
from tests.integration.router.harness import CHAT, DONE, ROLE, chat_stream, delta, routed
from tests.integration.router.raw_client import DEADLINE_S, request

ROOT = Path(__file__).parents[3]


def deploy_check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("deploy_check", ROOT / "scripts" / "deploy_check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def behind_nginx(folder: Path, *ports: int) -> AsyncIterator[str]:
    """nginx in front of routers on these two ports; its URL."""
    script = deploy_check()
    try:
        program = script.tool("nginx")
    except script.MissingTool as missing:
        pytest.skip(str(missing))
    text = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
    for port, given in zip(ports, re.findall(r"server (127\.0\.0\.1:\d+) ", text), strict=True):
        text = text.replace(given, f"127.0.0.1:{port}")
    async with asyncio.timeout(3 * DEADLINE_S):
        probe = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        listen = probe.sockets[0].getsockname()[1]
        probe.close()
        await probe.wait_closed()
        site, main = folder / "site.conf", folder / "nginx.conf"
        site.write_text(text.replace("listen 8000;", f"listen 127.0.0.1:{listen};"), encoding="utf-8")
        main.write_text(script.nginx_main(folder, site), encoding="utf-8")
        log = folder / "error.log"
        process = await asyncio.create_subprocess_exec(program, "-e", log, "-p", folder, "-c", main)
        try:
            while True:
                assert process.returncode is None, log.read_text(encoding="utf-8")
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", listen)
                except ConnectionRefusedError:
                    await asyncio.sleep(0)
                    continue
                writer.close()
                break
            yield f"http://127.0.0.1:{listen}"
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


def port_of(router: RunningRouter) -> int:
    return int(router.url.rpartition(":")[2])


async def test_events_come_one_by_one_and_a_client_that_leaves_is_noticed(tmp_path: Path) -> None:
    seen = asyncio.Event()
    requests = 0

    async def script(exchange: Exchange) -> None:
        nonlocal requests
        requests += 1
        leaves = requests == 1
        await exchange.stream_head()
        for chunk in (ROLE, delta(content="a"), delta(content="b")):
            seen.clear()
            await exchange.chunk(chunk)
            await seen.wait()  # the client has it, so nothing on the way waits for more
        if leaves:
            await exchange.wait_closed()
            return
        for chunk in chat_stream("c")[2:]:
            await exchange.chunk(chunk)
        await exchange.end()

    async with (
        FakeUpstream(script=script) as upstream,
        routed(upstream) as one,
        routed(upstream) as other,
        behind_nginx(tmp_path, port_of(one), port_of(other)) as url,
    ):
        async with request(url, body={**CHAT, "stream": True}) as answer:
            got = []
            async for chunk in answer.chunks():
                got.append(chunk)
                seen.set()
                if len(got) == 3:
                    break
            assert got == [ROLE, delta(content="a"), delta(content="b")]
        await upstream.seen[0].closed.wait()
        async with request(url, body={**CHAT, "stream": True}) as answer:
            got = []
            async for chunk in answer.chunks():
                got.append(chunk)
                seen.set()
        assert b"".join(got).endswith(DONE)


async def test_a_process_that_drains_or_is_gone_costs_its_clients_nothing(tmp_path: Path) -> None:
    async with FakeUpstream(script=answering(200, b'{"choices":[]}')) as upstream, routed(upstream) as stays:
        async with (
            routed(upstream) as leaves,
            behind_nginx(tmp_path, port_of(stays), port_of(leaves)) as url,
        ):
            leaves.state.draining = True
            for _ in range(6):
                async with request(url, body=CHAT) as answer:
                    assert answer.status == 200
        async with behind_nginx(tmp_path, port_of(stays), port_of(leaves)) as url:  # nobody listens there any more
            for _ in range(6):
                async with request(url, body=CHAT) as answer:
                    assert answer.status == 200


async def test_without_a_backend_the_routers_own_refusal_comes_through(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream:
        await upstream.refuse_connections()
        async with (
            routed(upstream) as one,
            routed(upstream) as other,
            behind_nginx(tmp_path, port_of(one), port_of(other)) as url,
        ):
            for _ in range(4):
                async with request(url, body=CHAT) as answer:
                    assert (answer.status, answer.header("retry-after")) == (503, "1")
                    assert b"no backend is available" in await answer.body()


async def test_what_one_process_says_of_itself_is_not_served_by_any(tmp_path: Path) -> None:
    async with (
        FakeUpstream() as upstream,
        routed(upstream) as one,
        routed(upstream) as other,
        behind_nginx(tmp_path, port_of(one), port_of(other)) as url,
    ):
        hidden = dict.fromkeys(("/metrics", "/router/state", "/explain?rid=x", "/", "/dashboard"), 404)
        for path, status in {**hidden, "/v1/models": 200, "/server_info": 200, "/ready": 200}.items():
            async with request(url, path, method="GET") as answer:
                assert answer.status == status, path
