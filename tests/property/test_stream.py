"""However a stream is cut into reads, it is the same stream."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from selector.core.stream import EventSplitter, StreamObserver
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
