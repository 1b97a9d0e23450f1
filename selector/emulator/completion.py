"""Answers of `/v1/completions`."""

from __future__ import annotations

import orjson

from selector.emulator.answers import DONE
from selector.emulator.chat import closing_events, whole_answer
from selector.emulator.report import Report


class CompletionAnswer:
    """See `selector.emulator.answers.Answer`."""

    headers_first = False

    def __init__(self, report: Report) -> None:
        self._report = report
        head = b'data: {"id":%b,"object":"text_completion","created":%d,"model":%b,"choices":[{"index":0,"text":"'
        self._head = head % (orjson.dumps(report.ask.rid), report.created, orjson.dumps(report.ask.model))

    def begin(self) -> list[bytes]:
        return []

    def event(self, seen: int, tokens: int, *, ended: bool) -> bytes | None:
        report = self._report
        finish, matched = b"null", b"null"
        if ended:
            finish, matched = orjson.dumps(report.finish_type), orjson.dumps(report.matched_stop)
        usage = report.usage_json(tokens) if report.ask.continuous_usage else b"null"
        return b'%b%b","logprobs":null,"finish_reason":%b,"matched_stop":%b}],"usage":%b}\n\n' % (
            self._head,
            report.text(seen, tokens),
            finish,
            matched,
            usage,
        )

    def end(self) -> list[bytes]:
        # Unlike in a chat, the usage event leaves out what is null.
        usage = {name: count for name, count in self._report.usage().items() if count is not None}
        return [*closing_events(self._report, "text_completion", usage), DONE]

    def whole(self) -> bytes:
        report = self._report
        choice: dict[str, object] = {
            "index": 0,
            "text": report.text(0, report.generation.delivered).decode(),
            "logprobs": None,
            "finish_reason": report.finish_type,
            "matched_stop": report.matched_stop,
        }
        return whole_answer(report, "text_completion", choice)
