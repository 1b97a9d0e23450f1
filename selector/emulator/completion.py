"""Answers of `/v1/completions`."""

from __future__ import annotations

import orjson

from selector.emulator.answers import DONE
from selector.emulator.openai import COMPLETION, closing_events, event_head, whole_answer
from selector.emulator.report import Report


class CompletionAnswer:
    """See `selector.emulator.answers.Answer`."""

    headers_first = False

    def __init__(self, report: Report) -> None:
        self._report = report
        self._text = event_head(COMPLETION, report) + b'{"index":0,"text":"'

    def begin(self) -> list[bytes]:
        return []

    def event(self, seen: int, tokens: int, *, ended: bool) -> bytes | None:
        report = self._report
        finish, matched = b"null", b"null"
        if ended:
            finish, matched = orjson.dumps(report.finish_type), orjson.dumps(report.matched_stop)
        return b'%b%b","logprobs":null,"finish_reason":%b,"matched_stop":%b}],"usage":%b}\n\n' % (
            self._text,
            report.text(seen, tokens),
            finish,
            matched,
            report.usage_json(tokens) if report.ask.continuous_usage else b"null",
        )

    def end(self) -> list[bytes]:
        return [*closing_events(COMPLETION, self._report), DONE]

    def whole(self) -> bytes:
        report = self._report
        choice: dict[str, object] = {
            "index": 0,
            "text": report.text(0, report.generation.delivered).decode(),
            "logprobs": None,
            "finish_reason": report.finish_type,
            "matched_stop": report.matched_stop,
        }
        return whole_answer(COMPLETION, report, choice)
