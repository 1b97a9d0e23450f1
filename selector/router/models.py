"""`/v1/models` of the fleet: what a client can name, wherever its request goes.

Each available backend is asked now and then. A model is listed if all that answered list it: an adapter that only some
of them have loaded would be found by chance. Servers of one target under different names have nothing in common; SGLang
does not compare the name, so all of them are listed. With no backend to ask it is the target of the fleet file.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from selector.errors import UpstreamError
from selector.router.state import RouterState
from selector.router.upstream import Upstream

_KEPT_S = 60.0

Card = Mapping[str, Any]


class FleetModels:
    """The models of one fleet."""

    def __init__(self, state: RouterState) -> None:
        self._state = state
        self._started_unix_s = int(time.time())
        self._cards: dict[str, tuple[float, Sequence[Card]]] = {}
        """By backend: until when the answer is good, and the answer."""

    async def all(self) -> list[Card]:
        """The cards. `max_model_len` is the longest context that the router would send anywhere."""
        views = self._state.dispatcher.controller.tracker.view(self._state.now_s()).backends
        upstreams = [self._state.watch.backends[view.name].upstream for view in views if view.available]
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(self._of(upstream)) for upstream in upstreams]
        told = [(upstream, task.result()) for upstream, task in zip(upstreams, asked, strict=True) if task.result()]
        by_id: dict[str, list[tuple[Upstream, Card]]] = {}
        for upstream, cards in told:
            for card in cards:
                by_id.setdefault(card["id"], []).append((upstream, card))
        everywhere = [entries for entries in by_id.values() if len(entries) == len(told)]
        return [_merged(entries) for entries in everywhere or by_id.values()] or [self._target()]

    async def one(self, name: str) -> Card | None:
        """The card of that name."""
        return next((card for card in await self.all() if card["id"] == name), None)

    async def _of(self, upstream: Upstream) -> Sequence[Card]:
        """What a backend lists; nothing when it does not say."""
        until_s, cards = self._cards.get(upstream.name, (0.0, ()))
        if self._state.now_s() < until_s:
            return cards
        try:
            document = await upstream.get_json("/v1/models")
        except UpstreamError:
            return ()  # the watch will find out
        listed = document.get("data") if isinstance(document, dict) else None
        cards = _named(listed if isinstance(listed, list) else ())
        self._cards[upstream.name] = self._state.now_s() + _KEPT_S, cards
        return cards

    def _target(self) -> Card:
        specs = [backend.upstream.spec for backend in self._state.watch.backends.values()]
        return {
            "id": self._state.target,
            "object": "model",
            "created": self._started_unix_s,
            "owned_by": "sglang",
            "root": self._state.target,
            "parent": None,
            "max_model_len": max(spec.max_context_tokens for spec in specs),
        }


def _named(listed: Sequence[object]) -> Sequence[Card]:
    """Cards with a name, each name once."""
    named = {card["id"]: card for card in listed if isinstance(card, dict) and isinstance(card.get("id"), str)}
    return tuple(named.values())


def _merged(entries: Sequence[tuple[Upstream, Card]]) -> Card:
    """The first card, with the longest context that any of its backends takes within the limits of the fleet file."""
    _, first = entries[0]
    lengths = [
        min(card["max_model_len"], upstream.spec.max_context_tokens)
        for upstream, card in entries
        if isinstance(card.get("max_model_len"), int)
    ]
    return {**first, "max_model_len": max(lengths)} if lengths else first
