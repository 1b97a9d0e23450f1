"""API keys on both ways into the router: who comes in, how often, as which class, and what nobody gets to see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import openai
import orjson
import pytest

from selector.errors import FleetError
from selector.files.security import Holder, load_holders
from selector.router.running import RunningRouter
from tests.integration.router.fake_upstream import FakeUpstream, Script, answering, broken, hanging, streaming
from tests.integration.router.harness import CHAT, TARGET, chat_stream, fleet_of, routed
from tests.integration.router.raw_client import Answer, answer_from, connection, request, request_bytes
from tests.integration.router.test_requests import seen_by_policy

ALICE, BOB, ADMIN, NEXT = "key-of-alice-01", "key-of-bob-0002", "key-of-admin-03", "key-of-alice-04"
KEYS = f"""
    [keys.alice]
    value = "{ALICE}"
    slo_class = "batch"
    [keys.bob]
    sha256 = "{sha256(BOB.encode()).hexdigest()}"
    slo_classes = ["chat"]
    may_set_target = false
    [keys.admin]
    value = "{ADMIN}"
    control = true
"""
PATH = "/v1/chat/completions"
WAYS = pytest.mark.parametrize("way", ["plain", "library"])


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def sent(way: str, headers: Mapping[str, str], body: bytes | Mapping[str, Any] = CHAT, path: str = PATH) -> bytes:
    """The same request for the relay itself or, its body in a chunk, for the library before it."""
    if way == "plain":
        return request_bytes(path, body, headers)
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: r",
        "Transfer-Encoding: chunked",
        *(f"{n}: {v}" for n, v in headers.items()),
    ]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)


@asynccontextmanager
async def asked(router: RunningRouter, data: bytes) -> AsyncIterator[Answer]:
    async with connection(router.url) as (reader, writer):
        writer.write(data)
        yield await answer_from(reader, writer)


async def metrics_of(router: RunningRouter) -> str:
    async with request(router.url, "/metrics", method="GET", headers=bearer(ADMIN)) as answer:
        assert answer.status == 200
        return (await answer.body()).decode()


@WAYS
@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({}, "no API key"),
        ({"Authorization": ALICE}, "no API key"),
        ({"Authorization": f"Basic {ALICE}"}, "no API key"),
        ({"Authorization": "Bearer "}, "not known"),
        ({"Authorization": f"Bearer {ALICE}x"}, "not known"),
        ({"Authorization": f"Bearer {ALICE[:-1]}"}, "not known"),
        ({"Authorization": f"Bearer {ALICE}", "authorization": f"Bearer {BOB}"}, "no API key"),
        ({"Authorization": f"Bearer {sha256(BOB.encode()).hexdigest()}"}, "not known"),
        ({"x-api-key": f"{ALICE}x"}, "not known"),
        ({"Authorization": "Bearer wrong", "x-api-key": ALICE}, "not known"),
        ({"Authorization": "Bearer " + "\xff" * 4000}, "not known"),
    ],
)
async def test_a_request_without_a_known_key_is_401_in_openai_s_shape(
    way: str, headers: Mapping[str, str], message: str
) -> None:
    async with (
        FakeUpstream() as upstream,
        routed(upstream, tables_more=KEYS) as router,
        asked(router, sent(way, headers)) as answer,
    ):
        assert (answer.status, answer.header("www-authenticate")) == (401, "Bearer")
        error = (await answer.json())["error"]
        assert message in error.pop("message")
        assert error == {"type": "invalid_request_error", "param": None, "code": "invalid_api_key"}
        assert await answer.reader.read() == b""
        assert upstream.seen == []


@WAYS
@pytest.mark.parametrize(
    "headers",
    [bearer(ALICE), {"authorization": f"bearer   {ALICE}"}, {"x-api-key": ALICE}, bearer(BOB)],
)
async def test_a_known_key_comes_in_and_stays_here(way: str, headers: Mapping[str, str]) -> None:
    async with (
        FakeUpstream(script=answering(200, b"{}")) as upstream,
        routed(upstream, tables_more=KEYS) as router,
        asked(router, sent(way, headers)) as answer,
    ):
        assert answer.status == 200
        names = {name.lower() for name, _ in upstream.seen[0].headers}
        assert not names & {"authorization", "x-api-key"}


@pytest.mark.parametrize(
    ("keys", "passes", "key", "expected"),
    [
        ("", "", None, f"Bearer {ALICE}"),
        ("", "pass_authorization = false", None, None),
        (KEYS, "", None, None),
        (KEYS, "pass_authorization = true", None, f"Bearer {ALICE}"),
        ("", "", "server-key", "Bearer server-key"),
        (KEYS, "pass_authorization = true", "server-key", "Bearer server-key"),
    ],
)
async def test_which_key_a_backend_gets(
    monkeypatch: pytest.MonkeyPatch, keys: str, passes: str, key: str | None, expected: str | None
) -> None:
    monkeypatch.setenv("MADE_UP_KEY", key or "")
    more = 'api_key_env = "MADE_UP_KEY"' if key else ""
    async with (
        FakeUpstream(script=answering(200, b"{}")) as upstream,
        routed(upstream, tables_more=f"[security]\n{passes}\n{keys}", backend_more=more) as router,
        request(router.url, body=CHAT, headers=bearer(ALICE)) as answer,
    ):
        assert answer.status == 200
        assert upstream.seen[0].header("authorization") == expected


@WAYS
async def test_errors_have_the_shape_of_their_route(way: str) -> None:
    async with FakeUpstream() as upstream, routed(upstream, tables_more=KEYS) as router:
        for path, headers, kind in (
            ("/v1/messages", {}, "authentication_error"),
            ("/v1/messages", {**bearer(BOB), "x-slo-class": "batch"}, "permission_error"),
        ):
            async with asked(router, sent(way, headers, CHAT, path)) as answer:
                error = await answer.json()
                assert (error["type"], error["error"]["type"]) == ("error", kind)


@WAYS
async def test_the_class_of_a_key_and_what_it_may_ask_for(way: str) -> None:
    async with FakeUpstream(script=answering(200, b"{}")) as upstream, routed(upstream, tables_more=KEYS) as router:
        for key, more, expected in (
            (ALICE, {}, ("batch", None)),
            (ALICE, {"x-slo-class": "chat"}, ("chat", 25.0)),
            (ALICE, {"x-slo-tpot-ms": "9"}, ("batch", 9.0)),
            (BOB, {}, ("chat", 25.0)),
        ):
            async with asked(router, sent(way, {**bearer(key), **more})) as answer:
                assert answer.status == 200
            view = seen_by_policy(router)
            assert (view.slo_class, view.tbt_target_ms) == expected
        for more in (
            {"x-slo-class": "batch"},
            {"X-Slo-Class": "none such"},
            {"x-tbt-target-ms": "1"},
            {"x-slo-tpot-ms": "1"},
        ):
            async with asked(router, sent(way, {**bearer(BOB), **more})) as answer:
                error = (await answer.json())["error"]
                assert (answer.status, error["code"]) == (403, "permission_denied")
        assert len(upstream.seen) == 4
        assert 'drafter_selector_key_requests_total{holder="bob",result="forbidden"} 4.0' in await metrics_of(router)


@WAYS
async def test_a_rate_is_kept_and_the_client_told_when_to_come_again(way: str) -> None:
    now_s = 100.0
    keys = KEYS.replace('slo_class = "batch"', "requests_per_minute = 6\nburst_requests = 2")
    async with (
        FakeUpstream(script=answering(200, b"{}")) as upstream,
        routed(upstream, tables_more=keys, clock=lambda: now_s) as router,
    ):

        async def status() -> tuple[int, str | None]:
            async with asked(router, sent(way, bearer(ALICE))) as answer:
                if answer.status == 429:
                    error = (await answer.json())["error"]
                    assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
                return answer.status, answer.header("retry-after")

        assert [await status() for _ in range(3)] == [(200, None), (200, None), (429, "10")]
        now_s += 9.5
        assert await status() == (429, "1")
        now_s += 0.5
        assert [await status() for _ in range(2)] == [(200, None), (429, "10")]
        async with asked(router, sent(way, bearer(BOB))) as answer:
            assert answer.status == 200
        text = await metrics_of(router)
        assert 'drafter_selector_key_requests_total{holder="alice",result="admitted"} 3.0' in text
        assert 'drafter_selector_key_requests_total{holder="alice",result="limited"} 3.0' in text
        assert 'drafter_selector_refused_requests_total{status="429"} 3.0' in text


CONCURRENT = KEYS.replace('slo_class = "batch"', "max_concurrent = 1")


@WAYS
async def test_requests_at_a_time_are_limited_whether_they_are_sent_or_answered(way: str) -> None:
    async with FakeUpstream(script=hanging) as upstream, routed(upstream, tables_more=CONCURRENT) as router:
        keys = router.state.keys

        async def refused() -> None:
            async with asked(router, sent(way, bearer(ALICE))) as answer:
                assert (answer.status, answer.header("retry-after")) == (429, "1")
                assert "1 requests under way" in (await answer.json())["error"]["message"]

        async with connection(router.url) as (_, writer):  # its body never comes whole
            writer.write(sent(way, bearer(ALICE))[:-3])
            await until(lambda: keys.running("alice") == 1)
            await refused()
        await until(lambda: keys.running("alice") == 0)
        async with connection(router.url) as (_, writer):  # its answer never comes
            writer.write(sent(way, bearer(ALICE)))
            exchange = await upstream.next_exchange()
            await refused()
            upstream.script = answering(200, b"{}")
            async with asked(router, sent(way, bearer(BOB))) as answer:
                assert answer.status == 200
        await exchange.closed.wait()
        await until(lambda: keys.running("alice") == 0)
        async with connection(router.url) as (reader, writer):  # one after the other on one connection
            for _ in range(3):
                writer.write(sent(way, bearer(ALICE)))
                answer = await answer_from(reader, writer)
                assert (answer.status, await answer.body()) == (200, b"{}")
        assert keys.running("alice") == keys.running("bob") == 0


async def until(condition: Callable[[], bool]) -> None:
    while True:
        if condition():
            return
        await asyncio.sleep(0)


@WAYS
@pytest.mark.parametrize(
    ("body", "script"),
    [
        (b"no json", answering(200, b"{}")),
        (b"x" * 2000, answering(200, b"{}")),
        (CHAT, answering(500, b"{}")),
        (CHAT, broken),
        ({**CHAT, "stream": True}, streaming(*chat_stream("a")[:2])),
    ],
)
async def test_whatever_becomes_of_a_request_it_is_over_once(
    way: str, body: bytes | Mapping[str, Any], script: Script
) -> None:
    async with (
        FakeUpstream(script=script) as upstream,
        routed(upstream, tables_more=CONCURRENT, max_body_bytes=1000) as router,
    ):
        for _ in range(2):
            async with asked(router, sent(way, bearer(ALICE), body)) as answer:
                assert answer.status != 429
                await answer.body()
            await until(lambda: router.state.keys.running("alice") == 0)


def holders(tables: str) -> tuple[Holder, ...]:
    return load_holders(fleet_of(["http://127.0.0.1:9"], ["none"], tables_more=tables).fleet, "fleet.toml")


@WAYS
async def test_keys_are_rotated_while_requests_run(way: str) -> None:
    async with FakeUpstream(script=hanging) as upstream, routed(upstream, tables_more=CONCURRENT) as router:
        async with connection(router.url) as (_, writer):
            writer.write(sent(way, bearer(ALICE)))
            exchange = await upstream.next_exchange()
            both = CONCURRENT.replace(f'value = "{ALICE}"', f'value = ["{ALICE}", "{NEXT}"]')
            router.state.keys.replace(holders(both))
            # What runs under one key counts for the other, before and after the old one is gone.
            assert [await code(router, sent(way, bearer(key))) for key in (ALICE, NEXT)] == [429, 429]
            router.state.keys.replace(holders(CONCURRENT.replace(ALICE, NEXT)))
            assert [await code(router, sent(way, bearer(key))) for key in (ALICE, NEXT)] == [401, 429]
        await exchange.closed.wait()
        upstream.script = answering(200, b"{}")
        await until(lambda: router.state.keys.running("alice") == 0)
        assert [await code(router, sent(way, bearer(key))) for key in (ALICE, NEXT)] == [401, 200]
        # A holder that is gone is gone at once; a request of its own that still runs harms no count.
        router.state.keys.replace(holders('[keys.new]\nvalue = "key-of-somebody"\ncontrol = true'))
        assert [await code(router, sent(way, bearer(key))) for key in (NEXT, "key-of-somebody")] == [401, 200]
        async with request(router.url, "/metrics", method="GET", headers=bearer("key-of-somebody")) as answer:
            text = (await answer.body()).decode()
        assert 'drafter_selector_key_in_flight_requests{holder="new"} 0.0' in text
        with pytest.raises(FleetError, match="none any more"):
            router.state.keys.replace(())
        assert await code(router, sent(way, bearer(NEXT))) == 401


async def code(router: RunningRouter, data: bytes) -> int:
    async with asked(router, data) as answer:
        return answer.status


async def test_the_openai_client_knows_the_errors() -> None:
    async with FakeUpstream() as upstream, routed(upstream, tables_more=CONCURRENT) as router:
        base = f"{router.url}/v1"
        messages: list[Any] = [{"role": "user", "content": "Hello"}]
        for key, more, error in (
            ("no-such-key", {}, openai.AuthenticationError),
            (BOB, {"x-slo-class": "batch"}, openai.PermissionDeniedError),
        ):
            async with openai.AsyncOpenAI(base_url=base, api_key=key, max_retries=0) as client:
                with pytest.raises(error) as told:
                    await client.chat.completions.create(model=TARGET, messages=messages, extra_headers=more)
                assert told.value.code in ("invalid_api_key", "permission_denied")
        upstream.script = hanging
        async with connection(router.url) as (_, writer):
            writer.write(request_bytes(PATH, CHAT, bearer(ALICE)))
            await upstream.next_exchange()
            async with openai.AsyncOpenAI(base_url=base, api_key=ALICE, max_retries=0) as client:
                with pytest.raises(openai.RateLimitError) as limited:
                    await client.chat.completions.create(model=TARGET, messages=messages)
                assert (limited.value.code, limited.value.response.headers["retry-after"]) == (
                    "rate_limit_exceeded",
                    "1",
                )
