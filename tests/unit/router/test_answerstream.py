"""Which reads go on as they came: whole chunks of one content event of the known shape each, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from selector.core.stream import StreamObserver
from selector.router.additions import Additions
from selector.router.answerstream import AnswerStream

START = b'data: {"id":"a","choices":[{"index":0,"delta":{"content":"'
END = b'"},"finish_reason":null}],"usage":null}\n\n'


def stream() -> tuple[AnswerStream, StreamObserver]:
    """One that has understood a content event."""
    observer = StreamObserver()
    answer = AnswerStream(Additions(), observer)
    answer.feed(START + b"Hi" + END, 1.0)
    return answer, observer


def chunk(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


@pytest.mark.parametrize("length", [1, 2, 100, 150, 151, 152, 155, 156, 157, 158, 160, 500, 3_900])
def test_one_whole_chunk_is_taken_whatever_its_length(length: int) -> None:
    answer, observer = stream()
    data = chunk(START + b"x" * length + END)
    assert answer.chunks(data, 2.0) == len(data)
    assert (observer.chunks, observer.last_s) == (2, 2.0)


@pytest.mark.parametrize("text", [b"", b'a"', b'","role":"', b"a\nb", b"a\r"])
def test_a_text_that_could_hold_more_than_text_is_not_taken(text: bytes) -> None:
    answer, observer = stream()
    assert answer.chunks(chunk(START + text + END), 2.0) == 0
    assert observer.chunks == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: b"0" + data,
        lambda data: data.replace(b"\r\n", b";x\r\n", 1),
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: data[: data.index(b"\r\n")].upper() + data[data.index(b"\r\n") :],
        lambda data: data.replace(b'"id":"a"', b'"id":"b"'),
        lambda data: data.replace(b"null}]", b"true}]"),
    ],
    ids=["cut", "long size", "extension", "wrong size", "upper case", "other start", "other end"],
)
def test_whatever_is_written_otherwise_is_for_the_parser(change: Callable[[bytes], bytes]) -> None:
    answer, observer = stream()
    data = chunk(START + b"x" * 73 + END)
    assert data.startswith(b"ac"), "a size with letters"
    changed = change(data)
    assert changed != data
    assert answer.chunks(changed, 2.0) == 0
    assert observer.chunks == 1


def test_of_several_chunks_those_at_the_start_are_taken() -> None:
    answer, observer = stream()
    plain = chunk(START + b"one" + END) + chunk(START + b"and two" + END)
    assert answer.chunks(plain + chunk(b"data: [DONE]\n\n"), 2.0) == len(plain)
    assert observer.chunks == 3
