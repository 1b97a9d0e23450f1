"""Requests that are almost right, in every way that came to mind; the same ones for the same seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import orjson

from tests.integration.router.harness import CHAT

_HEADERS = (
    "Content-Length: 0",
    "Content-Length: 5",
    "Content-Length: 99999",
    "Content-Length: -5",
    "Content-Length: +5",
    "Content-Length: 5, 5",
    "Content-Length:",
    "content-length : 5",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: identity",
    "transfer-encoding:\tchunked",
    "Expect: 100-continue",
    "Expect: nothing",
    "Connection: close",
    "Connection: upgrade",
    "Connection: keep-alive, content-length",
    "Upgrade: websocket",
    "Upgrade: h2c",
    "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA",
    "Host: a, b",
    "X-Slo-Class: \xff",
    "X-Tbt-Target-Ms: 1e999",
    "X-A: " + "y" * 3000,
    " X-Folded: 1",
    "No-Colon",
    ": no name",
    "X-Nul: a\0b",
    "X-Cr: a\rb",
    "X-Lf: a\nb",
    "TE: trailers",
    "Trailer: Content-Length",
    "Accept-Encoding: gzip",
)
_FIRST_LINES = (
    "POST /v1/chat/completions HTTP/1.1",
    "POST /v1/completions HTTP/1.1",
    "POST /generate HTTP/1.1",
    "POST /v1/chat/completions HTTP/1.0",
    "POST /v1/chat/completions HTTP/2.0",
    "POST /v1/chat/completions HTTP/9.9",
    "POST /v1/chat/completions",
    "post /v1/chat/completions HTTP/1.1",
    "POST  /v1/chat/completions HTTP/1.1",
    "POST http://x/v1/chat/completions HTTP/1.1",
    "POST /v1/../v1/chat/completions HTTP/1.1",
    "POST //v1/chat/completions HTTP/1.1",
    "POST /v1/chat/completions?%00 HTTP/1.1",
    "POST /v1/chat/completions?a=\xfc HTTP/1.1",
    "POST * HTTP/1.1",
    "CONNECT x:1 HTTP/1.1",
    "OPTIONS * HTTP/1.1",
    "PRI * HTTP/2.0",
    "GET /health HTTP/1.1",
    "HEAD /v1/models HTTP/1.1",
    "GET /nothing HTTP/1.1",
)
_BODIES = (
    orjson.dumps(CHAT),
    orjson.dumps({**CHAT, "stream": True}),
    orjson.dumps({"text": "hello"}),
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe",
    b'{"messages": "\\ud800"}',
    b'{"messages": [{"role": 1, "content": {"a": []}}], "n": 1e99, "stream": "true", "max_tokens": -1}',
    b'{"stream_options": 1, "stream": true, "rid": [[]], "prompt": [[1], "a"], "tools": {}}',
    b'{"a":' * 300,
    b"x" * 20_000,
)


def mutated_requests(count: int, seed: int) -> Iterator[bytes]:
    """That many byte strings, each to be sent on a connection of its own."""
    random = Random(seed)
    mutations: tuple[Callable[[bytes, Random], bytes], ...] = (_cut, _flipped, _doubled, _inserted, _unchanged)
    for _ in range(count):
        sent = _request(random)
        for _ in range(random.choice((0, 0, 1, 2))):
            sent = random.choice(mutations)(sent, random)
        yield sent or b"\r\n"


def _request(random: Random) -> bytes:
    body = random.choice(_BODIES)
    first = random.choice(_FIRST_LINES) if random.random() < 0.4 else _FIRST_LINES[0]
    lines = [first, "Host: r"]
    chunked = random.random() < 0.2
    if chunked:
        lines.append("Transfer-Encoding: chunked")
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    elif random.random() < 0.9:
        lines.append(f"Content-Length: {len(body)}")
    for _ in range(random.choice((0, 0, 0, 1, 1, 2, 3))):
        lines.insert(random.randint(1, len(lines)), random.choice(_HEADERS))
    end = random.choice(("\r\n",) * 12 + ("\n", "\r"))
    return (end.join(lines) + 2 * end).encode("latin-1") + body


def _cut(data: bytes, random: Random) -> bytes:
    return data[: random.randint(0, len(data))]


def _flipped(data: bytes, random: Random) -> bytes:
    at = random.randrange(max(1, min(len(data), 200)))
    return data[:at] + bytes([random.randrange(256)]) + data[at + 1 :]


def _doubled(data: bytes, random: Random) -> bytes:
    return data + data


def _inserted(data: bytes, random: Random) -> bytes:
    at = random.randint(0, min(len(data), 300))
    return data[:at] + random.choice((b"\r\n", b"\n", b"\0", b"\r", b" ", b":", b"\xff", b"0\r\n\r\n")) + data[at:]


def _unchanged(data: bytes, random: Random) -> bytes:
    return data
