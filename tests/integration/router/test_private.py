"""What the router tells of itself, and to whom; keys and prompts it tells nobody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.integration.router.fake_upstream import FakeUpstream, answering, broken, hanging, streaming
from tests.integration.router.harness import CHAT, TARGET, chat_stream, routed
from tests.integration.router.raw_client import connection, request, request_bytes
from tests.integration.router.test_keys import ADMIN, ALICE, BOB, KEYS, PATH, asked, bearer, sent

CLIENT_ROUTES = ("/v1/models", f"/v1/models/{TARGET}", "/server_info", "/get_server_info", "/model_info", "/v1/loads")
PRIVATE_ROUTES = (
    "/",
    "/dashboard",
    "/metrics",
    "/router/live",
    "/router/state",
    "/router/decisions",
    "/explain",
    "/router/corrections",
)


async def status_of(url: str, path: str, headers: Mapping[str, str], method: str = "GET") -> int:
    async with request(url, path, b"{}" if method == "POST" else b"", headers, method=method) as answer:
        return answer.status


async def test_what_the_router_tells_of_itself_takes_a_key_and_the_rest_of_it_a_key_of_control() -> None:
    async with FakeUpstream() as upstream, routed(upstream, tables_more=KEYS) as router:
        for path in ("/health", "/ready"):
            assert await status_of(router.url, path, {}) == 200
        for path in CLIENT_ROUTES:
            assert [
                await status_of(router.url, path, headers) for headers in ({}, bearer("no-such-key"), bearer(BOB))
            ] == [401, 401, 200]
        for path in PRIVATE_ROUTES:
            given = ({}, bearer(BOB), bearer(ADMIN))
            expected = [401, 403, 404 if path == "/explain" else 200]
            assert [await status_of(router.url, path, headers) for headers in given] == expected, path
        for path in ("/abort_request", "/router/corrections/reset"):
            given = ({}, bearer(BOB), bearer(ADMIN))
            assert [await status_of(router.url, path, headers, "POST") for headers in given] == [401, 403, 200]
        for odd in ("//metrics", "/metrics/", "/./metrics", "/METRICS", "/%6detrics", "/metrics?x=/health"):
            assert await status_of(router.url, odd, {}) in (307, 401, 404), odd


@pytest.mark.parametrize("keys", ["", KEYS])
async def test_control_on_a_port_of_its_own_is_nowhere_else(keys: str) -> None:
    async with (
        FakeUpstream(script=answering(200, b"{}")) as upstream,
        routed(upstream, tables_more=keys, control_port=0) as router,
    ):
        assert router.control_url != router.url and router.control_url.startswith("http://127.0.0.1:")
        for path in (*PRIVATE_ROUTES, "/abort_request"):
            assert await status_of(router.url, path, bearer(ADMIN)) == 404, path
        for path in (*CLIENT_ROUTES, *PRIVATE_ROUTES, "/health", "/ready"):
            assert await status_of(router.control_url, path, {}) == (404 if path == "/explain" else 200), path
        # No request comes in by the other port.
        assert await status_of(router.control_url, PATH, bearer(ADMIN), "POST") == 404
        assert await status_of(router.url, PATH, bearer(ALICE), "POST") == 200


async def test_pages_of_other_sites_can_do_nothing() -> None:
    async with FakeUpstream() as upstream, routed(upstream, control_port=0) as router:
        for path in ("/abort_request", "/router/corrections/reset"):
            for origin, status in (
                ("https://elsewhere.example", 403),
                ("null", 403),
                ("http://router", 200),  # the host that these requests name
            ):
                assert await status_of(router.control_url, path, {"Origin": origin}, "POST") == status, (path, origin)


async def test_the_control_port_tells_of_draining_until_the_last_request_is_over() -> None:
    async with (
        FakeUpstream(script=hanging) as upstream,
        routed(upstream, control_port=0, drain_timeout_s=60.0) as router,
        connection(router.url) as (_, writer),
    ):
        writer.write(request_bytes(PATH, CHAT))
        await upstream.next_exchange()
        drained = asyncio.create_task(router.drain())
        await asyncio.sleep(0)
        assert await status_of(router.control_url, "/ready", {}) == 503
        writer.transport.abort()
        assert await drained


async def test_neither_keys_nor_prompts_are_told_anywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    prompt, text, stranger = "a prompt for nobody else", "an answer for nobody else", "key-of-a-stranger"
    messages = [{"role": role, "content": prompt} for role in ("system", "user")]
    body = {**CHAT, "stream": True, "messages": messages}
    log, snapshot = tmp_path / "decisions.jsonl", tmp_path / "acceptance.json"
    told: list[bytes] = []
    async with (
        FakeUpstream() as upstream,
        routed(
            upstream,
            tables_more=KEYS,
            decision_log=log,
            acceptance={"snapshot": str(snapshot), "refine": "system_prompt"},
        ) as router,
    ):
        for script in (streaming(*chat_stream(text)), answering(500, b"{}"), broken):
            upstream.script = script
            for way in ("plain", "library"):
                for key in (ALICE, BOB, stranger):
                    async with asked(router, sent(way, bearer(key), body)) as answer:
                        told.append(repr(answer.headers).encode())
                        content = await answer.body()
                        if answer.status != 200:
                            told.append(content)
        rid = next(iter(router.state.dispatcher.books.records.latest(1))).view.request_id
        for path in (*PRIVATE_ROUTES, *CLIENT_ROUTES, f"/explain?rid={rid}"):
            async with request(router.url, path, b"", bearer(ADMIN), method="GET") as answer:
                told.append(await answer.body())
    told += [log.read_bytes(), snapshot.read_bytes(), caplog.text.encode()]
    assert b'"event":"end"' in log.read_bytes()
    for shown in told:
        for secret in (ALICE, BOB, ADMIN, stranger, prompt, text):
            assert secret.encode() not in shown
