"""Request traces: when requests came and how long they were. `selector.files.traces` has a module for each format.

A file is told by its content, not by its name, and read as published: Azure 2023 and 2024, BurstGPT, Mooncake,
ServeGen, and this project's decision log, each perhaps packed with gzip. A folder is a pool of ServeGen clients, from
which a workload is drawn. Rows are read one by one, and only those of the slice that is asked for are kept.

Bad rows are skipped and counted with their line numbers, or refused when `strict`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

from selector.errors import TraceError
from selector.files.traces import azure, burstgpt, decisions, mooncake, servegen, servegen_pool
from selector.files.traces.request import BadRow, Trace, TraceRequest
from selector.files.traces.reshape import merged, scaled, spread
from selector.files.traces.rows import Format, Item, Line, Row, SkippedRow, numbered, opened, shown
from selector.files.traces.slicing import Slice
from selector.files.traces.textmix import default_text_mix, parse_text_mix, with_text_types

__all__ = [
    "BadRow",
    "Trace",
    "TraceRequest",
    "default_text_mix",
    "load_trace",
    "merged",
    "parse_text_mix",
    "scaled",
    "spread",
    "with_text_types",
]

FORMATS: tuple[Format, ...] = (
    azure.FORMAT,
    burstgpt.FORMAT,
    servegen.FORMAT,
    mooncake.FORMAT,
    decisions.FORMAT,
)

_LOOK_AT_LINES = 20
"""Where the first line is damaged, the format may still show in one of these."""

_BAD_ROWS_KEPT = 1_000


def load_trace(
    path: Path,
    *,
    strict: bool = False,
    from_s: float = 0.0,
    to_s: float | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> Trace:
    """Reads the requests that arrive from `from_s` to before `to_s`, at most the first `limit` of them.

    Both count from the first arrival of a file, and from midnight in a pool of clients; arrivals of the result count
    from `from_s`. With either, reading ends with the slice, and rows after it are neither read nor counted. Only a pool
    uses the seed.

    Raises `TraceError` for an unknown format, for a file or a slice without requests, and when `strict` for a bad row.
    """
    end_s = math.inf if to_s is None else to_s
    if path.is_dir():
        items = servegen_pool.drawn(path, from_s=from_s, to_s=end_s, seed=seed)
        wanted = Slice(from_s, end_s, limit, first_s=0.0)
        return _collected(items, wanted, path, path.name, servegen_pool.NAME, strict=strict)
    with opened(path) as file:
        lines = numbered(file)
        ahead = list(islice(lines, _LOOK_AT_LINES))
        known, place = _recognised(ahead, path)
        strays = (BadRow(line=number, problem="stands before the trace begins") for number, _ in ahead[:place])
        items = chain(strays, known.read(ahead[place], chain(ahead[place + 1 :], lines)))
        name = Path(path.name.removesuffix(".gz")).stem
        return _collected(items, Slice(from_s, end_s, limit), path, name, known.name, strict=strict)


def _recognised(ahead: list[Line], path: Path) -> tuple[Format, int]:
    """The format of a file that begins with those lines, and which of them it is told by."""
    if not ahead:
        raise TraceError(str(path), "is empty", "check that it was written or downloaded to the end")
    for place, (_, line) in enumerate(ahead):
        for known in FORMATS:
            if known.recognises(line):
                return known, place
    number, line = ahead[0]
    raise TraceError(
        f"{path}: line {number}",
        f"starts with {shown(line)}, which is no known trace format",
        f"give a file that begins with {', '.join(known.looks_like for known in FORMATS)}",
    )


def _collected(items: Iterable[Item], wanted: Slice, path: Path, name: str, kind: str, *, strict: bool) -> Trace:
    rows: list[Row] = []
    bad: list[BadRow] = []
    bad_count = out_of_order = 0
    skipped: Counter[str] = Counter()
    previous_s = -math.inf
    for item in items:
        if isinstance(item, Row):
            out_of_order += item.arrival_s < previous_s
            previous_s = item.arrival_s
            if wanted.takes(previous_s):
                rows.append(item)
            elif wanted.over:
                break
        elif isinstance(item, SkippedRow):
            skipped[item.reason] += 1
        elif strict:
            where = f"{path}: line {item.line}"
            raise TraceError(where, item.problem, "correct the row, or read without --strict")
        else:
            bad_count += 1
            if len(bad) < _BAD_ROWS_KEPT:
                bad.append(item)
    kept, start_s = wanted.cut(rows)
    rows.clear()
    if not kept:
        raise _nothing_in(path, wanted, bad, skipped)
    return Trace(
        name=name,
        kind=kind,
        requests=tuple(_requests(kept, start_s)),
        bad_rows=tuple(bad),
        bad_row_count=bad_count,
        skipped=dict(skipped),
        rows_out_of_order=out_of_order,
    )


def _nothing_in(path: Path, wanted: Slice, bad: list[BadRow], skipped: Counter[str]) -> TraceError:
    if wanted.first_s is not None and wanted.latest_s >= wanted.first_s:
        last_s = wanted.latest_s - wanted.first_s
        problem = f"has no request in the slice; the last one read arrives after {last_s:g} s"
        return TraceError(str(path), problem, "choose a slice within the trace")
    found = [f"{count} rows skipped, {reason}" for reason, count in skipped.items()]
    found += [f"line {one.line} {one.problem}" for one in bad[:1]]
    detail = f" ({'; '.join(found)})" if found else ""
    return TraceError(str(path), f"holds no usable request{detail}", "check that it is the right file")


def _requests(rows: list[Row], start_s: float) -> Iterator[TraceRequest]:
    """Requests in the order of the rows, which are given up one by one: a long trace is never held twice."""
    rows.reverse()
    while rows:
        row = rows.pop()
        yield TraceRequest(
            request_id=f"r{row.line}",
            arrival_s=row.arrival_s - start_s,
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            max_output_tokens=row.max_output_tokens,
            text_type=row.text_type,
            slo_class=row.slo_class,
            session_key=row.session_key,
            prefix_hashes=row.prefix_hashes,
            prefix_block_tokens=row.prefix_block_tokens,
        )
