"""HTTP/1.1 on the wire, without I/O: which requests are plain, and how heads are written.

A request is plain when its head follows a grammar much narrower than HTTP's: there is then one way to read it, and no
server before or behind this one can see another request in the same bytes. Whatever is not plain, right or wrong, is
for the library server to judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus

from selector.core.quickinit import quick_init, quick_maker

Headers = list[tuple[bytes, bytes]]

MAX_HEAD_BYTES = 65_536
"""Request line and headers together."""

_PLAIN = re.compile(
    rb"POST (/[0-9A-Za-z._/-]*)(?:\?([0-9A-Za-z!$%&'()*+,/:;=?@\[\]~._-]*))? HTTP/1\.1\r\n"
    rb"((?:[0-9A-Za-z!#$%&'*+.^_`|~-]+:[^\x00-\x08\x0a-\x1f\x7f]*\r\n)+)\r\n"
)
_LENGTH = re.compile(rb"[0-9]{1,15}")
_CONCERNS_FRAMING = frozenset({b"content-length", b"connection", b"transfer-encoding", b"expect", b"upgrade"})
"""The last three make a request one that is not plain."""
_PERSISTENCE = {b"keep-alive": True, b"close": False}


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRequest:
    """The head of a POST with a body of known length."""

    path: str
    query: bytes
    """Without its question mark; may be empty."""
    headers: Headers
    """Names in lower case, values without white space around them."""
    length: int
    """Bytes of the body."""
    keep_alive: bool


_make_plain_request = quick_maker(PlainRequest)


def may_become_plain(start: bytes) -> bool:
    """Whether a head that begins like this, its end not seen yet, can still turn out plain."""
    return start.startswith(b"POST /"[: len(start)]) and start.count(b"\n") == start.count(b"\r\n")


def plain_request(head: bytes) -> PlainRequest | None:
    """Reads a head, its empty line included; `None` when it is not plain."""
    match = _PLAIN.fullmatch(head)
    if match is None:
        return None
    path, query, block = match.groups()
    headers: Headers = []
    length: bytes | None = None
    keep_alive: bool | None = None
    for line in block[:-2].split(b"\r\n"):
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip(b" \t")
        headers.append((name, value))
        if name not in _CONCERNS_FRAMING:
            continue
        if name == b"content-length":
            if length is not None or _LENGTH.fullmatch(value) is None:
                return None
            length = value
        elif name == b"connection":
            if keep_alive is not None or value.lower() not in _PERSISTENCE:
                return None
            keep_alive = _PERSISTENCE[value.lower()]
        else:
            return None
    if length is None:
        return None
    return _make_plain_request(
        path=path.decode("ascii"),
        query=query or b"",
        headers=headers,
        length=int(length),
        keep_alive=keep_alive is not False,
    )


def written_head(first_line: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A head, its empty line included; `first_line` has no line end.

    Raises `ValueError` for a header that would end its line early: what was read from elsewhere must not write here.
    """
    lines = [first_line, *[b"%b: %b" % header for header in headers], b"\r\n"]
    head = b"\r\n".join(lines)
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or 0 in head:
        raise ValueError("a header holds a line end or a NUL")
    return head


def status_line(status: int) -> bytes:
    """The first line of an answer, without its line end."""
    line = _STATUS_LINES.get(status)
    return b"HTTP/1.1 %d " % status if line is None else line


LAST_CHUNK = b"0\r\n\r\n"

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}".encode() for status in HTTPStatus}
