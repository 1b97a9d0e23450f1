"""Answers of `/v1/chat/completions`."""

from __future__ import annotations

import orjson

from selector.emulator.answers import DONE, sse
from selector.emulator.report import Report

_CONTENT_END = b'"},"logprobs":null,"finish_reason":null,"matched_stop":null}]'


class ChatAnswer:
    """See `selector.emulator.answers.Answer`."""

    headers_first = False

    def __init__(self, report: Report) -> None:
        self._report = report
        head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,"choices":[' % (
            orjson.dumps(report.ask.rid),
            report.created,
            orjson.dumps(report.ask.model),
        )
        self._delta = head + b'{"index":0,"delta":{"reasoning_content":null'
        self._content = self._delta + b',"content":"'

    def begin(self) -> list[bytes]:
        return [self._delta + b',"role":"assistant","content":"' + _CONTENT_END + b"}\n\n"]

    def event(self, seen: int, tokens: int, *, ended: bool) -> bytes | None:
        text = self._report.text(seen, tokens)
        if not text:
            return None
        if self._report.ask.continuous_usage:
            usage = self._report.usage_json(tokens)
            return b'%b%b%b,"usage":%b}\n\n' % (self._content, text, _CONTENT_END, usage)
        return b"%b%b%b}\n\n" % (self._content, text, _CONTENT_END)

    def end(self) -> list[bytes]:
        report = self._report
        finish = b'%b},"logprobs":null,"finish_reason":%b,"matched_stop":%b}]}\n\n' % (
            self._delta,
            orjson.dumps(report.finish_type),
            orjson.dumps(report.matched_stop),
        )
        return [finish, *closing_events(report, "chat.completion.chunk", report.usage()), DONE]

    def whole(self) -> bytes:
        report = self._report
        delivered = report.generation.delivered
        choice: dict[str, object] = {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": report.text(0, delivered).decode(),
                "reasoning_content": None,
            },
            "logprobs": None,
            "finish_reason": report.finish_type,
            "matched_stop": report.matched_stop,
        }
        if report.ask.meta_info:
            choice["meta_info"] = report.meta_info()
        return whole_answer(report, "chat.completion", choice)


def closing_events(report: Report, kind: str, usage: dict[str, object]) -> list[bytes]:
    """The events of an OpenAI stream between its last choice and `[DONE]`."""
    head = {"id": report.ask.rid, "object": kind, "created": report.created, "model": report.ask.model, "choices": []}
    events = []
    sglext = report.sglext()
    if sglext is not None:
        events.append(sse({**head, "usage": None, "sglext": sglext}))
    if report.ask.include_usage:
        events.append(sse({**head, "usage": usage}))
    return events


def whole_answer(report: Report, kind: str, choice: dict[str, object]) -> bytes:
    """The body of an OpenAI answer that is not streamed."""
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
