"""A backend's answer, however its bytes come, and whatever they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selector.errors import UpstreamError
from selector.router.exchange import Exchange
from selector.router.wire import MAX_HEAD_BYTES

CHUNKS = (b"data: 1\n\n", b"x" * 300, b"data: [DONE]\n\n")
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM = STREAM_HEAD + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in CHUNKS) + b"0\r\n\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello"


class Line:
    """A connection that only notes what is done to it."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def pause_reading(self) -> None:
        self.done.append("pause")

    def resume_reading(self) -> None:
        self.done.append("resume")

    def exchanged(self, *, reusable: bool) -> None:
        self.done.append("reusable" if reusable else "useless")

    def abort(self) -> None:
        self.done.append("abort")


class Pieces:
    """A sink that takes no chunks as they are, and notes the pieces."""

    def __init__(self, noted: list[bytes]) -> None:
        self.noted = noted
        self.ended = False

    def chunks(self, data: bytes) -> int:
        return 0

    def pieces(self, pieces: Sequence[bytes], *, last: bool) -> None:
        assert not self.ended
        self.noted += pieces
        self.ended = last


async def read(reads: Iterable[bytes], *, ends: bool | None = None) -> tuple[Exchange, Line, list[bytes]]:
    """The exchange after these reads, and the pieces of its body. `ends`: how the connection ended, if it did."""
    line, pieces = Line(), list[bytes]()
    exchange = Exchange(line, asyncio.get_running_loop(), 60.0)

    async def passed() -> None:
        await exchange.head(5.0)
        await exchange.pass_to(Pieces(pieces))

    passing = asyncio.ensure_future(passed())
    for data in reads:
        exchange.feed(data)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    if ends is not None:
        exchange.lost(cleanly=ends)
    try:
        await passing
    finally:
        exchange.close()
    return exchange, line, pieces


def cut(stream: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = sorted({0, len(stream), *(place % len(stream) for place in cuts)})
    return [stream[a:b] for a, b in pairwise(places)]


@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_a_chunk_is_a_piece_however_it_was_read(cuts: list[int]) -> None:
    exchange, line, pieces = asyncio.run(read(cut(STREAM, cuts)))
    assert tuple(pieces) == CHUNKS
    assert (exchange.status, exchange.is_event_stream) == (200, True)
    assert exchange.headers == [(b"content-type", b"text/event-stream"), (b"transfer-encoding", b"chunked")]
    assert line.done == ["reusable"]


FRAMES = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in CHUNKS]
ODD_FRAMES = [
    (b"1;a=b\r\nx\r\n", b"x"),  # an extension
    (b"001\r\nx\r\n", b"x"),
    (b"2\r\n\r\n\r\n", b"\r\n"),
    (b"1\r\nx\r\n1\r\ny\r\n", b"xy"),
    (b"9\r\n1\r\nx\r\n0\r\n\r\n", b"1\r\nx\r\n0\r\n"),  # chunks inside a chunk
]


def test_chunks_that_come_one_a_read_are_read_as_those_that_do_not() -> None:
    _, line, pieces = asyncio.run(read([STREAM_HEAD, *FRAMES, b"0\r\n\r\n"]))
    assert (tuple(pieces), line.done) == (CHUNKS, ["reusable"])


@pytest.mark.parametrize(("odd", "content"), ODD_FRAMES)
async def test_odd_chunks_between_plain_ones_are_read_as_they_are(odd: bytes, content: bytes) -> None:
    line, pieces = Line(), list[bytes]()
    exchange = Exchange(line, asyncio.get_running_loop(), 60.0)
    exchange.feed(STREAM_HEAD)
    passing = asyncio.ensure_future(exchange.pass_to(Pieces(pieces)))
    await asyncio.sleep(0)
    for data in (FRAMES[0], FRAMES[1], odd, FRAMES[1], odd[:1], odd[1:], FRAMES[2], b"0\r\n\r\n"):
        exchange.feed(data)
    await passing
    assert b"".join(pieces) == b"".join([*CHUNKS[:2], content, CHUNKS[1], content, CHUNKS[2]])
    assert line.done == ["reusable"]


class Greedy(Pieces):
    """Takes every read that it is offered."""

    def chunks(self, data: bytes) -> int:
        self.noted.append(b"taken: " + data)
        return len(data)


@pytest.mark.parametrize(
    ("start", "offered"),
    [
        (b"", False),
        (FRAMES[0], True),
        (FRAMES[0][:-1], False),
        (FRAMES[0][:-2], False),
        (FRAMES[0] + b"1", False),
        (FRAMES[0] + b"10\r", False),
        (FRAMES[0] + b"10\r\n", False),
        (FRAMES[0] + b"4\r\n\r\n", False),  # a chunk that begins like the end of one
        (FRAMES[0] + b"10;a=b", False),
        (FRAMES[0] + b"2\r\n\r\n\r\n", True),
        (FRAMES[0] + b"0\r\nX-Trailer: a\r\n", False),
    ],
)
async def test_only_what_begins_at_the_border_of_two_chunks_is_offered_as_it_is(start: bytes, offered: bool) -> None:
    exchange, noted = Exchange(Line(), asyncio.get_running_loop(), 60.0), list[bytes]()
    exchange.feed(STREAM_HEAD)
    passing = asyncio.ensure_future(exchange.pass_to(Greedy(noted)))
    await asyncio.sleep(0)
    if start:
        exchange.feed(start)
    exchange.feed(FRAMES[1])
    assert (b"taken: " + FRAMES[1] in noted) == offered
    exchange.close()
    with pytest.raises(UpstreamError):
        await passing


async def test_what_a_sink_took_the_parser_never_misses() -> None:
    line, noted = Line(), list[bytes]()
    exchange = Exchange(line, asyncio.get_running_loop(), 60.0)
    exchange.feed(STREAM_HEAD)
    passing = asyncio.ensure_future(exchange.pass_to(sink := Greedy(noted)))
    await asyncio.sleep(0)
    exchange.feed(FRAMES[0])
    exchange.feed(FRAMES[1] + FRAMES[1])
    sink.chunks = lambda data: len(FRAMES[1])  # type: ignore[method-assign] # from now on only the first
    exchange.feed(FRAMES[1] + FRAMES[2] + b"0\r\n\r\n")
    await passing
    assert noted == [CHUNKS[0], b"taken: " + FRAMES[1] + FRAMES[1], CHUNKS[2]]
    assert (line.done, sink.ended) == (["reusable"], True)


@pytest.mark.parametrize("size", [b"+1", b"-1", b" 1", b"1 ", b"0x1", b"1_0", b"", b"g", b"\xd9\xa1"])
async def test_a_size_that_only_python_understands_is_no_chunk(size: bytes) -> None:
    exchange, pieces = Exchange(Line(), asyncio.get_running_loop(), 60.0), list[bytes]()
    exchange.feed(STREAM_HEAD)
    passing = asyncio.ensure_future(exchange.pass_to(Pieces(pieces)))
    await asyncio.sleep(0)
    exchange.feed(FRAMES[0])
    exchange.feed(size + b"\r\nx\r\n")
    exchange.lost(cleanly=True)
    with pytest.raises(UpstreamError):
        await passing
    assert pieces == [CHUNKS[0]]


@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_a_body_of_known_length_comes_whole(cuts: list[int]) -> None:
    exchange, line, pieces = asyncio.run(read(cut(WHOLE, cuts)))
    assert b"".join(pieces) == b"hello"
    assert not exchange.is_event_stream
    assert line.done == ["reusable"]


@settings(max_examples=200)
@given(
    st.sampled_from([STREAM, WHOLE]),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 5), st.binary(max_size=5)), min_size=1, max_size=4),
    st.lists(st.integers(0, 10_000), max_size=5),
    st.booleans(),
)
def test_no_bytes_do_more_than_fail(
    stream: bytes, changes: list[tuple[int, int, bytes]], cuts: list[int], cleanly: bool
) -> None:
    for place, removed, added in changes:
        at = place % len(stream)
        stream = (stream[:at] + added + stream[at + removed :]) or b"x"
    try:
        _, line, _ = asyncio.run(read(cut(stream, cuts), ends=cleanly))
    except UpstreamError:
        return
    assert line.done in (["reusable"], ["useless"], ["abort"], [])


async def test_more_than_was_asked_for_makes_the_connection_useless() -> None:
    for more in (WHOLE, b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad"):
        _, line, pieces = await read([WHOLE + more])
        assert b"".join(pieces) == b"hello"
        assert line.done == ["useless"]


@pytest.mark.parametrize("line_of_head", [b"Connection: close\r\n", b"HTTP/1.0"])
async def test_a_server_that_closes_is_not_used_again(line_of_head: bytes) -> None:
    answer = WHOLE.replace(b"HTTP/1.1", line_of_head) if line_of_head.startswith(b"HTTP") else WHOLE
    answer = answer if line_of_head.startswith(b"HTTP") else answer.replace(b"X-A: b\r\n", line_of_head)
    _, line, pieces = await read([answer])
    assert b"".join(pieces) == b"hello"
    assert line.done == ["useless"]


async def test_a_body_without_a_length_ends_with_its_connection_unless_a_fault_ended_that() -> None:
    answer = b"HTTP/1.1 200 OK\r\n\r\nhello"
    _, _, pieces = await read([answer], ends=True)
    assert pieces == [b"hello"]
    with pytest.raises(UpstreamError, match="the connection broke"):
        await read([answer], ends=False)


@pytest.mark.parametrize("end", [10, len(STREAM_HEAD) - 1, len(STREAM_HEAD), len(STREAM_HEAD) + 5, len(STREAM) - 1])
@pytest.mark.parametrize("cleanly", [True, False])
async def test_an_answer_that_is_cut_off_is_a_failure(end: int, cleanly: bool) -> None:
    with pytest.raises(UpstreamError, match="the connection broke"):
        await read([STREAM[:end]], ends=cleanly)


async def test_what_came_of_a_chunk_that_was_cut_off_is_passed_on_before_the_failure() -> None:
    exchange, pieces = Exchange(Line(), asyncio.get_running_loop(), 60.0), list[bytes]()
    passing = asyncio.ensure_future(exchange.pass_to(Pieces(pieces)))
    await asyncio.sleep(0)
    exchange.feed(STREAM_HEAD + b"9\r\ndata:")
    assert pieces == []
    exchange.lost(cleanly=False)
    with pytest.raises(UpstreamError):
        await passing
    assert pieces == [b"data:"]


async def test_informational_answers_are_passed_over() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
    exchange, line, pieces = await read([early + WHOLE])
    assert (exchange.status, b"".join(pieces), line.done) == (200, b"hello", ["reusable"])
    assert exchange.headers == [(b"content-length", b"5"), (b"x-a", b"b")]


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD_BYTES,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["not HTTP", "an upgrade", "both framings", "two lengths", "an endless head", "a bad chunk"],
)
async def test_what_is_no_answer_is_a_failure(answer: bytes) -> None:
    with pytest.raises(UpstreamError):
        await read([answer], ends=False)


async def test_a_long_chunk_is_passed_on_before_it_is_complete() -> None:
    exchange, pieces = Exchange(Line(), asyncio.get_running_loop(), 60.0), list[bytes]()
    passing = asyncio.ensure_future(exchange.pass_to(Pieces(pieces)))
    await asyncio.sleep(0)
    exchange.feed(STREAM_HEAD + b"100000\r\n")
    for _ in range(3):
        exchange.feed(b"x" * 30_000)
    assert list(map(len, pieces)) == [90_000]
    exchange.close()
    with pytest.raises(UpstreamError):
        await passing


async def test_a_pause_reaches_the_connection_once_and_ends_with_the_answer() -> None:
    line = Line()
    exchange = Exchange(line, asyncio.get_running_loop(), 60.0)
    exchange.pause()
    exchange.pause()
    exchange.resume()
    exchange.resume()
    exchange.pause()
    exchange.feed(STREAM)
    exchange.pause()
    exchange.resume()
    assert line.done == ["pause", "resume", "pause", "resume", "reusable"]
    exchange.close()


async def test_an_answer_that_pauses_is_given_up_but_not_while_its_reader_does() -> None:
    line = Line()
    exchange = Exchange(line, asyncio.get_running_loop(), 0.02)
    exchange.feed(STREAM_HEAD)
    passing = asyncio.ensure_future(exchange.pass_to(Pieces([])))
    await asyncio.sleep(0)
    exchange.pause()
    await asyncio.sleep(0.06)
    assert not passing.done()
    exchange.resume()
    with pytest.raises(UpstreamError, match=r"nothing came for 0\.02 s"):
        await passing
    assert line.done == ["pause", "resume", "abort"]


class Faulty(Pieces):
    def __init__(self, method: str) -> None:
        super().__init__([])
        self.method = method

    def chunks(self, data: bytes) -> int:
        if self.method == "chunks":
            raise ZeroDivisionError
        return 0

    def pieces(self, pieces: Sequence[bytes], *, last: bool) -> None:
        if pieces and self.method == "pieces":
            raise ZeroDivisionError


@pytest.mark.parametrize("read", [FRAMES[0], FRAMES[0] + FRAMES[1][:-1], FRAMES[0] + b"0\r\n\r\n"])
@pytest.mark.parametrize("method", ["chunks", "pieces"])
async def test_a_fault_of_the_sink_is_raised_where_it_is_awaited(method: str, read: bytes) -> None:
    line = Line()
    exchange = Exchange(line, asyncio.get_running_loop(), 60.0)
    exchange.feed(STREAM_HEAD)
    sink = Faulty("")
    passing = asyncio.ensure_future(exchange.pass_to(sink))
    await asyncio.sleep(0)
    exchange.feed(FRAMES[0])  # only at the border of two chunks is a sink asked for chunks
    sink.method = method
    exchange.feed(read)
    with pytest.raises(ZeroDivisionError):
        await passing
    assert line.done == ["abort"]
