"""Answers of `/v1/chat/completions`."""

from __future__ import annotations

import orjson

from selector.emulator.answers import DONE
from selector.emulator.openai import CHAT, CHAT_CHUNK, closing_events, event_head, whole_answer
from selector.emulator.report import Report

_TEXT_END = b'"},"logprobs":null,"finish_reason":null,"matched_stop":null}]'


class ChatAnswer:
    """See `selector.emulator.answers.Answer`."""

    headers_first = False

    def __init__(self, report: Report) -> None:
        self._report = report
        self._delta = event_head(CHAT_CHUNK, report) + b'{"index":0,"delta":{"reasoning_content":null'
        self._text = self._delta + b',"content":"'

    def begin(self) -> list[bytes]:
        return [b'%b,"role":"assistant","content":"%b}\n\n' % (self._delta, _TEXT_END)]

    def event(self, seen: int, tokens: int, *, ended: bool) -> bytes | None:
        text = self._report.text(seen, tokens)
        if not text:
            return None
        if self._report.ask.continuous_usage:
            return b'%b%b%b,"usage":%b}\n\n' % (self._text, text, _TEXT_END, self._report.usage_json(tokens))
        return b"%b%b%b}\n\n" % (self._text, text, _TEXT_END)

    def end(self) -> list[bytes]:
        report = self._report
        finish = b'%b},"logprobs":null,"finish_reason":%b,"matched_stop":%b}]}\n\n' % (
            self._delta,
            orjson.dumps(report.finish_type),
            orjson.dumps(report.matched_stop),
        )
        return [finish, *closing_events(CHAT_CHUNK, report), DONE]

    def whole(self) -> bytes:
        report = self._report
        text = report.text(0, report.generation.delivered).decode()
        choice: dict[str, object] = {
            "index": 0,
            "message": {"role": "assistant", "content": text, "reasoning_content": None},
            "logprobs": None,
            "finish_reason": report.finish_type,
            "matched_stop": report.matched_stop,
        }
        if report.ask.meta_info:
            choice["meta_info"] = report.meta_info()
        return whole_answer(CHAT, report, choice)
