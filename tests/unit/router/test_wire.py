"""A plain request is one that can be read in one way only."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selector.router.wire import MAX_HEAD_BYTES, may_become_plain, plain_request, status_line, written_head

HEAD = b"POST /v1/chat/completions?a=%20b&c HTTP/1.1\r\nHost: r\r\nX-A:  b c \t\r\nContent-Length: 5\r\n\r\n"

ODD = {
    "another method": HEAD.replace(b"POST", b"GET"),
    "a method in lower case": HEAD.replace(b"POST", b"post"),
    "another version": HEAD.replace(b"1.1", b"1.0"),
    "a newer version": HEAD.replace(b"1.1", b"2.0"),
    "an absolute target": HEAD.replace(b" /v1", b" http://r/v1"),
    "an escaped path": HEAD.replace(b"/v1", b"/%761"),
    "a fragment": HEAD.replace(b"&c", b"#c"),
    "two spaces": HEAD.replace(b"POST ", b"POST  "),
    "a tab": HEAD.replace(b" HTTP", b"\tHTTP"),
    "no length": HEAD.replace(b"Content-Length: 5\r\n", b""),
    "two lengths": HEAD.replace(b"Host: r\r\n", b"Content-Length: 5\r\n"),
    "two different lengths": HEAD.replace(b"Host: r\r\n", b"Content-Length: 6\r\n"),
    "a list of lengths": HEAD.replace(b": 5", b": 5, 5"),
    "a negative length": HEAD.replace(b": 5", b": -5"),
    "a length with a plus": HEAD.replace(b": 5", b": +5"),
    "a length in hex": HEAD.replace(b": 5", b": 0x5"),
    "a length with an underscore": HEAD.replace(b": 5", b": 1_0"),
    "an empty length": HEAD.replace(b": 5", b": "),
    "a length beyond bounds": HEAD.replace(b": 5", b": 9999999999999999"),
    "both framings": HEAD.replace(b"Host: r", b"Transfer-Encoding: chunked"),
    "both framings, in any case": HEAD.replace(b"Host: r", b"tRANSFER-eNCODING: chunked"),
    "chunked": HEAD.replace(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
    "an expectation": HEAD.replace(b"Host: r", b"Expect: 100-continue"),
    "an upgrade": HEAD.replace(b"Host: r", b"Upgrade: h2c"),
    "a connection that names headers": HEAD.replace(b"Host: r", b"Connection: keep-alive, X-A"),
    "two connections": HEAD.replace(b"Host: r", b"Connection: close\r\nConnection: keep-alive"),
    "a folded line": HEAD.replace(b"b c", b"b\r\n c"),
    "a space before the colon": HEAD.replace(b"Content-Length:", b"Content-Length :"),
    "a space before a name": HEAD.replace(b"X-A", b" X-A"),
    "no name": HEAD.replace(b"X-A", b""),
    "no colon": HEAD.replace(b"X-A:", b"X-A"),
    "a bare line feed": HEAD.replace(b"r\r\nX", b"r\nX"),
    "a bare carriage return": HEAD.replace(b"b c", b"b\rc"),
    "a NUL": HEAD.replace(b"b c", b"b\0c"),
    "a NUL in a name": HEAD.replace(b"X-A", b"X\0A"),
    "a control character": HEAD.replace(b"b c", b"b\x0bc"),
    "an empty line first": b"\r\n" + HEAD,
    "something after the end": HEAD + b"x",
    "no end": HEAD[:-2],
    "nothing": b"",
}


def test_a_plain_request_is_read() -> None:
    request = plain_request(HEAD)
    assert request is not None
    assert (request.path, request.query, request.length, request.keep_alive) == (
        "/v1/chat/completions",
        b"a=%20b&c",
        5,
        True,
    )
    assert request.headers == [(b"host", b"r"), (b"x-a", b"b c"), (b"content-length", b"5")]
    closing = plain_request(HEAD.replace(b"Host: r", b"connection: Close"))
    assert closing is not None
    assert not closing.keep_alive


@pytest.mark.parametrize("oddity", ODD)
def test_whatever_is_odd_is_not_plain(oddity: str) -> None:
    assert plain_request(ODD[oddity]) is None


def test_the_start_of_a_plain_head_may_become_one_and_that_of_another_may_not() -> None:
    for end in range(len(HEAD)):
        assert may_become_plain(HEAD[:end]) or HEAD[:end].endswith(b"\r") or HEAD[:end].endswith(b"\n")
    assert not may_become_plain(b"GET / HTTP/1.1\r\n")
    assert not may_become_plain(b"POST / HTTP/1.1\nHost: r\n\n")
    assert not may_become_plain(b"\r\n")


class Library:
    """What llhttp, which the library server uses, sees in the same bytes."""

    def __init__(self) -> None:
        self.url = self.body = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.messages = 0

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value.strip(b" \t")))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.messages += 1


PIECES = st.sampled_from(
    [
        b"POST", b"GET", b" ", b"/v1/chat/completions", b"/", b"?", b"a=b", b"%20", b"#", b" HTTP/1.1", b"HTTP/1.0",
        b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\0", b"\t", b":", b": ", b",", b";", b"Host", b"X-A", b"Content-Length",
        b"content-length", b"Transfer-Encoding", b"chunked", b"identity", b"Connection", b"close", b"keep-alive",
        b"Expect", b"100-continue", b"Upgrade", b"0", b"5", b"10", b"0x5", b"+5", b"-1", b" 5", b"5 5", b"\xc3\xbc",
        b"\x7f", b"\xff", b"\x85",
    ]
)  # fmt: skip


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """A plain head with a few pieces put in, taken out or replaced; often still plain."""
    head = HEAD
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(head)))
        end = min(len(head), start + draw(st.integers(0, 6)))
        head = head[:start] + draw(st.one_of(PIECES, st.just(b""), st.binary(max_size=3))) + head[end:]
    return head


@given(heads())
def test_the_library_reads_a_plain_request_in_the_same_way(head: bytes) -> None:
    request = plain_request(head)
    if request is None or request.length > 1_000:
        return
    body = b"x" * request.length
    library = Library()
    parser = httptools.HttpRequestParser(library)
    parser.feed_data(head + body)
    assert library.messages == 1
    assert (parser.get_method(), parser.get_http_version()) == (b"POST", "1.1")
    assert library.url == request.path.encode() + (b"?" + request.query if b"?" in library.url else b"")
    assert library.headers == request.headers
    assert library.body == body
    assert parser.should_keep_alive() == request.keep_alive
    assert not parser.should_upgrade()


def test_a_long_head_is_read_in_time_that_grows_with_its_length() -> None:
    spaces = HEAD.replace(b"b c", b"b" + b" " * (MAX_HEAD_BYTES - 200) + b"c")
    assert plain_request(spaces) is not None
    assert plain_request(spaces.replace(b"c \t\r\n", b"c\n")) is None


def test_a_head_is_written_line_by_line() -> None:
    assert (
        written_head(status_line(200), [(b"a", b"b"), (b"c", b"\xfc")]) == b"HTTP/1.1 200 OK\r\na: b\r\nc: \xfc\r\n\r\n"
    )
    assert status_line(299) == b"HTTP/1.1 299 "


@pytest.mark.parametrize("value", [b"x\r\nevil: 1", b"x\ny", b"x\ry", b"x\0y"])
def test_a_header_that_would_end_its_line_is_not_written(value: bytes) -> None:
    with pytest.raises(ValueError, match="line end"):
        written_head(status_line(200), [(b"a", value)])
    with pytest.raises(ValueError, match="line end"):
        written_head(status_line(200), [(value, b"a")])
