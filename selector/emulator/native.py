"""Answers of `/generate`: every event of a stream repeats the whole text and all token ids so far."""

from __future__ import annotations

import orjson

from selector.emulator.answers import DONE
from selector.emulator.report import Report


class NativeAnswer:
    """See `selector.emulator.answers.Answer`."""

    headers_first = True

    def __init__(self, report: Report) -> None:
        self._report = report
        self._meta_head = b""

    def begin(self) -> list[bytes]:
        return []

    def event(self, seen: int, tokens: int, *, ended: bool) -> bytes | None:
        if ended:
            return b"data: %b\n\n" % self.whole()
        report = self._report
        sent = b""
        if not self._meta_head:
            opening = {"id": report.ask.rid, "finish_reason": None, **report.opening()}
            self._meta_head = orjson.dumps(opening).removesuffix(b"}")
            sent = b',"response_sent_to_client_ts":%b' % orjson.dumps(report.first_sent_unix_s())
        return (
            b'data: {"text":"%b","output_ids":[%b],"meta_info":%b,"completion_tokens":%d,"cached_tokens":0,'
            b'"cached_tokens_details":null,"dp_rank":null%b}}\n\n'
        ) % (report.text(0, tokens), report.token_ids(tokens), self._meta_head, tokens, sent)

    def end(self) -> list[bytes]:
        return [DONE]

    def whole(self) -> bytes:
        report = self._report
        delivered = report.generation.delivered
        return b'{"text":"%b","output_ids":[%b],"meta_info":%b}' % (
            report.text(0, delivered),
            report.token_ids(delivered),
            orjson.dumps(report.meta_info()),
        )
