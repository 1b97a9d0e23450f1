"""A trace as the simulator, the planner and the load generator see it, whatever file it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One request of a trace. `output_tokens` is the truth that policies do not see."""

    request_id: str
    """`r` and the line of the file; unique within a trace."""
    arrival_s: float
    """Seconds after the first request of the file, or after the start of the slice that was asked for."""
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


def remade(request: TraceRequest, *, arrival_s: float, text_type: str | None) -> TraceRequest:
    """The same request with that arrival and text type: what `replace` gives, in half its time, for long traces."""
    return TraceRequest(
        request_id=request.request_id,
        arrival_s=arrival_s,
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        max_output_tokens=request.max_output_tokens,
        text_type=text_type,
        slo_class=request.slo_class,
        session_key=request.session_key,
        prefix_hashes=request.prefix_hashes,
        prefix_block_tokens=request.prefix_block_tokens,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """A row that cannot be read."""

    line: int
    problem: str
    """The value and what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in order of arrival, those with equal arrivals in order of the file."""

    name: str
    kind: str
    requests: tuple[TraceRequest, ...]
    bad_rows: tuple[BadRow, ...] = ()
    """The first bad rows; `bad_row_count` counts all."""
    bad_row_count: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Rows that are well formed and no request to replay, such as failed ones: how many, by reason."""
    rows_out_of_order: int = 0
    """Rows that arrive before the row above them; `requests` is sorted."""
