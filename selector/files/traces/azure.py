"""Azure LLM inference traces 2023 and 2024: CSV with TIMESTAMP, ContextTokens, GeneratedTokens.

Source: https://github.com/Azure/AzurePublicDataset. Times are "2023-11-16 18:17:03.9799600" (100 ns digits, no zone) in
2023 and "2024-05-10 00:00:00.009930+00:00" in 2024, where a whole second has no fraction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime

from selector.files.traces.request import BadRow
from selector.files.traces.rows import Format, Item, Line, Row, columns, shown, tokens

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_TIME = re.compile(rb"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?")


def _recognises(first_line: bytes) -> bool:
    return columns(first_line) == _COLUMNS


def _read(_header: Line, lines: Iterable[Line]) -> Iterator[Item]:
    clock = _Clock()
    for number, line in lines:
        fields = line.split(b",")
        try:
            if len(fields) != 3:
                raise ValueError(f"has {len(fields)} columns instead of 3")
            stamp, prompt, output = fields
            arrival_s = clock.seconds(stamp)
            prompt_tokens, output_tokens = tokens(prompt, "ContextTokens"), tokens(output, "GeneratedTokens")
        except ValueError as problem:
            yield BadRow(line=number, problem=str(problem))
        else:
            yield Row(number, arrival_s, prompt_tokens, output_tokens)


class _Clock:
    """Seconds after the whole second of the first time that could be read, which keeps the 100 ns digits exact.

    Rows come many to a second, so the last second is remembered.
    """

    def __init__(self) -> None:
        self._origin: int | None = None
        self._last: tuple[bytes, bytes | None] = (b"", None)
        self._last_s = 0

    def seconds(self, stamp: bytes) -> float:
        """Raises `ValueError` for what is no time."""
        matched = _TIME.fullmatch(stamp)
        if matched is None:
            raise ValueError(f"TIMESTAMP is {shown(stamp)}, not a date and time")
        second, fraction, zone = matched.groups()
        if (second, zone) != self._last:
            self._last_s = self._whole_second(second, zone, stamp)
            self._last = (second, zone)
        return self._last_s + int(fraction) / 10 ** len(fraction) if fraction else float(self._last_s)

    def _whole_second(self, second: bytes, zone: bytes | None, stamp: bytes) -> int:
        try:
            found = int(datetime.fromisoformat((second + (zone or b"+00:00")).decode("ascii")).timestamp())
        except (ValueError, OverflowError):
            raise ValueError(f"TIMESTAMP is {shown(stamp)}, no time of the calendar") from None
        if self._origin is None:
            self._origin = found
        return found - self._origin


FORMAT = Format(
    name="azure", looks_like=f"a CSV header {','.join(_COLUMNS)} (Azure)", recognises=_recognises, read=_read
)
