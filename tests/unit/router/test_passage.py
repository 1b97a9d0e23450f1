"""A stream on its way from a backend's connection to a client's: the same bytes, however they were read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from selector.core.stream import StreamObserver
from selector.errors import UpstreamError
from selector.router.additions import Additions
from selector.router.exchange import Exchange
from selector.router.passage import Passage
from selector.router.plainanswer import PlainAnswer

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
START = b'data: {"id":"a","choices":[{"index":0,"delta":{"content":"'
END = b'"},"finish_reason":null}],"usage":null}\n\n'
USAGE = b'data: {"id":"a","choices":[],"usage":{"completion_tokens":9,"prompt_tokens":3}}\n\n'
FINISH = b'data: {"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"broke"}}\n\n'
SENT_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Wire:
    """A connection to a client, and one from a backend, that only note what is done to them."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def exchanged(self, *, reusable: bool) -> None: ...

    def abort(self) -> None: ...


def framed(*events: bytes) -> bytes:
    return b"".join([b"%x\r\n%b\r\n" % (len(event), event) for event in events])


async def passed(reads: Iterable[bytes], observer: StreamObserver, *, ends: bool = False) -> list[bytes]:
    """What the client's connection was given, write by write, when the backend's brought these reads."""
    transport: Any = Wire()
    client = PlainAnswer(transport, keep_alive=True, slow=False)
    exchange = Exchange(Wire(), asyncio.get_running_loop(), 60.0)
    passage = Passage(Additions(usage=True), observer, client, lambda: 1.0)

    async def passing() -> None:
        await exchange.head(5.0)
        client.start(200, [])
        try:
            await exchange.pass_to(passage)
        except UpstreamError:
            assert ends
        if not passage.end():
            passage.broke(ERROR)

    task = asyncio.ensure_future(passing())
    for data in reads:
        exchange.feed(data)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    if ends:
        exchange.lost(cleanly=False)
    await task
    assert client.complete
    exchange.close()
    writes: list[bytes] = transport.writes
    return writes


TEXTS = st.lists(st.text("ab\\{}né ", min_size=1, max_size=40).map(str.encode), min_size=1, max_size=8)
EVENTS = TEXTS.map(lambda texts: [START + text.replace(b"\\", b"\\\\") + END for text in texts])


def cut(stream: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = sorted({0, len(stream), *(place % len(stream) for place in cuts)})
    return [stream[a:b] for a, b in pairwise(places)]


@settings(max_examples=60)
@given(EVENTS, st.lists(st.integers(0, 10_000), max_size=12))
def test_the_client_gets_the_same_bytes_however_they_were_read(events: list[bytes], cuts: list[int]) -> None:
    stream = HEAD + framed(*events, FINISH, USAGE, DONE) + b"0\r\n\r\n"
    observer = StreamObserver()
    writes = asyncio.run(passed(cut(stream, cuts), observer))
    assert b"".join(writes) == SENT_HEAD + framed(*events, FINISH, DONE) + b"0\r\n\r\n"
    assert (observer.chunks, observer.completion_tokens) == (len(events), 9)


@settings(max_examples=60)
@given(EVENTS, st.lists(st.integers(0, 10_000), max_size=6), st.integers(0, 10_000))
def test_a_stream_that_breaks_anywhere_ends_in_whole_events_and_an_error(
    events: list[bytes], cuts: list[int], at: int
) -> None:
    whole = framed(*events, FINISH, USAGE, DONE)
    body = whole[: at % len(whole)]
    reads = [HEAD, *cut(body, cuts)] if body else [HEAD]
    writes = b"".join(asyncio.run(passed(reads, observer := StreamObserver(), ends=True)))
    assert writes.startswith(SENT_HEAD)
    assert writes.endswith(b"0\r\n\r\n")
    if observer.done:
        assert writes == SENT_HEAD + framed(*events, FINISH, DONE) + b"0\r\n\r\n"
        return
    sent = writes.removeprefix(SENT_HEAD).removesuffix(framed(ERROR) + b"0\r\n\r\n")
    assert framed(*events, FINISH).startswith(sent)
    assert sent.endswith(b"\n\n\r\n") or not sent


async def test_what_a_read_brings_goes_out_in_one_write() -> None:
    events = [START + b"word" + END] * 4
    reads = [
        HEAD + framed(events[0]),
        framed(events[1]),
        framed(*events[2:]),
        framed(FINISH, USAGE, DONE) + b"0\r\n\r\n",
    ]
    writes = await passed(reads, StreamObserver())
    assert writes == [SENT_HEAD + framed(events[0]), *reads[1:3], framed(FINISH, DONE) + b"0\r\n\r\n"]


async def test_plain_chunks_are_the_very_bytes_that_were_read() -> None:
    read = framed(START + b"word" + END)
    writes = await passed([HEAD, read, read, framed(DONE), b"0\r\n\r\n"], StreamObserver())
    assert writes[2] is read
