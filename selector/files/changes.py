"""Notices that files were changed, by looking at them now and then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

_Signature = tuple[int, int, int] | None
"""Inode, size, time of modification in ns; `None` for a file that is not there."""


class FileChanges:
    """Of a set of files, links followed."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """As they are now is how they are known."""
        self._known: Mapping[Path, _Signature] = {path: _signature(path) for path in paths}
        self._seen: Mapping[Path, _Signature] = self._known

    def settled(self) -> bool:
        """Whether they differ from how they are known, and not any more from the last look.

        A file that is being written is not read half.
        """
        before, self._seen = self._seen, self._look()
        return self._seen != self._known and self._seen == before

    def accept(self) -> None:
        """As they are now is how they are known. Called before they are read, it lets no later change go unnoticed."""
        self._known = self._seen = self._look()

    def watch(self, paths: Iterable[Path]) -> None:
        """Other files from now on; those that were watched before stay known as they are."""
        self._known = {path: self._known[path] if path in self._known else _signature(path) for path in paths}
        self._seen = self._known

    def _look(self) -> Mapping[Path, _Signature]:
        return {path: _signature(path) for path in self._known}


def _signature(path: Path) -> _Signature:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
