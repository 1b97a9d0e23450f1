"""What an answer tells of itself, without I/O: events and the time they came go in, what they mean comes out.

    bytes ──▶ streamevents.EventSplitter ──▶ events (raw bytes) ──▶ StreamObserver ──▶ times, token counts, acceptance

One chunk may carry several tokens, and one event may be split over several reads, so nothing is ever counted by chunks:
the tokens come from `usage` or `meta_info`, and

    TBT = (t_last − t_first) / (tokens_last − tokens_first)

where t_first is the first event that shows a token was generated and t_last the last one. tokens_first is 1 unless
the first event itself counts (continuous usage, `/generate`). A role chunk counts as the first event: SGLang sends it
with the first token, and when tool parsing holds the text back it is all there is until the end. An event with a finish
reason counts as the last one: an end token has no text, but `completion_tokens` counts it.

Understood are the streams of `/v1/chat/completions`, `/v1/completions` and `/generate`, and the named events of
`/v1/messages` and `/v1/responses`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import orjson

from selector.core.contentshape import HAS_CONTENT
from selector.core.speccounts import SpecCounts, counts_of_choices, is_count, spec_counts
from selector.core.streamevents import event_data, event_name

_HAS_USAGE = re.compile(rb'"usage":\s*\{')
_FINISHES = re.compile(rb'"(?:finish_reason|stop_reason)":\s*["{]')
_TOKENS = re.compile(rb'"(?:completion|output)_tokens":\s*(\d+)')
_INDEX = re.compile(rb'"index":\s*(\d+)')
_DONE = b"[DONE]"
_LAST_EVENTS = frozenset({b"message_stop", b"response.completed", b"response.incomplete", b"response.failed"})
_MESSAGE_START = b"message_start"


class StreamObserver:
    """What one answer tells about itself, learnt from its events without changing them.

    Costs a few regular-expression searches per content event; JSON is parsed only for events with usage, metadata
    or an error.
    """

    __slots__ = (
        "_decode_s",
        "_first_tokens",
        "_last_content_s",
        "_tokens_by_index",
        "chunks",
        "completion_tokens",
        "done",
        "error",
        "first_s",
        "last_s",
        "longest_gap_s",
        "prompt_tokens",
        "spec",
    )

    def __init__(self) -> None:
        self.first_s: float | None = None
        """When the first event that shows a generated token came."""
        self.last_s: float | None = None
        """When the last event that shows one came."""
        self.longest_gap_s = 0.0
        """Longest wait between two content events: what a reader sees; not the TBT."""
        self.chunks = 0
        """Events with content."""
        self.completion_tokens: int | None = None
        self.prompt_tokens: int | None = None
        self.spec: SpecCounts | None = None
        self.error: str | None = None
        """Message of an error event inside the stream."""
        self.done = False
        """Whether the stream said that it is complete (`[DONE]`, `message_stop`, `response.completed` …)."""
        self._first_tokens: int | None = None
        self._last_content_s: float | None = None
        self._decode_s: float | None = None
        self._tokens_by_index: dict[bytes, int] = {}

    def event(self, event: bytes, now_s: float) -> bool:
        """One whole event that was completed at `now_s`. Returns whether it is content and nothing else."""
        data = event_data(event)
        if not data:
            return False
        if data == _DONE:
            self.done = True
            return False
        name = event_name(event)
        # By `find`: `in` first takes bytes for a number, so that an error is made and dropped each time.
        has_meta = data.find(b'"meta_info"') >= 0
        plain = shows_content = self._shows_content(name, data, has_meta)
        is_first = False
        if shows_content:
            self.content(now_s)
            is_first = self.chunks == 1 and self.first_s == now_s
        else:
            if self.first_s is None and data.find(b'"role"') >= 0 and name in (b"", _MESSAGE_START):
                self.first_s = self._last_content_s = now_s
        if self.first_s is not None and _FINISHES.search(data) is not None:
            self.last_s = now_s
            plain = False
        if has_meta or _HAS_USAGE.search(data) is not None:
            self._count(data, has_meta=has_meta, is_first=is_first)
            plain = False
        elif data.find(b'"error"') >= 0:
            self._report(_parsed(data))
            plain = False
        if data.find(b'"sglext"') >= 0:
            self._report(_parsed(data))
            plain = False
        if name in _LAST_EVENTS:
            self.done = True
        return plain and not name

    def answer(self, body: bytes, now_s: float) -> None:
        """A whole answer that was not streamed: token counts and acceptance.

        Its TBT is known only where the server says how long it decoded (`meta_info` of `/generate`).
        """
        parsed = _parsed(body)
        if isinstance(parsed, list):
            for index, item in enumerate(parsed):
                self._report(item)
                self._add_tokens(b"%d" % index, _counted(item, "meta_info", "completion_tokens"))
        else:
            self._report(parsed)
        self.last_s = now_s
        self.done = True

    @staticmethod
    def _shows_content(name: bytes, data: bytes, has_meta: bool) -> bool:
        if name and b"delta" not in name:
            return False  # a named event that only opens or closes something may quote the request
        return HAS_CONTENT.search(data) is not None or (has_meta and b'"output_ids"' in data)

    def content(self, now_s: float, events: int = 1) -> None:
        """So many events that are content and nothing else came at `now_s`."""
        self.chunks += events
        last_s = self._last_content_s
        if self.first_s is None:
            self.first_s = now_s
        elif last_s is not None and now_s - last_s > self.longest_gap_s:
            self.longest_gap_s = now_s - last_s
        self.last_s = self._last_content_s = now_s

    def _count(self, data: bytes, *, has_meta: bool, is_first: bool) -> None:
        match = _TOKENS.search(data)
        if match is None:
            self._report(_parsed(data))
            return
        tokens = int(match.group(1))
        if is_first:
            self._first_tokens = tokens
        if has_meta:
            # A batch has one running count per prompt.
            index = _INDEX.search(data)
            self._add_tokens(index.group(1) if index else b"0", tokens)
            final = _FINISHES.search(data) is not None
        else:
            self.completion_tokens = max(tokens, self.completion_tokens or 0)
            final = True
        if final or self.prompt_tokens is None:
            self._report(_parsed(data))

    def _add_tokens(self, index: bytes, tokens: int | None) -> None:
        if tokens is not None:
            self._tokens_by_index[index] = tokens
            self.completion_tokens = sum(self._tokens_by_index.values())

    def _report(self, parsed: object) -> None:
        if not isinstance(parsed, dict):
            return
        for holder in (parsed, parsed.get("response"), parsed.get("message")):
            if isinstance(holder, dict) and "usage" in holder:
                self._usage(holder["usage"])
        if "meta_info" in parsed:
            self._meta(parsed["meta_info"])
        choices = parsed.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and isinstance(choice.get("meta_info"), dict):
                self.spec = spec_counts(choice["meta_info"]) or self.spec
        if "sglext" in parsed:
            self._details(parsed["sglext"])
        if "error" in parsed:
            self._error(parsed["error"])
        elif parsed.get("object") == "error":
            self._error(parsed)

    def _usage(self, usage: object) -> None:
        if not isinstance(usage, dict):
            return
        for key in ("completion_tokens", "output_tokens"):
            if key in usage and is_count(usage[key]):
                self.completion_tokens = max(usage[key], self.completion_tokens or 0)
        for key in ("prompt_tokens", "input_tokens"):
            if key in usage and is_count(usage[key]):
                self.prompt_tokens = usage[key]

    def _meta(self, meta: object) -> None:
        if not isinstance(meta, dict):
            return
        if is_count(meta.get("completion_tokens")) and not self._tokens_by_index:
            self.completion_tokens = meta["completion_tokens"]
        if is_count(meta.get("prompt_tokens")):
            self.prompt_tokens = meta["prompt_tokens"]
        self.spec = spec_counts(meta) or self.spec
        whole, first = meta.get("e2e_latency"), meta.get("first_token_latency")
        if isinstance(whole, float) and isinstance(first, float) and whole > first:
            self._decode_s = whole - first

    def _details(self, sglext: object) -> None:
        details = sglext.get("spec_tokens_details") if isinstance(sglext, dict) else None
        # A request with n > 1 choices has one entry a choice.
        entries: Iterable[object] = details if isinstance(details, list) else [details]
        self.spec = counts_of_choices(entry for entry in entries if isinstance(entry, dict)) or self.spec

    def _error(self, error: object) -> None:
        if isinstance(error, dict):
            self.error = str(error.get("message", error))
        elif error:
            self.error = str(error)

    @property
    def tbt_ms(self) -> float | None:
        """Time between tokens; `None` under two tokens, without a token count, or when all came in one event."""
        if self.completion_tokens is None:
            return None
        tokens = self.completion_tokens - (self._first_tokens or 1)
        if tokens < 1:
            return None
        if self.first_s is None:
            return None if self._decode_s is None else 1e3 * self._decode_s / tokens
        if self.last_s is None or self.last_s <= self.first_s:
            return None
        return 1e3 * (self.last_s - self.first_s) / tokens


def _counted(item: object, holder: str, key: str) -> int | None:
    inner = item.get(holder) if isinstance(item, dict) else None
    value = inner.get(key) if isinstance(inner, dict) else None
    return value if isinstance(value, int) else None


def _parsed(data: bytes) -> Any:
    """JSON, or `None` for what is not: a malformed event is passed on, not judged."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
