"""The OpenAI Python client, unchanged, against the router."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import orjson
import pytest

from tests.integration.router.fake_upstream import EAGLE3_K3, Exchange, FakeUpstream, Script, answering, streaming
from tests.integration.router.harness import ROLE, TARGET, chat_stream, delta, routed, sglext

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


WEATHER: openai.types.chat.ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"town": {"type": "string"}}}},
}


async def test_streamed_tool_calls_are_put_together() -> None:
    def call(**function: str) -> bytes:
        return delta(tool_calls=[{"index": 0, "id": "c", "type": "function", "function": function}])

    sent = [
        ROLE,
        call(name="weather", arguments=""),
        call(arguments='{"town":'),
        call(arguments=' "Chur"}'),
        *chat_stream(tokens=9, finish_reason="tool_calls")[1:],
    ]
    async with client_of(streaming(*sent)) as client:
        stream = await client.chat.completions.create(
            model=TARGET, messages=MESSAGES, tools=[WEATHER], stream=True, stream_options={"include_usage": True}
        )
        arguments, usages, ends = "", [], []
        async for chunk in stream:
            usages.append(chunk.usage)
            for choice in chunk.choices:
                ends.append(choice.finish_reason)
                for part in choice.delta.tool_calls or ():
                    arguments += (part.function and part.function.arguments) or ""
        assert orjson.loads(arguments) == {"town": "Chur"}
        assert ends[-1] == "tool_calls"
        assert [usage.completion_tokens for usage in usages if usage is not None] == [9]


async def test_a_json_schema_reaches_the_backend_as_the_client_wrote_it() -> None:
    schema = {"name": "sum", "strict": True, "schema": {"type": "object", "properties": {"b": {}, "a": {}}}}
    message = {"role": "assistant", "content": '{"a": 1}'}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": TARGET, "choices": [choice]}
    async with (
        FakeUpstream(script=answering(200, orjson.dumps(body))) as upstream,
        routed(upstream) as router,
        openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="k", max_retries=0) as client,
    ):
        answer = await client.chat.completions.create(
            model=TARGET,
            messages=MESSAGES,
            response_format={"type": "json_schema", "json_schema": schema},  # type: ignore[typeddict-item]
        )
        assert answer.choices[0].message.content == '{"a": 1}'
        given = upstream.seen[0].json["response_format"]
        assert given == {"type": "json_schema", "json_schema": schema}
        assert list(given["json_schema"]["schema"]["properties"]) == ["b", "a"]


async def test_the_usage_has_openai_s_counts_of_predicted_tokens() -> None:
    spec = sglext(spec_verify_ct=1, spec_num_correct_drafts=1, spec_num_proposed_drafts=6)
    sent = [*chat_stream("Hi", " there")[:-2], spec, *chat_stream("Hi", " there")[-2:]]
    async with (
        FakeUpstream(EAGLE3_K3, script=streaming(*sent)) as upstream,
        routed(upstream, arms=["eagle3-k3"]) as router,
        openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="k", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(
            model=TARGET, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        (usage,) = [chunk.usage async for chunk in stream if chunk.usage is not None]
        details = usage.completion_tokens_details
        assert details is not None
        assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (1, 5)


async def test_a_refusal_for_want_of_backends_is_tried_again_by_the_client() -> None:
    message = {"role": "assistant", "content": "Hi"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": TARGET, "choices": [choice]}
    full = True

    async def script(exchange: Exchange) -> None:
        nonlocal full
        if full:
            full = False
            await exchange.answer(503, b'{"message":"The request queue is full."}', ("retry-after-ms", "1"))
        else:
            await exchange.answer(200, orjson.dumps(body))

    async with (
        FakeUpstream(script=script) as upstream,
        routed(upstream) as router,
        openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="k", max_retries=1) as client,
    ):
        answer = await client.chat.completions.create(model=TARGET, messages=MESSAGES)
        assert answer.choices[0].message.content == "Hi"
        assert len(upstream.seen) == 2


async def test_models_by_list_and_by_name() -> None:
    async with client_of(answering(200, b"{}")) as client:
        assert [model.id async for model in client.models.list()] == [TARGET]
        assert (await client.models.retrieve(TARGET)).id == TARGET
        with pytest.raises(openai.NotFoundError, match="no-such-model"):
            await client.models.retrieve("no-such-model")
