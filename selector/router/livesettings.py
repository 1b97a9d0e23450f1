"""Asks servers for the live settings that decisions want, and gives them back what they were launched with.

    dispatcher ──due──▶ SettingsKeeper ──POST /set_internal_state──▶ server
         ▲                     │
         └── in force, refused, failed (logged, counted, seen by policies)

One server is asked at a time: changes are rare (`core.livesettings` says when one is due), and no request waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from selector.errors import UpstreamError
from selector.router.dispatch import Dispatcher
from selector.router.upstream import Upstream


class SettingsKeeper:
    """Of one router. `run` while it serves, then `restore`."""

    def __init__(self, upstreams: Mapping[str, Upstream], dispatcher: Dispatcher) -> None:
        self._upstreams = upstreams
        self._dispatcher = dispatcher
        self._due: asyncio.Queue[tuple[str, Mapping[str, float], str]] = asyncio.Queue()
        dispatcher.settings_due = self._ask_soon

    def _ask_soon(self, backend: str, settings: Mapping[str, float], why: str) -> None:
        # At most one a backend: it is not due again before the answer.
        self._due.put_nowait((backend, settings, why))

    async def run(self) -> None:
        """Asks for what is due, until it is cancelled."""
        while True:
            await self._ask(*await self._due.get())

    async def restore(self) -> None:
        """Gives every server whose settings were changed what it was launched with."""
        self._dispatcher.settings_due = None
        async with asyncio.TaskGroup() as group:
            for backend, settings in self._dispatcher.controller.settings.to_restore().items():
                group.create_task(self._ask(backend, settings, "the router ends"))

    async def _ask(self, backend: str, settings: Mapping[str, float], why: str) -> None:
        dispatcher = self._dispatcher
        try:
            changed = await self._upstreams[backend].set_internal_state(settings)
        except UpstreamError as failed:
            dispatcher.settings_failed(backend, settings, str(failed))
            return
        if changed:
            dispatcher.settings_changed(backend, settings, why)
        else:
            dispatcher.settings_refused(backend, settings, "the server does not change them")
