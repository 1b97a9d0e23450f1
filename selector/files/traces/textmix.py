"""Text types for requests whose trace does not say: token counts hold no text, so they are an assumption."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b

import numpy as np

from selector.core.types import TEXT_TYPES
from selector.errors import TraceError
from selector.files.traces.request import Trace, remade

_OWN_KIND = (
    ("code", "code"),
    ("toolagent", "agentic"),
    ("synthetic", "long_document"),
)
"""Part of a trace's name, and the text type that its publisher describes. All other traces are of chat services."""


def default_text_mix(trace: Trace) -> dict[str, float]:
    """The trace's own kind, from its name: code, agentic or long documents where that says so, else conversation."""
    name = trace.name.lower()
    return {next((kind for part, kind in _OWN_KIND if part in name), "conversation"): 1.0}


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


def with_text_types(trace: Trace, mix: Mapping[str, float], seed: int, *, stream: int = 0) -> Trace:
    """Every request without a text type gets one drawn from `mix`, independently of the other requests.

    The n-th request of a trace gets the same type however many follow it. Traces that are simulated together take
    different `stream`s, or the n-th requests of all of them would draw alike.
    """
    if not any(request.text_type is None for request in trace.requests):
        return trace
    names = list(mix)
    key = int.from_bytes(blake2b(f"text:{seed}:{stream}".encode(), digest_size=16).digest(), "big")
    draws = np.random.Generator(np.random.Philox(key=key)).random(len(trace.requests))
    bounds = np.cumsum([mix[name] for name in names])
    chosen = np.searchsorted(bounds / bounds[-1], draws, side="right").tolist()
    return replace(
        trace,
        requests=tuple(
            remade(request, arrival_s=request.arrival_s, text_type=names[choice])
            if request.text_type is None
            else request
            for request, choice in zip(trace.requests, chosen, strict=True)
        ),
    )
