"""What may be done to the arrivals of a trace: another rate, shared arrivals spread, several traces in one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import groupby, islice

from selector.files.traces.request import Trace, TraceRequest, remade


def scaled(requests: Sequence[TraceRequest], rate_scale: float) -> tuple[TraceRequest, ...]:
    """The same requests arriving `rate_scale` times as fast."""
    if rate_scale == 1.0:
        return tuple(requests)
    return tuple(
        remade(request, arrival_s=request.arrival_s / rate_scale, text_type=request.text_type) for request in requests
    )


def spread(trace: Trace, over_s: float) -> Trace:
    """Requests that share an arrival come at even steps over the `over_s` seconds after it instead, in the same order.

    Never past the next arrival of the trace. A request that is alone at its arrival stays there.
    """
    groups = [list(group) for _, group in groupby(trace.requests, key=lambda request: request.arrival_s)]
    nexts = [group[0].arrival_s for group in groups[1:]] + [float("inf")]
    return replace(
        trace,
        requests=tuple(
            request
            if place == 0
            else remade(request, arrival_s=request.arrival_s + step_s * place, text_type=request.text_type)
            for group, next_s in zip(groups, nexts, strict=True)
            for step_s in [min(over_s, next_s - group[0].arrival_s) / len(group)]
            for place, request in enumerate(group)
        ),
    )


def merged(traces: Sequence[Trace], *, limit: int | None = None) -> Trace:
    """One trace of the first `limit` requests of all, by arrival; at equal ones those of an earlier trace come first.

    Request ids, session keys and prefix ids stay apart: what two traces call by the same name is not the same thing.
    One trace alone keeps its own names.
    """
    if len(traces) == 1:
        (alone,) = traces
        return alone if limit is None else replace(alone, requests=alone.requests[:limit])
    skipped: Counter[str] = Counter()
    for trace in traces:
        skipped.update(trace.skipped)
    parts = [_apart(trace, number, len(traces)) for number, trace in enumerate(traces)]
    return Trace(
        name="+".join(trace.name for trace in traces),
        kind="+".join(dict.fromkeys(trace.kind for trace in traces)),
        requests=tuple(islice(merge(*parts, key=lambda request: request.arrival_s), limit)),
        bad_row_count=sum(trace.bad_row_count for trace in traces),
        skipped=dict(skipped),
        rows_out_of_order=sum(trace.rows_out_of_order for trace in traces),
    )


def _apart(trace: Trace, number: int, traces: int) -> Iterator[TraceRequest]:
    one_per_id: dict[int, int] = {}
    for request in trace.requests:
        hashes = request.prefix_hashes
        yield replace(
            request,
            request_id=f"t{number}.{request.request_id}",
            session_key=None if request.session_key is None else f"t{number}.{request.session_key}",
            prefix_hashes=tuple(one_per_id.setdefault(one, one * traces + number) for one in hashes),
        )
