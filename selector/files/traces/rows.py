"""What the readers share: the row they yield, the fields they parse, the file they read from.

A reader takes numbered lines of bytes and yields one `Row`, `BadRow` or `SkippedRow` for each line that is not blank.
Bytes, so that one byte that is no text spoils one row and not the file.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from selector.errors import TraceError
from selector.files.traces.request import BadRow

MAX_TOKENS = 2**31 - 1
"""A count above it is a damaged number, not a prompt."""

_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Row(NamedTuple):
    """One usable row; the fields are those of `TraceRequest`, the arrival on the clock of the file.

    A tuple and no dataclass: files have tens of millions of rows, and this is made six times as fast.
    """

    line: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    max_output_tokens: int | None = None
    text_type: str | None = None
    slo_class: str | None = None
    session_key: str | None = None
    prefix_hashes: tuple[int, ...] = ()
    prefix_block_tokens: int | None = None


class SkippedRow(NamedTuple):
    """A well-formed row that is no request to replay."""

    line: int
    reason: str


Line = tuple[int, bytes]
"""Number, from 1, and bytes of a line."""

Item = Row | BadRow | SkippedRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A trace format: how to tell it, and how to read it."""

    name: str
    looks_like: str
    """Its first line in words, for the error about a file of no known format."""
    recognises: Callable[[bytes], bool]
    """Whether a line is the first one of such a file: a header, or a record."""
    read: Callable[[Line, Iterable[Line]], Iterator[Item]]
    """Reads a file, given the line that was recognised and the lines after it."""


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked if it is gzip. Raises `TraceError`, also for a fault while it is read."""
    try:
        with path.open("rb") as plain:
            packed = plain.read(2) == _GZIP_MAGIC
            plain.seek(0)
            if packed:
                with gzip.open(plain) as unpacked:
                    yield cast(BinaryIO, unpacked)
            else:
                yield plain
    except FileNotFoundError:
        raise TraceError(str(path), "there is no such trace", "check the path") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as damaged:
        raise TraceError(str(path), f"is a damaged gzip file ({damaged})", "download it again") from None
    except OSError as failed:
        raise TraceError(str(path), f"cannot be read ({failed.strerror or failed})", "check its permissions") from None


def numbered(file: Iterable[bytes]) -> Iterator[Line]:
    """Lines with their numbers, without surrounding white space and byte order mark; blank ones are left out."""
    for number, raw in enumerate(file, start=1):
        line = raw.strip()
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK).strip()
        if line:
            yield number, line


def columns(header: bytes) -> tuple[str, ...]:
    """The column names of a CSV header."""
    return tuple(name.strip().strip('"') for name in header.decode("utf-8", "replace").split(","))


def tokens(field: bytes, column: str, least: int = 1) -> int:
    """A count of tokens, `least` or more. Raises `ValueError` with the value."""
    if field.isdigit():
        value = int(field)
        if least <= value <= MAX_TOKENS:
            return value
    # Digits alone are the rule, and quick to read; ` 5` and `5.0` are whole numbers too.
    number = seconds(field, column, least=-math.inf)
    if not number.is_integer():
        raise ValueError(f"{column} is {shown(field)}, not a whole number")
    if not least <= number <= MAX_TOKENS:
        raise ValueError(f"{column} is {shown(field)}, not between {least} and {MAX_TOKENS:,}")
    return int(number)


def seconds(field: bytes, column: str, *, least: float = 0.0) -> float:
    """A finite number, `least` or more. Raises `ValueError` with the value."""
    try:
        value = float(field)
    except ValueError:
        raise ValueError(f"{column} is {shown(field)}, not a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{column} is {shown(field)}, not a finite number")
    if value < least:
        raise ValueError(f"{column} is {shown(field)}, below {least:g}")
    return value


def shown(field: bytes) -> str:
    """A value for a message, cut where it is long."""
    text = field.decode("utf-8", "backslashreplace").strip()
    return repr(text if len(text) <= 40 else text[:37] + "...")
