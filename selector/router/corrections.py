"""Puts corrections of the cost model in force, shows them, and takes them back."""

from __future__ import annotations

import asyncio
from typing import Any

from selector.core.correction import LEAST, MOST
from selector.router.dispatch import Dispatcher


async def correct_regularly(dispatcher: Dispatcher, every_s: float) -> None:
    """Corrects what is due, until it is cancelled."""
    while True:
        await asyncio.sleep(every_s)
        correct(dispatcher)


def correct(dispatcher: Dispatcher) -> int:
    """Corrects what is due now; how many backends."""
    due = dispatcher.books.corrections.due(dispatcher.now_s())
    for backend, correction in due.items():
        dispatcher.corrected(backend, correction)
    return len(due)


def reset(dispatcher: Dispatcher) -> list[str]:
    """Back to the profile, all evidence forgotten; the backends that were corrected."""
    taken_back = dispatcher.books.corrections.reset()
    for backend, correction in taken_back.items():
        dispatcher.corrected(backend, correction)
    return list(taken_back)


def corrections_report(dispatcher: Dispatcher, *, enabled: bool) -> dict[str, Any]:
    """What is observed and what is in force, by backend."""
    model = dispatcher.books.corrections
    return {
        "enabled": enabled,
        "bounds": [LEAST, MOST],
        "backends": {
            name: {"observed": model.ratios(name), "in_force": model.in_force(name)}
            for name in dispatcher.books.by_backend
        },
    }
