"""Request traces: when requests came and how long they were.

Read as published, told apart by content:

    azure      Azure LLM inference traces 2023 and 2024: CSV with TIMESTAMP, ContextTokens, GeneratedTokens
    decisions  this project's decision log: its decisions are the arrivals, its outcomes the lengths

A trace of token counts holds no text: the text type of a request is assumed (`text_mix`) unless the trace says it.
Bad rows are skipped and reported with their line numbers, or refused when `strict`.
"""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from selector.core.types import TEXT_TYPES, Finish, Outcome, RequestView
from selector.errors import TraceError
from selector.files.decision_log import DecisionEvent, EndEvent, StartEvent, parse_decision_log
from selector.files.validation import read_text

_AZURE_COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One request of a trace. `output_tokens` is the truth that policies do not see."""

    request_id: str
    arrival_s: float
    """Seconds after the first request of the file."""
    prompt_tokens: int
    output_tokens: int
    max_output_tokens: int | None = None
    text_type: str | None = None
    """`None` where the trace does not say."""
    slo_class: str | None = None
    session_key: str | None = None
    prefix_hashes: tuple[int, ...] = ()
    """Ids of the prompt's blocks in order, the last one perhaps part full. Equal leading ids are an equal prefix; an id
    means the same text only within one trace. Empty where the trace does not say."""
    prefix_block_tokens: int | None = None
    """Tokens of a block of `prefix_hashes`; `None` without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """A row that was skipped."""

    line: int
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in order of arrival."""

    name: str
    kind: str
    requests: tuple[TraceRequest, ...]
    bad_rows: tuple[BadRow, ...] = ()


def load_trace(path: Path, *, strict: bool = False) -> Trace:
    """Reads a trace.

    Raises `TraceError` for an unknown format, for a file without requests, and when `strict` for a bad row.
    """
    text = read_text(path, "trace", TraceError)
    bad: list[BadRow] = []
    first_line = text.lstrip("﻿").split("\n", 1)[0].strip()
    if first_line.startswith("{"):
        kind, requests = "decisions", _decision_log(text, str(path))
    elif [column.strip() for column in first_line.split(",")] == _AZURE_COLUMNS:
        kind = "azure"
        requests, bad = _azure(text.lstrip("﻿"))
    else:
        raise TraceError(
            f"{path}: line 1",
            f"starts with {first_line[:60]!r}, which is no known trace format",
            f"give a CSV with {','.join(_AZURE_COLUMNS)} or a decision log of this project",
        )
    if bad and strict:
        raise TraceError(f"{path}: line {bad[0].line}", bad[0].problem, "correct the row, or read without --strict")
    if not requests:
        raise TraceError(str(path), "holds no usable request", "check that it is the right file")
    ordered = sorted(requests, key=lambda request: request.arrival_s)
    start = ordered[0].arrival_s
    return Trace(
        name=path.stem,
        kind=kind,
        requests=tuple(replace(request, arrival_s=request.arrival_s - start) for request in ordered),
        bad_rows=tuple(bad),
    )


def _decision_log(text: str, where: str) -> list[TraceRequest]:
    """The completed requests of a decision log's runs, one run after the other, as arrivals."""
    requests: list[TraceRequest] = []
    run_start_s = 0.0
    latest_s = 0.0
    views: dict[str, RequestView] = {}
    for event in parse_decision_log(text, where):
        if isinstance(event, StartEvent):
            # Every run counts its time from its own start; the next one begins where the last one was heard of.
            run_start_s, views = latest_s, {}
        elif isinstance(event, DecisionEvent):
            views[event.request.request_id] = event.request
        elif isinstance(event, EndEvent):
            latest_s = max(latest_s, run_start_s + event.t_s)
            view = views.pop(event.outcome.request_id, None)
            if view is not None and event.outcome.finish is Finish.DONE and event.outcome.accepted_tokens >= 1:
                requests.append(_logged(view, event.outcome, run_start_s, len(requests)))
    return requests


def _logged(view: RequestView, outcome: Outcome, run_start_s: float, number: int) -> TraceRequest:
    return TraceRequest(
        request_id=f"r{number}",
        arrival_s=run_start_s + view.arrival_s,
        prompt_tokens=max(1, outcome.prompt_tokens),
        output_tokens=outcome.accepted_tokens,
        max_output_tokens=view.max_output_tokens,
        text_type=view.text_type if view.text_type in TEXT_TYPES else None,
        slo_class=view.slo_class,
        session_key=view.session_key,
    )


def _azure(text: str) -> tuple[list[TraceRequest], list[BadRow]]:
    requests: list[TraceRequest] = []
    bad: list[BadRow] = []
    for line, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        if line == 1 or not row:
            continue
        try:
            if len(row) != 3:
                raise ValueError(f"has {len(row)} columns instead of 3")
            arrival = _azure_timestamp(row[0])
            prompt_tokens, output_tokens = int(row[1]), int(row[2])
            if prompt_tokens < 1 or output_tokens < 1:
                raise ValueError(f"has {prompt_tokens} prompt and {output_tokens} output tokens, not 1 or more of each")
        except ValueError as problem:
            bad.append(BadRow(line=line, problem=str(problem)))
            continue
        requests.append(
            TraceRequest(
                request_id=f"r{line - 2}", arrival_s=arrival, prompt_tokens=prompt_tokens, output_tokens=output_tokens
            )
        )
    return requests, bad


def _azure_timestamp(text: str) -> float:
    """Seconds of "2023-11-16 18:17:03.9799600" (100 ns digits) or "2024-05-10 00:00:00.009930+00:00"."""
    date, dot, fraction = text.strip().partition(".")
    digits = fraction
    zone = ""
    for mark in ("+", "-", "Z"):
        if mark in fraction:
            digits, zone = fraction[: fraction.index(mark)], fraction[fraction.index(mark) :]
            break
    seconds = datetime.fromisoformat(f"{date}{zone or '+00:00'}").timestamp()
    return seconds + (int(digits) / 10 ** len(digits) if dot and digits else 0.0)


def default_text_mix(trace: Trace) -> dict[str, float]:
    """The trace's own kind, from its name: code for a code trace, else conversation."""
    return {"code" if "code" in trace.name.lower() else "conversation": 1.0}


def parse_text_mix(text: str) -> dict[str, float]:
    """`code=0.5,romansh=0.5` as shares that sum to 1. Raises `TraceError`."""
    mix: dict[str, float] = {}
    for part in text.split(","):
        name, equals, share = part.strip().partition("=")
        try:
            value = float(share) if equals else 1.0
        except ValueError:
            value = -1.0
        if name not in TEXT_TYPES:
            raise TraceError("--text-mix", f"{name!r} is no text type", f"use {', '.join(TEXT_TYPES)}")
        if not value > 0 or value == float("inf"):
            raise TraceError("--text-mix", f"the share of {name} is {share!r}", "give a number above 0")
        mix[name] = mix.get(name, 0.0) + value
    total = sum(mix.values())
    return {name: value / total for name, value in mix.items()}


def with_text_types(trace: Trace, mix: Mapping[str, float], seed: int) -> Trace:
    """Every request without a text type gets one drawn from `mix`, independently of the other requests."""
    names, weights = list(mix), list(mix.values())
    requests = []
    for index, request in enumerate(trace.requests):
        if request.text_type is None:
            drawn = random.Random(f"text:{seed}:{index}").choices(names, weights)[0]
            request = replace(request, text_type=drawn)
        requests.append(request)
    return replace(trace, requests=tuple(requests))


def scaled(requests: Sequence[TraceRequest], rate_scale: float) -> tuple[TraceRequest, ...]:
    """The same requests arriving `rate_scale` times as fast."""
    return tuple(replace(request, arrival_s=request.arrival_s / rate_scale) for request in requests)
