"""However a stream is cut into reads, it is the same stream."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selector.core.stream import StreamObserver
from selector.core.streamevents import EventSplitter
from selector.router.additions import Additions
from selector.router.answerstream import AnswerStream

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
COUNTS = st.integers(0, 500)
SPEC = st.fixed_dictionaries(
    {"spec_verify_ct": COUNTS}, optional={"spec_num_correct_drafts": COUNTS, "spec_accept_rate": st.floats(0, 2)}
)


def _data(document: object) -> bytes:
    return b"data: " + json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _chunk(**fields: object) -> dict[str, object]:
    return {"id": "x", "choices": [], **fields}


EVENTS = st.one_of(
    st.builds(lambda text: _data(_chunk(choices=[{"delta": {"content": text}, "finish_reason": None}])), TEXTS),
    st.builds(lambda n: _data(_chunk(usage={"completion_tokens": n, "prompt_tokens": 3})), COUNTS),
    st.builds(lambda spec: _data(_chunk(sglext={"spec_tokens_details": spec})), SPEC),
    st.builds(
        lambda n, text, spec: _data(
            {"text": text, "output_ids": [n], "meta_info": {"completion_tokens": n, "finish_reason": None, **spec}}
        ),
        COUNTS,
        TEXTS,
        SPEC,
    ),
    st.builds(lambda text: b": " + text.encode().replace(b"\n", b"").replace(b"\r", b""), TEXTS),
    st.sampled_from(
        [
            _data(_chunk(choices=[{"delta": {"role": "assistant", "content": ""}}])),
            _data(_chunk(choices=[{"delta": {}, "finish_reason": "stop"}])),
            _data({"error": {"message": "no"}}),
            b"event: message_stop\ndata: {}",
            b"data: {oops",
            b"data: [DONE]",
            b"",
        ]
    ),
)
ENDS = st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r"])
STREAMS = st.lists(st.builds(bytes.__add__, EVENTS, ENDS), max_size=12).map(b"".join)
TAILS = st.sampled_from([b"", b"data: {", b"data: [DONE]\n", b"\r", b"\n", b"data: \xe4\xb8"])


@st.composite
def cut_streams(draw: st.DrawFn, streams: st.SearchStrategy[bytes] = STREAMS) -> tuple[bytes, list[bytes]]:
    """A stream, and the same stream in reads."""
    stream = draw(streams) + draw(TAILS)
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    return stream, [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


def split(reads: list[bytes]) -> tuple[list[bytes], bytes]:
    splitter = EventSplitter()
    events = [event for read in reads for event in splitter.feed(read)]
    return events, splitter.rest()


@given(cut_streams())
def test_the_reads_do_not_change_the_events(cut: tuple[bytes, list[bytes]]) -> None:
    stream, reads = cut
    assert split(reads) == split([stream])
    assert split([stream[i : i + 1] for i in range(len(stream))]) == split([stream])


@given(cut_streams(st.one_of(STREAMS, st.binary(max_size=64), st.text("ab\r\n", max_size=40).map(str.encode))))
def test_events_and_rest_are_the_stream(cut: tuple[bytes, list[bytes]]) -> None:
    stream, reads = cut
    events, rest = split(reads)
    assert b"".join(events) + rest == stream
    assert split([stream[i : i + 1] for i in range(len(stream))]) == (events, rest)


def facts(observer: StreamObserver) -> tuple[object, ...]:
    return (
        observer.completion_tokens,
        observer.prompt_tokens,
        observer.spec,
        observer.chunks,
        observer.error,
        observer.done,
        observer.first_s,
        observer.last_s,
        observer.tbt_ms,
    )


@given(cut_streams())
def test_what_is_learnt_does_not_depend_on_the_reads(cut: tuple[bytes, list[bytes]]) -> None:
    stream, reads = cut
    seen = []
    for pieces in ([stream], reads):
        observer = StreamObserver()
        for event in split(pieces)[0]:
            observer.event(event, 1.0)
        seen.append(facts(observer))
    assert seen[0] == seen[1]


@given(cut_streams(), st.booleans(), st.booleans())
def test_what_is_passed_on_does_not_depend_on_the_reads(
    cut: tuple[bytes, list[bytes]], usage: bool, spec_details: bool
) -> None:
    stream, reads = cut
    passed = []
    for pieces in ([stream], reads):
        answer = AnswerStream(
            Additions(usage=usage, spec_details=spec_details, drafts_in_usage=not usage), StreamObserver()
        )
        passed.append(b"".join(answer.feed(piece, 1.0) for piece in pieces) + answer.finish(1.0))
    assert passed[0] == passed[1]


@given(cut_streams())
def test_with_nothing_to_withhold_all_whole_events_are_passed_on(cut: tuple[bytes, list[bytes]]) -> None:
    stream, reads = cut
    observer = StreamObserver()
    answer = AnswerStream(Additions(), observer)
    passed = b"".join(answer.feed(piece, 1.0) for piece in reads)
    events, rest = split(reads)
    assert passed == b"".join(events)
    assert passed + answer.finish(1.0) == (stream if observer.done else passed)
    assert stream == passed + rest


@given(st.binary(max_size=200))
def test_no_bytes_can_make_the_observer_fail(junk: bytes) -> None:
    observer = StreamObserver()
    for wrapped in (junk, b"data: " + junk + b"\n\n", b'data: {"usage":{"completion_tokens":' + junk + b"\n\n"):
        observer.event(wrapped, 1.0)
    observer.answer(junk, 2.0)


PLAIN = st.text(st.characters(codec="utf-8"), max_size=20)
CONTENT_EVENTS = st.one_of(
    st.builds(lambda text: _data(_chunk(choices=[{"delta": {"content": text}, "finish_reason": None}])), PLAIN),
    # Texts that are not JSON strings: with quotes, keys and line ends of their own.
    st.builds(
        lambda text: b'data: {"choices":[{"delta":{"content":"' + text + b'"},"finish_reason":null}],"usage":null}',
        st.one_of(
            st.binary(max_size=20),
            st.sampled_from(
                [
                    b"",
                    b'","x":"',
                    b'"},"finish_reason":"stop","a":{"b":"',
                    b'"}}],"usage":{"completion_tokens":7},"x":[{"y":{"z":"',
                    b'"}}],"sglext":{"spec_tokens_details":{}},"x":[{"y":{"z":"',
                    b'"}}],"choices":[],"usage":{"completion_tokens":7},"x":[{"y":{"z":"',
                    b"a\\",
                    b'a\\"b',
                    b"a\\u0022",
                    b"a\nevent: message_stop\ndata: x",
                    b"a\n\ndata: [DONE]",
                    b"a\r",
                ]
            ),
        ),
    ),
    EVENTS,
)


@settings(max_examples=60)
@given(st.lists(CONTENT_EVENTS, max_size=12), st.booleans(), st.booleans())
def test_an_event_of_a_known_shape_is_understood_as_any_other(
    contents: list[bytes], usage: bool, spec_details: bool
) -> None:
    """Event by event, the answer stream knows shapes; all at once, it looks at each event anew."""
    events = [content + b"\n\n" for content in contents]
    seen = []
    for pieces in (events, [b"".join(events)]):
        observer = StreamObserver()
        answer = AnswerStream(Additions(usage=usage, spec_details=spec_details, drafts_in_usage=not usage), observer)
        passed = b"".join([answer.feed(piece, 1.0) for piece in pieces]) + answer.finish(1.0)
        seen.append((passed, facts(observer)))
    assert seen[0] == seen[1]


CHUNK_BORDERS = st.sampled_from([b"%x\r\n%b\r\n", b"%X\r\n%b\r\n", b"0%x\r\n%b\r\n", b"%x;a=b\r\n%b\r\n"])


@st.composite
def chunked_bodies(draw: st.DrawFn) -> list[tuple[bytes, bytes]]:
    """Chunks as they are on the wire, each with its content."""
    chunks = []
    for content in draw(st.lists(CONTENT_EVENTS, max_size=12)):
        # One event, one with a piece of the next, or two.
        piece = content + draw(st.sampled_from([b"\n\n"] * 6 + [b"\n", b"\r\n\r\n", b"\n\ndata: ", b"\n\n: ping\n\n"]))
        chunks.append((draw(CHUNK_BORDERS) % (len(piece), piece), piece))
    return chunks


@settings(max_examples=150)
@given(chunked_bodies(), st.booleans(), st.booleans())
def test_chunks_that_go_on_as_they_came_are_those_that_would_have_been_written(
    chunks: list[tuple[bytes, bytes]], usage: bool, spec_details: bool
) -> None:
    """Reads that begin at the border of two chunks, offered as they are; what is not taken is fed piece by piece."""
    additions = Additions(usage=usage, spec_details=spec_details, drafts_in_usage=not usage)
    plain, offered = StreamObserver(), StreamObserver()
    by_pieces, by_chunks = AnswerStream(additions, plain), AnswerStream(additions, offered)
    expected = [by_pieces.feed(piece, 1.0) for _, piece in chunks]
    passed = []
    at = 0
    while at < len(chunks):
        read = b"".join(wire for wire, _ in chunks[at:])
        taken = by_chunks.chunks(read, 1.0)
        while taken:
            wire, piece = chunks[at]
            assert taken >= len(wire), "a part of a chunk was taken"
            assert wire == b"%x\r\n%b\r\n" % (len(piece), piece)
            taken -= len(wire)
            passed.append(piece)
            at += 1
        if at < len(chunks):
            passed.append(by_chunks.feed(chunks[at][1], 1.0))
            at += 1
    assert passed == expected
    assert by_chunks.finish(1.0) == by_pieces.finish(1.0)
    assert facts(offered) == facts(plain)


@settings(max_examples=300)
@given(st.binary(max_size=40), st.integers(0, 400), st.integers(0, 400), st.binary(max_size=6))
def test_a_chunk_that_was_tampered_with_is_taken_only_if_it_is_still_a_chunk_of_plain_content(
    text: bytes, at: int, removed: int, added: bytes
) -> None:
    event = b'data: {"choices":[{"delta":{"content":"%b"},"finish_reason":null}],"usage":null}\n\n'
    chunk = b"%x\r\n%b\r\n" % (len(event % text), event % text)
    at %= len(chunk)
    tampered = chunk[:at] + added + chunk[at + removed :]
    answer = AnswerStream(Additions(usage=True), StreamObserver())
    answer.feed(event % b"x", 1.0)
    taken = answer.chunks(tampered, 2.0)
    if taken:
        size, _, rest = tampered[:taken].partition(b"\r\n")
        piece = rest[: int(size, 16)]
        assert (b"%x" % len(piece), rest[len(piece) :]) == (size, b"\r\n")
        checking = AnswerStream(Additions(usage=True), StreamObserver())
        checking.feed(event % b"x", 1.0)
        assert checking.feed(piece, 2.0) == piece


def test_most_chunks_of_a_stream_go_on_as_they_came() -> None:
    choices = [[{"delta": {"content": f"word {i} "}, "finish_reason": None}] for i in range(5)]
    events = [_data(_chunk(choices=choice)) + b"\n\n" for choice in choices]
    wire = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    answer = AnswerStream(Additions(usage=True), observer := StreamObserver())
    assert answer.chunks(wire[0], 1.0) == 0
    assert answer.feed(events[0], 1.0) == events[0]
    assert answer.chunks(wire[1], 2.0) == len(wire[1])
    assert answer.chunks(wire[2] + wire[3] + wire[4][:-1], 3.0) == len(wire[2] + wire[3])
    assert (observer.chunks, observer.first_s, observer.last_s, observer.longest_gap_s) == (4, 1.0, 3.0, 1.0)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b'","x":"',
        b'a\\"b',
        b'"},"finish_reason":"stop","a":{"b":"',
        b'"}}],"usage":{"completion_tokens":7},"x":[{"y":{"z":"',
        b"a\ndata: b",
        b"a\n\ndata: [DONE]",
        b"a\rdata: b",
        b"a\r\n0\r\n\r\nb",
    ],
)
def test_a_text_that_may_hold_more_than_text_does_not_go_on_unlooked_at(text: bytes) -> None:
    event = b'data: {"choices":[{"delta":{"content":"%b"},"finish_reason":null}],"usage":null}\n\n'
    answer = AnswerStream(Additions(usage=True), StreamObserver())
    answer.feed(event % b"x", 1.0)
    odd, plain = (b"%x\r\n%b\r\n" % (len(event % content), event % content) for content in (text, b"word"))
    assert answer.chunks(plain, 2.0) == len(plain)
    assert answer.chunks(odd, 3.0) == 0
    assert answer.chunks(plain + odd + plain, 4.0) == len(plain)
