"""Reads what SGLang says about itself: `/v1/loads` and `/server_info`.

Fields may be absent or null (older releases, ranks that have not reported yet); such a value is unknown, never 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from selector.core.types import LoadSignal
from selector.errors import UpstreamError

_FIRST_WITH_SPEC_DETAILS = (0, 5, 23)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """One answer of `/v1/loads`, summed over data-parallel ranks."""

    signal: LoadSignal
    request_steps: float | None = None
    """Decode steps × requests in them since the server started."""
    accepted_tokens: float | None = None
    """Tokens of those steps."""
    accept_length: float | None = None
    """As the server averages it, weighted over ranks by their request steps."""
    gen_throughput: float | None = None


def parse_loads(document: object) -> LoadReport:
    """Raises `UpstreamError` for what is no load report."""
    loads = document.get("loads") if isinstance(document, Mapping) else None
    if not isinstance(loads, Sequence) or isinstance(loads, str):
        raise UpstreamError("/v1/loads answered without a list of loads")
    ranks = [rank for rank in loads if isinstance(rank, Mapping)]
    moments = [_moments(rank) for rank in ranks]
    known = [moment for moment in moments if moment is not None]
    return LoadReport(
        signal=LoadSignal(
            running=round(_sum(ranks, "num_running_reqs") or 0),
            waiting=round(_sum(ranks, "num_waiting_reqs") or 0),
            kv_tokens=_sum(ranks, "num_used_tokens"),
            max_running_requests=_whole(_sum(ranks, "max_running_requests")),
            max_kv_tokens=_whole(_sum(ranks, "max_total_num_tokens")),
        ),
        request_steps=sum(moment[1] for moment in known) if known else None,
        accepted_tokens=sum(moment[5] for moment in known) if known else None,
        accept_length=_accept_length(ranks, moments),
        gen_throughput=_sum(ranks, "gen_throughput"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What of `/server_info` matters to the router."""

    version: str | None = None
    model_path: str | None = None
    served_model_name: str | None = None
    tokenizer_path: str | None = None
    context_length: int | None = None
    spec_details: bool = False
    """It knows `return_spec_tokens_details`."""
    usage_by_default: bool = False
    """It counts the tokens of every stream, asked or not."""


def server_facts(info: Mapping[str, Any]) -> ServerFacts:
    """Facts from the document; a version that cannot be read has no extras."""
    version = _text(info.get("version"))
    context_length = info.get("context_length")
    return ServerFacts(
        version=version,
        model_path=_text(info.get("model_path")),
        served_model_name=_text(info.get("served_model_name")),
        tokenizer_path=_text(info.get("tokenizer_path")),
        context_length=context_length if isinstance(context_length, int) else None,
        spec_details=_release(version) >= _FIRST_WITH_SPEC_DETAILS,
        usage_by_default=info.get("stream_response_default_include_usage") is True,
    )


def _release(version: str | None) -> tuple[int, ...]:
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version or "")
    return tuple(int(part) for part in match.groups()) if match else ()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _sum(ranks: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [value for value in (_number(rank.get(key)) for rank in ranks) if value is not None]
    return sum(values) if values else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _moments(rank: Mapping[str, Any]) -> Sequence[float] | None:
    """`[n, Σb, Σt_us, Σb², Σb·t, Σtokens]` over decode steps."""
    moments = rank.get("decode_moments")
    if not isinstance(moments, list) or len(moments) < 6:
        return None
    numbers = [_number(moment) for moment in moments]
    return [number for number in numbers if number is not None] if None not in numbers else None


def _accept_length(ranks: Sequence[Mapping[str, Any]], moments: Sequence[Sequence[float] | None]) -> float | None:
    weighted = total = 0.0
    for rank, moment in zip(ranks, moments, strict=True):
        speculative = rank.get("speculative")
        value = _number(speculative.get("accept_length")) if isinstance(speculative, Mapping) else None
        if value is not None:
            weight = moment[1] if moment and moment[1] > 0 else 1.0
            weighted += weight * value
            total += weight
    return weighted / total if total else None
