"""A router in front of fake backends, and the SSE that those send."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from selector.core.types import TEXT_TYPES
from selector.files.fleet import LoadedFleet, parse_fleet
from selector.files.policy import LoadedPolicy, load_policy_file
from selector.files.profile import Profile, parse_profile
from selector.router.running import RunningRouter
from tests.integration.router.fake_upstream import EAGLE3_K3, FakeUpstream
from tests.profiles import MADE_UP, made_up_document

TARGET = "Made-Up-8B"
_VERIFY_TOKENS = {"none": 1, "eagle3-k3": 4}
INFO: Mapping[str, Mapping[str, Any]] = {"none": {}, "eagle3-k3": EAGLE3_K3}
"""What a server of each arm says of itself."""

CHAT: Mapping[str, Any] = {"model": TARGET, "messages": [{"role": "user", "content": "Hello, how are you?"}]}


@cache
def made_up_profile() -> Profile:
    """Two arms with round numbers."""
    arms = {}
    for arm, width in _VERIFY_TOKENS.items():
        cells = [
            {
                "batch": b,
                "context_tokens": 700,
                "step_ms": 5 + width + b / 10,
                "step_j": 2 + b / 20,
                "provenance": MADE_UP,
            }
            for b in (1, 8, 64)
        ]
        acceptance = {t: {"mean": (1 + width) / 2, "provenance": MADE_UP} for t in TEXT_TYPES}
        arms[arm] = {
            "algorithm": "none" if width == 1 else "EAGLE3",
            "verify_tokens": width,
            "draft_steps": width - 1 or None,
            "topk": None if width == 1 else 1,
            "cannot_serve": [] if width == 1 else ["hidden_states"],
            "context_slope": {"ms_per_token": 1e-5, "j_per_token": 1e-5, "provenance": MADE_UP},
            "cells": cells,
            "acceptance": {} if width == 1 else acceptance,
        }
    document = made_up_document(arms, target=TARGET)
    return parse_profile(orjson.dumps(document).decode(), "made-up profile")


def fleet_of(
    urls: Sequence[str],
    arms: Sequence[str],
    *,
    backend_more: str = "",
    tables_more: str = "",
    acceptance: Mapping[str, object] | None = None,
    **router: Any,
) -> LoadedFleet:
    """Backends b0, b1 … with these arms, an SLO class with a target and one without.

    `acceptance` and `router` go into their tables, `tables_more` after them.
    """
    options = {"poll_interval_s": 0.02, "poll_timeout_s": 5.0, "drain_timeout_s": 5.0, **router}
    tables = "".join(
        f"""
        [[backends]]
        name = "b{index}"
        url = "{url}"
        arm = "{arm}"
        gpus = ["host0:{index}"]
        profile = "made-up"
        max_context_tokens = 2048
        {backend_more}
        """
        for index, (url, arm) in enumerate(zip(urls, arms, strict=True))
    )
    settings = "\n".join(f"{name} = {_toml(value)}" for name, value in options.items())
    learning = "\n".join(f"{name} = {_toml(value)}" for name, value in (acceptance or {}).items())
    text = f"""
        version = 1
        target = "{TARGET}"
        {tables}
        [slo]
        default_class = "chat"
        [slo.classes.chat]
        tbt_target_ms = 25
        [slo.classes.batch]
        [acceptance]
        {learning}
        [router]
        {settings}
        {tables_more}
        """
    return LoadedFleet(parse_fleet(text, "fleet.toml"), "fleet.toml", {"made-up": made_up_profile()})


@cache
def _fallback() -> LoadedPolicy:
    return load_policy_file("least_loaded")


def _toml(value: object) -> str:
    return orjson.dumps(value).decode()


@asynccontextmanager
async def routed(
    *upstreams: FakeUpstream,
    arms: Sequence[str] | None = None,
    policy: str = "least_loaded",
    decision_log: Path | None = None,
    backend_more: str = "",
    tables_more: str = "",
    clock: Callable[[], float] = time.monotonic,
    **router: Any,
) -> AsyncIterator[RunningRouter]:
    """A router in front of `upstreams`, all of arm `none` unless `arms` says otherwise."""
    fleet = fleet_of(
        [upstream.url for upstream in upstreams],
        arms or ["none"] * len(upstreams),
        backend_more=backend_more,
        tables_more=tables_more,
        **router,
    )
    chosen, fallback = load_policy_file(policy), _fallback()
    async with RunningRouter(fleet, chosen, fallback, port=0, decision_log=decision_log, clock=clock) as running:
        yield running


def event(document: object) -> bytes:
    """One SSE event."""
    return b"data: " + orjson.dumps(document) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def delta(**fields: object) -> bytes:
    """A chat chunk as SGLang writes it."""
    finish = fields.pop("finish_reason", None)
    choice = {"index": 0, "delta": {"reasoning_content": None, **fields}, "logprobs": None, "finish_reason": finish}
    return event({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": TARGET, "choices": [choice]})


def usage(completion_tokens: int, prompt_tokens: int = 12) -> bytes:
    """The usage chunk."""
    counts = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }
    return event({"id": "x", "object": "chat.completion.chunk", "model": TARGET, "choices": [], "usage": counts})


def sglext(**details: object) -> bytes:
    """The extension chunk."""
    extension = {"spec_tokens_details": details}
    return event({"id": "x", "object": "chat.completion.chunk", "model": TARGET, "choices": [], "sglext": extension})


ROLE = delta(role="assistant", content="")


def chat_stream(*texts: str, tokens: int | None = None, finish_reason: str = "stop") -> list[bytes]:
    """The chunks of a whole chat answer, usage included."""
    return [
        ROLE,
        *(delta(content=text) for text in texts),
        delta(finish_reason=finish_reason),
        usage(len(texts) if tokens is None else tokens),
        DONE,
    ]
