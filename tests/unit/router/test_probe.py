"""`check --live` against real HTTP servers on loopback: each way in which a backend may not be what it should."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from aiohttp import web

from selector.files.fleet import LoadedFleet, parse_fleet
from selector.router.probe import Probe, probe_fleet
from tests.profiles import PROFILE

INFO = {
    "served_model_name": "Qwen3-8B",
    "context_length": 8192,
    "max_running_requests": 64,
    "max_total_num_tokens": 400_000,
    "tp_size": 1,
    "speculative_algorithm": "DSPARK",
    "speculative_num_draft_tokens": 8,
    "version": "0.5.17",
}
LOADS = {"loads": [{"num_running_reqs": 2, "num_waiting_reqs": 1}, {"num_running_reqs": 3, "num_waiting_reqs": None}]}

Handler = Callable[[web.Request], Awaitable[web.Response]]


def answer(body: object, status: int = 200) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(text=body if isinstance(body, str) else json.dumps(body), status=status)

    return handle


@asynccontextmanager
async def server(**routes: Handler) -> AsyncIterator[str]:
    """A backend that answers as SGLang does, but for the given routes (`ready`, `info`, `loads`); yields its URL."""
    app = web.Application()
    app.router.add_get("/ready", routes.get("ready", answer("")))
    app.router.add_get("/server_info", routes.get("info", answer(INFO)))
    app.router.add_get("/v1/loads", routes.get("loads", answer(LOADS)))
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def fleet(*urls: str | None, router: str = "") -> LoadedFleet:
    backends = "".join(
        f'[[backends]]\nname = "b{n}"\narm = "dspark-8"\ngpus = ["h:{n}"]\nprofile = "{PROFILE}"\n'
        + (f'url = "{url}"\n' if url else "")
        + 'api_key_env = "KEY"\n'
        for n, url in enumerate(urls)
    )
    return LoadedFleet(parse_fleet(f'version = 1\ntarget = "Qwen3-8B"\n{backends}{router}', "f.toml"), "f.toml")


async def probed(url: str | None, router: str = "", **environ: str) -> Probe:
    (probe,) = await probe_fleet(fleet(url, router=router), environ)
    return probe


async def test_a_backend_that_is_what_it_should_be() -> None:
    async with server() as url:
        probe = await probed(url)
    assert probe.findings == ()
    assert probe.summary == "ready, SGLang 0.5.17, 5 running, 1 waiting"


async def test_another_arm_is_an_error_and_another_release_a_warning() -> None:
    async with server(info=answer(INFO | {"speculative_algorithm": None, "version": "0.5.23"})) as url:
        probe = await probed(url)
    levels = {finding.level: finding.problem for finding in probe.findings}
    assert levels["error"] == "does not run dspark-8: speculative_algorithm is None, expected 'DSPARK'"
    assert "version is '0.5.23'" in levels["warning"]


@pytest.mark.parametrize(
    ("routes", "expected"),
    [
        ({"ready": answer("", 503)}, "answers /ready with 503"),
        ({"info": answer("<html>")}, "answers /server_info with something that is no JSON object"),
        ({"info": answer([1])}, "answers /server_info with something that is no JSON object"),
        ({"loads": answer({"error": "Unauthorized"}, 401)}, "refuses /v1/loads?include=core,spec (401)"),
        ({"loads": answer({"loads": 3})}, "answers /v1/loads without a list of loads"),
        ({"loads": answer({"loads": [3]})}, "answers /v1/loads without a list of loads"),
    ],
)
async def test_an_answer_that_cannot_be_used_is_an_error(routes: dict[str, Handler], expected: str) -> None:
    async with server(**routes) as url:
        probe = await probed(url)
    assert [finding.level for finding in probe.findings] == ["error"]
    assert probe.findings[0].problem == expected
    assert probe.findings[0].where == "f.toml: backends[0] b0"
    assert probe.summary is None


async def test_the_api_key_is_sent_and_never_shown() -> None:
    seen = []

    async def loads(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response(LOADS, status=401)

    async with server(loads=loads) as url:
        probe = await probed(url, KEY="s3cret")
    assert seen == ["Bearer s3cret"]
    assert "s3cret" not in str(probe)


async def test_nobody_listening_is_an_error() -> None:
    with socket.socket() as held:  # bound but not listening: the port refuses, and nobody else can take it
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        probe = await probed(url)
    assert f"cannot be reached at {url}" in probe.findings[0].problem


async def test_a_server_that_never_answers_is_given_up_on() -> None:
    with socket.socket() as silent:  # accepts in the kernel, answers never
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        probe = await probed(f"http://127.0.0.1:{silent.getsockname()[1]}", router="[router]\npoll_timeout_s = 0.05\n")
    assert probe.findings[0].problem == "did not answer /ready in time"


async def test_answers_come_in_the_fleet_s_order_whatever_one_of_them_does() -> None:
    async with AsyncExitStack() as stack:
        good = await stack.enter_async_context(server())
        bad = await stack.enter_async_context(server(ready=answer("", 503)))
        probes = await probe_fleet(fleet(good, bad, None), {})
    assert [probe.backend for probe in probes] == ["b0", "b1", "b2"]
    assert [probe.summary is not None for probe in probes] == [True, False, False]
    assert probes[2].findings[0].problem == "has no url to ask"
