"""This project's decision log as a trace: its decisions are the arrivals, its outcomes the lengths.

A log may hold several runs. Each counts time from its own start, so the next one begins where the last one was heard
of. Only completed requests can be replayed; the others are skipped and counted by how they ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import orjson

from selector.core.types import TEXT_TYPES, Finish, Outcome, RequestView
from selector.errors import TraceError
from selector.files.decision_log import VERSION, DecisionEvent, EndEvent, StartEvent, parse_event
from selector.files.traces.request import BadRow
from selector.files.traces.rows import Format, Item, Line, Row, SkippedRow


def _recognises(first_line: bytes) -> bool:
    try:
        record = orjson.loads(first_line)
    except orjson.JSONDecodeError:
        return False
    return isinstance(record, dict) and {"v", "event"} <= record.keys()


def _read(first: Line, lines: Iterable[Line]) -> Iterator[Item]:
    run_start_s = latest_s = 0.0
    views: dict[str, tuple[int, RequestView]] = {}
    for number, line in chain([first], lines):
        try:
            event = parse_event(line, "")
        except TraceError as bad:
            yield BadRow(line=number, problem=f"{bad.where.removeprefix(': ')} {bad.problem}".strip())
            continue
        if isinstance(event, StartEvent):
            if event.reloaded:
                continue
            yield from _unfinished(views)
            run_start_s, views = latest_s, {}
        elif isinstance(event, DecisionEvent):
            views[event.request.request_id] = (number, event.request)
        elif isinstance(event, EndEvent):
            latest_s = max(latest_s, run_start_s + event.t_s)
            decided = views.pop(event.outcome.request_id, None)
            if decided is None:
                yield SkippedRow(number, "ended without a decision in the log")
            elif event.outcome.finish is not Finish.DONE:
                yield SkippedRow(number, event.outcome.finish.value)
            elif event.outcome.accepted_tokens < 1:
                yield SkippedRow(number, "no tokens")
            else:
                yield _row(decided[0], decided[1], event.outcome, run_start_s)
    yield from _unfinished(views)


def _unfinished(views: dict[str, tuple[int, RequestView]]) -> Iterator[SkippedRow]:
    return (SkippedRow(number, "did not end in the log") for number, _ in views.values())


def _row(line: int, view: RequestView, outcome: Outcome, run_start_s: float) -> Row:
    return Row(
        line,
        run_start_s + view.arrival_s,
        max(1, outcome.prompt_tokens),
        outcome.accepted_tokens,
        max_output_tokens=view.max_output_tokens,
        text_type=view.text_type if view.text_type in TEXT_TYPES else None,
        slo_class=view.slo_class,
        session_key=view.session_key,
    )


FORMAT = Format(
    name="decisions",
    looks_like=f'a JSON object of "v": {VERSION} and "event" (a decision log of this project)',
    recognises=_recognises,
    read=_read,
)
