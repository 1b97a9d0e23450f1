"""Server-sent events without I/O: bytes and the time they came go in, whole events and what they mean come out.

    bytes ──▶ EventSplitter ──▶ events (raw bytes, byte for byte) ──▶ StreamObserver ──▶ times, token counts, acceptance

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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import orjson

MAX_EVENT_BYTES = 8 * 1024 * 1024
"""An event that grows beyond this is not one; the splitter gives it up as it is."""

_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LONGEST_END = 4
_HAS_CONTENT = re.compile(rb'"(?:content|text|reasoning_content|arguments|name|delta|partial_json)":\s*"[^"]')
_HAS_USAGE = re.compile(rb'"usage":\s*\{')
_FINISHES = re.compile(rb'"(?:finish_reason|stop_reason)":\s*["{]')
_PLAIN_TEXT = re.compile(rb'[^"\r\n]+')
_TOKENS = re.compile(rb'"(?:completion|output)_tokens":\s*(\d+)')
_INDEX = re.compile(rb'"index":\s*(\d+)')
_DONE = b"[DONE]"
_LAST_EVENTS = frozenset({b"message_stop", b"response.completed", b"response.incomplete", b"response.failed"})
_MESSAGE_START = b"message_start"


class EventSplitter:
    """Splits a byte stream into events. Their concatenation is the stream, whatever the reads were."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending = b""
        """What has not been completed by a blank line: not empty at the end means a truncated stream."""

    def feed(self, data: bytes) -> list[bytes]:
        """The events that `data` completes, each with its terminating blank line."""
        # What was pending holds no whole end, so a first end reaches into `data`.
        search_from = max(0, len(self.pending) - _LONGEST_END + 1)
        pending = self.pending + data if self.pending else data
        events: list[bytes] = []
        if b"\r" not in pending:
            *whole, rest = pending.split(b"\n\n")
            events = [event + b"\n\n" for event in whole]
        else:
            start = 0
            for end in _EVENT_END.finditer(pending, search_from):
                events.append(pending[start : end.end()])
                start = end.end()
            rest = pending[start:]
        if len(rest) > MAX_EVENT_BYTES:
            events.append(rest)
            rest = b""
        self.pending = rest
        return events

    def rest(self) -> bytes:
        """What is pending."""
        return self.pending


class ContentShape:
    """What the content events of one stream have in common, so that most of them need no second look.

    Servers write every content event of a stream in the same words; only the text differs. An event that agrees with
    one already understood in all but its text, and whose text has no quote and no line end in it and is not empty, can
    hold no other field: it means the same.
    """

    __slots__ = ("after", "before")

    def __init__(self) -> None:
        self.before = b""
        """What comes before the text in every event of this shape, on one line; empty until a shape is learnt."""
        self.after = b""
        """What comes after it: from the quote that ends the text to the blank line, the only line end in it."""

    def matches(self, event: bytes) -> bool:
        """Whether `event` is one whole event of the shape learnt."""
        before, after = self.before, self.after
        return (
            before != b""
            and event.startswith(before)
            and event.endswith(after)
            and _PLAIN_TEXT.fullmatch(event, len(before), len(event) - len(after)) is not None
        )

    def learn(self, event: bytes) -> None:
        """Takes the shape of an event that `StreamObserver.event` found to be plain content."""
        match = _HAS_CONTENT.search(event)
        if match is None or not event.startswith(b"data: "):
            return
        start = match.end() - 1
        end = event.find(b'"', start)
        # One line of data and one blank line: a line end of another kind could cut events differently.
        if event.find(b"\n") == len(event) - 2 and b"\r" not in event and event[end - 1 : end] != b"\\":
            self.before, self.after = event[:start], event[end:]


def event_data(event: bytes) -> bytes:
    """The payload of an event's `data:` lines, joined by newlines; empty for comments and other fields."""
    if event.startswith(b"data: ") and event.find(b"\n") >= len(event) - 2:
        return event[6:].rstrip(b"\r\n")
    parts = []
    for line in event.splitlines():
        if line.startswith(b"data:"):
            parts.append(line[5:].removeprefix(b" "))
    return b"\n".join(parts)


def event_name(event: bytes) -> bytes:
    """The value of an event's first line when that is its `event:` field, otherwise nothing."""
    if not event.startswith(b"event:"):
        return b""
    return event.splitlines()[0][6:].strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecCounts:
    """What a backend reported about speculation for one request."""

    verify_passes: int
    accepted_drafts: int
    accept_rate: float | None = None
    """Accepted over proposed drafts as reported, which may be impossible; `None` when it was not."""
    proposed_drafts: int | None = None
    """Drafts that were verified, as reported; `None` when it was not."""


def spec_counts(report: Mapping[str, Any]) -> SpecCounts | None:
    """Verify passes and accepted drafts from `meta_info` or `spec_tokens_details`, by any of SGLang's three namings.

    `None` when the keys are absent or are no counts: unknown is not zero. Whether the counts are possible is for the
    acceptance model to say.
    """
    passes = report.get("spec_verify_ct")
    rate, proposed = report.get("spec_accept_rate"), report.get("spec_num_proposed_drafts")
    for key in ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"):
        drafts = report.get(key)
        if _is_count(passes) and _is_count(drafts):
            return SpecCounts(
                verify_passes=passes,
                accepted_drafts=drafts,
                accept_rate=float(rate) if isinstance(rate, (int, float)) else None,
                proposed_drafts=proposed if _is_count(proposed) else None,
            )
    return None


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


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
        has_meta = b'"meta_info"' in data
        plain = shows_content = self._shows_content(name, data, has_meta)
        is_first = False
        if shows_content:
            self.content(now_s)
            is_first = self.chunks == 1 and self.first_s == now_s
        else:
            if self.first_s is None and b'"role"' in data and name in (b"", _MESSAGE_START):
                self.first_s = self._last_content_s = now_s
        if self.first_s is not None and _FINISHES.search(data) is not None:
            self.last_s = now_s
            plain = False
        if has_meta or _HAS_USAGE.search(data) is not None:
            self._count(data, has_meta=has_meta, is_first=is_first)
            plain = False
        elif b'"error"' in data:
            self._report(_parsed(data))
            plain = False
        if b'"sglext"' in data:
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
        return _HAS_CONTENT.search(data) is not None or (has_meta and b'"output_ids"' in data)

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
            if isinstance(holder, dict):
                self._usage(holder.get("usage"))
        self._meta(parsed.get("meta_info"))
        choices = parsed.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and isinstance(choice.get("meta_info"), dict):
                self.spec = spec_counts(choice["meta_info"]) or self.spec
        self._details(parsed.get("sglext"))
        if "error" in parsed:
            self._error(parsed["error"])
        elif parsed.get("object") == "error":
            self._error(parsed)

    def _usage(self, usage: object) -> None:
        if not isinstance(usage, dict):
            return
        for key in ("completion_tokens", "output_tokens"):
            if _is_count(usage.get(key)):
                self.completion_tokens = max(usage[key], self.completion_tokens or 0)
        for key in ("prompt_tokens", "input_tokens"):
            if _is_count(usage.get(key)):
                self.prompt_tokens = usage[key]

    def _meta(self, meta: object) -> None:
        if not isinstance(meta, dict):
            return
        if _is_count(meta.get("completion_tokens")) and not self._tokens_by_index:
            self.completion_tokens = meta["completion_tokens"]
        if _is_count(meta.get("prompt_tokens")):
            self.prompt_tokens = meta["prompt_tokens"]
        self.spec = spec_counts(meta) or self.spec
        whole, first = meta.get("e2e_latency"), meta.get("first_token_latency")
        if isinstance(whole, float) and isinstance(first, float) and whole > first:
            self._decode_s = whole - first

    def _details(self, sglext: object) -> None:
        details = sglext.get("spec_tokens_details") if isinstance(sglext, dict) else None
        # A request with n > 1 choices has one entry a choice.
        entries: Iterable[object] = details if isinstance(details, list) else [details]
        known = [count for count in (spec_counts(d) for d in entries if isinstance(d, dict)) if count is not None]
        negative = [count for count in known if count.verify_passes < 0 or count.accepted_drafts < 0]
        if negative:
            # A sum with the others could look possible.
            self.spec = negative[0]
        elif known:
            proposed = [count.proposed_drafts for count in known if count.proposed_drafts is not None]
            self.spec = SpecCounts(
                verify_passes=sum(count.verify_passes for count in known),
                accepted_drafts=sum(count.accepted_drafts for count in known),
                accept_rate=max((count.accept_rate for count in known if count.accept_rate is not None), default=None),
                proposed_drafts=sum(proposed) if len(proposed) == len(known) else None,
            )

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
