"""Keeps over a restart what the acceptance model learnt: read once at the start, written now and then and at the end.

The file is written in a thread, from data copied in the event loop, so that a slow disk holds nobody up. A file that
cannot be used is left alone until the first write and reported; the router learns anew.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from selector.core.acceptancestate import fingerprint, state_of
from selector.errors import DomainError, StateError
from selector.files.acceptance_state import AcceptanceFile, read_acceptance, write_acceptance
from selector.router.dispatch import Dispatcher


class AcceptanceSnapshots:
    """The snapshot file of one router, or none."""

    def __init__(self, dispatcher: Dispatcher, path: Path | None, *, every_s: float, target: str) -> None:
        self._dispatcher = dispatcher
        self._model = dispatcher.controller.context.acceptance
        self.path = path
        self._every_s = every_s
        self._target = target
        self.fingerprint = fingerprint(self._model)
        self.router = uuid4().hex
        """This router's name among others; the one in the snapshot where there is one."""
        self.restored = False
        self.failures = 0
        """Writes that failed."""
        self.problem: str | None = None
        """Why the snapshot was not used, or the last write failed."""

    def restore(self) -> None:
        """Takes what the file holds. A file that is not there yet is no problem; one that cannot be used is."""
        if self.path is None or not self.path.exists():
            return
        try:
            snapshot = read_acceptance(self.path, target=self._target, fingerprint=self.fingerprint)
            self._dispatcher.restored(snapshot.state)
        except (StateError, DomainError) as bad:
            self.problem = f"acceptance snapshot not used: {bad}"
            return
        self.router, self.restored = snapshot.router, True

    async def run(self) -> None:
        """Writes until it is cancelled."""
        while self.path is not None:
            await asyncio.sleep(self._every_s)
            await self.write()

    async def write(self) -> None:
        """Writes the file; a failure is counted."""
        if self.path is None:
            return
        snapshot = AcceptanceFile(
            target=self._target,
            fingerprint=self.fingerprint,
            router=self.router,
            saved=datetime.now(UTC).isoformat(timespec="seconds"),
            state=state_of(self._model),
        )
        try:
            await asyncio.to_thread(write_acceptance, snapshot, self.path)
        except OSError as failed:
            self.failures += 1
            self.problem = f"acceptance snapshot {self.path} not written: {failed.strerror}"
