"""What chat and completion answers share: the object around the choice, and the events after it."""

from __future__ import annotations

import orjson

from selector.emulator.answers import sse
from selector.emulator.asks import Ask
from selector.emulator.report import Report, usage_of

CHAT = "chat.completion"
CHAT_CHUNK = "chat.completion.chunk"
COMPLETION = "text_completion"
"""A completion's chunk has the same name as the whole."""


def event_head(kind: str, report: Report) -> bytes:
    """The start of every event that has a choice, up to the choice."""
    return b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":[' % (
        orjson.dumps(report.ask.rid),
        kind.encode(),
        report.created,
        orjson.dumps(report.ask.model),
    )


def usage_event(kind: str, ask: Ask, created: int, *, prompt_tokens: int, completion_tokens: int) -> bytes:
    """The usage event at the end of a stream. Unlike a chat's, a completion's leaves out what is null."""
    usage = usage_of(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)
    if kind == COMPLETION:
        usage = {name: count for name, count in usage.items() if count is not None}
    return sse({**_without_choices(kind, ask, created), "usage": usage})


def closing_events(kind: str, report: Report) -> list[bytes]:
    """The events of a stream between its last choice and `[DONE]`."""
    ask, events = report.ask, []
    sglext = report.sglext()
    if sglext is not None:
        events.append(sse({**_without_choices(kind, ask, report.created), "usage": None, "sglext": sglext}))
    if ask.include_usage:
        delivered = report.generation.delivered
        event = usage_event(kind, ask, report.created, prompt_tokens=report.prompt_tokens, completion_tokens=delivered)
        events.append(event)
    return events


def whole_answer(kind: str, report: Report, choice: dict[str, object]) -> bytes:
    """The body of an answer that is not streamed."""
    body: dict[str, object] = {
        "id": report.ask.rid,
        "object": kind,
        "created": report.created,
        "model": report.ask.model,
        "choices": [choice],
        "usage": report.usage(),
        "metadata": report.metadata(),
    }
    sglext = report.sglext()
    if sglext is not None:
        body["sglext"] = sglext
    return orjson.dumps(body)


def _without_choices(kind: str, ask: Ask, created: int) -> dict[str, object]:
    return {"id": ask.rid, "object": kind, "created": created, "model": ask.model, "choices": []}
