"""A stream on its way from a backend's connection to a client's: the same bytes, however they were read."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from itertools import pairwise
from random import Random
from typing import Any

import httptools
from hypothesis import example, given, settings
from hypothesis import strategies as st

from selector.core.stream import StreamObserver
from selector.errors import UpstreamError
from selector.router.additions import Additions
from selector.router.client import Client
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


class Reframing:
    """A plain answer that has no use for chunks as they came. Not a subclass: a compiled class would not allow it."""

    takes_chunks = None

    def __init__(self, answer: PlainAnswer) -> None:
        self.whole, self.start, self.pieces, self.follow = answer.whole, answer.start, answer.pieces, answer.follow


async def passed(
    reads: Iterable[bytes],
    observer: StreamObserver,
    *,
    ends: bool = False,
    reframed: bool = False,
) -> list[bytes]:
    """What the client's connection was given, write by write, when the backend's brought these reads."""
    transport: Any = Wire()
    answer = PlainAnswer(transport, keep_alive=True, slow=False)
    client: Client = Reframing(answer) if reframed else answer
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
    assert answer.complete
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
@example(events=[], cuts=[], at=-3)
@example(events=[], cuts=[], at=-4)
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
        # Cut in the blank line after it, `[DONE]` completes the answer all the same, and is passed on as it came.
        ends = (DONE, DONE.removesuffix(b"\n"), DONE.removesuffix(b"\n\n"))
        assert writes in [SENT_HEAD + framed(*events, FINISH, end) + b"0\r\n\r\n" for end in ends]
        return
    sent = writes.removeprefix(SENT_HEAD).removesuffix(framed(ERROR) + b"0\r\n\r\n")
    assert framed(*events, FINISH).startswith(sent)
    assert sent.endswith(b"\n\n\r\n") or not sent


class Read:
    """A client's parser, and what it read."""

    def __init__(self, sent: bytes) -> None:
        self.chunks: list[bytes] = []
        self.complete = False
        self._part = b""
        httptools.HttpResponseParser(self).feed_data(sent)

    def on_body(self, body: bytes) -> None:
        self._part += body

    def on_chunk_complete(self) -> None:
        if self._part:
            self.chunks.append(self._part)
        self._part = b""

    def on_message_complete(self) -> None:
        self.complete = True


BITS = (
    b"\r\n", b"\n\n", b"\n", b"\r", b"0\r\n\r\n", b"1", b"f", b"10\r\n", b";a=b", b'"', b"\\", b"\0", b"\xff",
    b"data: ", b"data: [DONE]\n\n", b'","x":"', START, END, USAGE, framed(START + b"x" + END), framed(DONE),
)  # fmt: skip


def mutated(random: Random) -> list[bytes]:
    """The reads of a stream that is almost right."""
    texts = [
        random.choice((b"a", b"word", b" two words", b"\xc3\xa9", b"x" * 300)) for _ in range(random.randint(1, 8))
    ]
    events = [*(START + text + END for text in texts), FINISH, USAGE, DONE]
    if random.random() < 0.3:
        events.insert(random.randrange(len(events)), random.choice((USAGE, ERROR, b": ping\n\n", START + END)))
    frames = [framed(event) for event in events] + [b"0\r\n\r\n"]
    borders = [sum(map(len, frames[:count])) for count in range(1, len(frames))]
    body = b"".join(frames)
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        at = random.choice(borders) + random.randint(-3, 3) if random.random() < 0.5 else random.randrange(len(body))
        body = body[:at] + random.choice((b"", *BITS)) + body[at + random.choice((0, 0, 1, 2, 40)) :]
    # Mostly one chunk a read, as servers write them; the other cuts are anywhere.
    cuts = [border for border in borders if random.random() < 0.8]
    cuts += [random.randrange(len(body)) for _ in range(random.choice((0, 0, 1, 3)))]
    return [HEAD, *cut(body, cuts)]


async def test_hundreds_of_mutated_streams_come_out_whole_and_the_same_as_chunk_by_chunk() -> None:
    random = Random(7)
    for _ in range(int(os.environ.get("FUZZ_STREAMS", "300"))):
        reads = mutated(random)
        seen = []
        for reframed in (False, True):
            observer = StreamObserver()
            sent = b"".join(await passed(reads, observer, ends=True, reframed=reframed))
            read = Read(sent)
            assert read.complete, reads
            assert sent == SENT_HEAD + framed(*read.chunks) + b"0\r\n\r\n", reads
            seen.append((read.chunks, observer.chunks, observer.completion_tokens, observer.done, observer.error))
        assert seen[0] == seen[1], reads


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
