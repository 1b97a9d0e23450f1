"""The OpenAI Python client, unchanged, against the router."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import orjson
import pytest

from tests.integration.router.fake_upstream import Exchange, FakeUpstream, Script, answering, streaming
from tests.integration.router.harness import ROLE, TARGET, chat_stream, delta, routed

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Hello, how are you?"}]


@asynccontextmanager
async def client_of(script: Script) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        FakeUpstream(script=script) as upstream,
        routed(upstream) as router,
        openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="k", max_retries=0) as client,
    ):
        yield client


async def test_streaming_with_and_without_usage() -> None:
    async with client_of(streaming(*chat_stream("Hi", " there"))) as client:
        for asks in (False, True):
            options: openai.types.chat.ChatCompletionStreamOptionsParam = {"include_usage": asks}
            stream = await client.chat.completions.create(
                model=TARGET, messages=MESSAGES, stream=True, stream_options=options
            )
            chunks = [chunk async for chunk in stream]
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hi there"
            assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == ([2] if asks else [])


async def test_a_whole_answer_with_the_decision_in_its_headers() -> None:
    message = {"role": "assistant", "content": "Hi"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": TARGET, "choices": [choice]}
    async with client_of(answering(200, orjson.dumps(body))) as client:
        raw = await client.chat.completions.with_raw_response.create(model=TARGET, messages=MESSAGES)
        assert raw.headers["x-drafter-selector-backend"] == "b0"
        assert raw.parse().choices[0].message.content == "Hi"


async def test_a_backend_that_dies_in_mid_stream_raises_in_the_client() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.stream_head()
        for chunk in (ROLE, delta(content="a"), delta(content="b")[:30]):
            await exchange.chunk(chunk)
        exchange.break_off()

    async with client_of(script) as client:
        stream = await client.chat.completions.create(model=TARGET, messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="failed in the middle of the answer"):
            async for _ in stream:
                pass


async def test_an_error_of_the_router_is_the_client_s_kind_of_error() -> None:
    async with client_of(answering(200, b"{}")) as client:
        with pytest.raises(openai.BadRequestError, match="x-slo-class"):
            await client.chat.completions.create(
                model=TARGET, messages=MESSAGES, extra_headers={"x-slo-class": "no such class"}
            )


async def test_leaving_a_stream_closes_the_backend_s_connection() -> None:
    exchanges: list[Exchange] = []

    async def script(exchange: Exchange) -> None:
        exchanges.append(exchange)
        await exchange.stream_head()
        await exchange.chunk(ROLE)
        await exchange.wait_closed()

    async with client_of(script) as client:
        stream = await client.chat.completions.create(model=TARGET, messages=MESSAGES, stream=True)
        async for _ in stream:
            break
        await stream.close()
        await exchanges[0].closed.wait()
