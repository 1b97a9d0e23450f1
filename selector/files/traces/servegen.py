"""Workloads that ServeGen wrote: CSV with arrival in seconds, input_tokens, output_tokens.

Source: https://github.com/alibaba/ServeGen. Its `save_requests_to_csv` writes request_id, timestamp and the fields of
the workload: input_tokens, output_tokens, and reason_ratio for a reasoning model. The same columns with `arrived_at_s`
in place of `timestamp`, and an unused `client_id`, are read too. A sampled length may be 0: such a row is skipped and
counted. Multimodal workloads have other fields and are not recognised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from selector.files.traces.request import BadRow
from selector.files.traces.rows import Format, Item, Line, Row, SkippedRow, columns, seconds, tokens

_TIMES = ("timestamp", "arrived_at_s")
_NEEDED = frozenset({"input_tokens", "output_tokens"})
_KNOWN = _NEEDED | {*_TIMES, "request_id", "client_id", "reason_ratio"}

NO_TOKENS = "drawn with 0 tokens"


def _recognises(first_line: bytes) -> bool:
    names = columns(first_line)
    return _NEEDED <= set(names) <= _KNOWN and len(set(names)) == len(names) and len(set(names) & set(_TIMES)) == 1


def _read(header: Line, lines: Iterable[Line]) -> Iterator[Item]:
    names = columns(header[1])
    width = len(names)
    (time,) = (name for name in names if name in _TIMES)
    at, asked, answered = (names.index(name) for name in (time, "input_tokens", "output_tokens"))
    for number, line in lines:
        fields = line.split(b",")
        try:
            if len(fields) != width:
                raise ValueError(f"has {len(fields)} columns instead of {width}")
            arrival_s = seconds(fields[at], time)
            prompt_tokens = tokens(fields[asked], "input_tokens", least=0)
            output_tokens = tokens(fields[answered], "output_tokens", least=0)
        except ValueError as problem:
            yield BadRow(line=number, problem=str(problem))
            continue
        if prompt_tokens and output_tokens:
            yield Row(number, arrival_s, prompt_tokens, output_tokens)
        else:
            yield SkippedRow(number, NO_TOKENS)


FORMAT = Format(
    name="servegen",
    looks_like="a CSV header with timestamp or arrived_at_s, input_tokens and output_tokens (ServeGen)",
    recognises=_recognises,
    read=_read,
)
