"""BurstGPT: CSV with Timestamp, Model, Request tokens, Response tokens, Total tokens, Log Type.

Source: https://github.com/HPMLL/BurstGPT. `Timestamp` is in seconds from midnight of the first day, whole seconds as
published. The third file adds `Session ID` and `Elapsed time` (s). A row with 0 response tokens is a request that
failed: it is skipped and counted. Model and log type do not change what is replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from selector.files.traces.request import BadRow
from selector.files.traces.rows import Format, Item, Line, Row, SkippedRow, columns, seconds, tokens

_NEEDED = frozenset({"Timestamp", "Request tokens", "Response tokens"})
_KNOWN = _NEEDED | {"Model", "Total tokens", "Log Type", "Session ID", "Elapsed time"}

FAILED = "failed, 0 response tokens"


def _recognises(first_line: bytes) -> bool:
    names = columns(first_line)
    return _NEEDED <= set(names) <= _KNOWN and len(set(names)) == len(names)


def _read(header: Line, lines: Iterable[Line]) -> Iterator[Item]:
    names = columns(header[1])
    width = len(names)
    at, asked, answered = (names.index(name) for name in ("Timestamp", "Request tokens", "Response tokens"))
    session = names.index("Session ID") if "Session ID" in names else None
    keys: dict[bytes, str] = {}
    for number, line in lines:
        fields = line.split(b",")
        try:
            if len(fields) != width:
                raise ValueError(f"has {len(fields)} columns instead of {width}")
            arrival_s = seconds(fields[at], "Timestamp")
            output_tokens = tokens(fields[answered], "Response tokens", least=0)
            if output_tokens == 0:
                yield SkippedRow(number, FAILED)
                continue
            prompt_tokens = tokens(fields[asked], "Request tokens")
            key = None
            if session is not None and fields[session]:
                key = keys.get(fields[session]) or keys.setdefault(fields[session], fields[session].decode())
        except ValueError as problem:
            yield BadRow(line=number, problem=str(problem))
        else:
            yield Row(number, arrival_s, prompt_tokens, output_tokens, session_key=key)


FORMAT = Format(
    name="burstgpt",
    looks_like="a CSV header with Timestamp, Request tokens and Response tokens (BurstGPT)",
    recognises=_recognises,
    read=_read,
)
