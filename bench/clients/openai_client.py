"""What OpenAI's Python client does against the router: each step is a check that raises when it is not as promised."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Any

import openai

Step = Callable[[openai.AsyncOpenAI, str], Awaitable[str]]

PROMPT: list[Any] = [{"role": "user", "content": "Write a Python function that adds two numbers."}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a town.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}
SCHEMA: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "sum",
        "schema": {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]},
    },
}


class Unexpected(Exception):
    """The client saw something else than it should."""


def require(holds: bool, what: str) -> None:
    """Raises `Unexpected` with `what` unless it holds."""
    if not holds:
        raise Unexpected(what)


async def models(client: openai.AsyncOpenAI, model: str) -> str:
    """Listed, and by name."""
    names = [card.id async for card in client.models.list()]
    require(names == [model], f"models are {names}")
    card = await client.models.retrieve(model)
    require(card.id == model, f"the model is {card.id}")
    try:
        await client.models.retrieve("no-such-model")
    except openai.NotFoundError:
        return f"{model}, {card.max_model_len} tokens"  # type: ignore[attr-defined] # SGLang's field
    raise Unexpected("a model that is not there was found")


async def whole(client: openai.AsyncOpenAI, model: str) -> str:
    """Not streamed, with the decision in its headers."""
    raw = await client.chat.completions.with_raw_response.create(model=model, messages=PROMPT, max_tokens=24)
    answer = raw.parse()
    require(answer.usage is not None and answer.usage.completion_tokens == 24, f"usage is {answer.usage}")
    require(bool(answer.choices[0].message.content), "there is no text")
    return f"arm {raw.headers['x-drafter-selector-arm']}, {raw.headers['x-drafter-selector-reason']}"


async def streamed(client: openai.AsyncOpenAI, model: str) -> str:
    """Streamed, with usage."""
    stream = await client.chat.completions.create(
        model=model, messages=PROMPT, max_tokens=24, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
    require(len(usages) == 1 and usages[0].completion_tokens == 24, f"usages are {usages}")
    require(len([chunk for chunk in chunks if chunk.choices]) > 2, f"{len(chunks)} chunks")
    return f"{len(chunks)} chunks"


async def without_usage(client: openai.AsyncOpenAI, model: str) -> str:
    """Streamed; nothing of what the router asked for on its own account is seen."""
    stream = await client.chat.completions.create(model=model, messages=PROMPT, max_tokens=8, stream=True)
    chunks = [chunk async for chunk in stream]
    require(all(chunk.usage is None and chunk.choices for chunk in chunks), "a chunk that was not asked for")
    return f"{len(chunks)} chunks"


async def drafts(client: openai.AsyncOpenAI, model: str) -> str:
    """The usage says what became of the drafts, streamed or not."""
    # A target that only speculation meets.
    headers = {"x-tbt-target-ms": "5"}
    answer = await client.chat.completions.create(model=model, messages=PROMPT, max_tokens=48, extra_headers=headers)
    stream = await client.chat.completions.create(
        model=model,
        messages=PROMPT,
        max_tokens=48,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers=headers,
    )
    last = [chunk.usage async for chunk in stream if chunk.usage is not None][-1]
    said = []
    for usage in (answer.usage, last):
        details = usage.completion_tokens_details if usage is not None else None
        require(details is not None, f"usage is {usage}")
        accepted, rejected = details.accepted_prediction_tokens, details.rejected_prediction_tokens  # type: ignore[union-attr]
        require(accepted is not None and 0 < accepted < 48 and rejected is not None, f"details are {details}")
        said.append(f"{accepted} accepted, {rejected} rejected")
    return "; streamed: ".join(said)


async def completions(client: openai.AsyncOpenAI, model: str) -> str:
    """The older route."""
    answer = await client.completions.create(model=model, prompt="Once upon a time", max_tokens=8)
    require(bool(answer.choices[0].text), "there is no text")
    return f"{answer.usage.completion_tokens if answer.usage else None} tokens"


async def tools_and_schema(client: openai.AsyncOpenAI, model: str) -> str:
    """Requests with tools and with a JSON schema find an arm that serves them."""
    arms = []
    for more in ({"tools": [WEATHER], "tool_choice": "auto"}, {"response_format": SCHEMA}):
        raw = await client.chat.completions.with_raw_response.create(model=model, messages=PROMPT, max_tokens=8, **more)
        require(raw.parse().choices[0].finish_reason in ("stop", "length", "tool_calls"), "there is no end")
        arms.append(raw.headers["x-drafter-selector-arm"])
    return f"tools on {arms[0]}, schema on {arms[1]}"


async def errors(client: openai.AsyncOpenAI, model: str) -> str:
    """What the server refuses and what the router refuses arrive as the client's own errors."""
    said = []
    for options in (
        {"max_tokens": -1},
        {"max_tokens": 10_000_000},
        {"extra_headers": {"x-slo-class": "no-such-class"}},
    ):
        try:
            await client.chat.completions.create(model=model, messages=PROMPT, **options)  # type: ignore[call-overload]
        except openai.BadRequestError as refused:
            said.append(refused.status_code)
    require(said == [400, 400, 400], f"refused with {said}")
    return "3 refused with 400"


async def left(client: openai.AsyncOpenAI, model: str) -> str:
    """A stream that is left in the middle frees its place."""
    stream = await client.chat.completions.create(model=model, messages=PROMPT, max_tokens=4_000, stream=True)
    seen = 0
    async for _ in stream:
        seen += 1
        if seen == 3:
            break
    await stream.close()
    return f"left after {seen} chunks"


STEPS: Mapping[str, Step] = {
    step.__name__: step
    for step in (models, whole, streamed, without_usage, drafts, completions, tools_and_schema, errors, left)
}


async def run(url: str) -> dict[str, Any]:
    """Every step; what it saw. Raises `Unexpected` or the client's own error at the first that fails."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0, timeout=60.0) as client:
        model = (await client.models.list()).data[0].id
        steps = {name: await step(client, model) for name, step in STEPS.items()}
    return {"version": version("openai"), "steps": steps}
