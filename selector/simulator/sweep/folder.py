"""The folder of a sweep: `cells.jsonl` has a line for each finished cell, `plan.json` the cells of the last run.

A line is on disk before the next cell is taken. Lines of an earlier plan stay; a cell whose key has not changed is not
run again. The last line of a key counts. One process at a time writes.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from pydantic import TypeAdapter, ValidationError

from selector.errors import UsageError
from selector.simulator.sweep.cells import Cell, CellRecord

_CELLS = TypeAdapter(list[Cell])


class SweepFolder:
    """Raises `UsageError` when the folder cannot be made, read or written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = path / "cells.jsonl"
        self.plan = path / "plan.json"

    def records(self) -> dict[str, CellRecord]:
        """The last record of every key. An incomplete last line, which a crash leaves, is passed over."""
        found: dict[str, CellRecord] = {}
        try:
            text = self.lines.read_text(encoding="utf-8")
        except FileNotFoundError:
            return found
        except (OSError, UnicodeDecodeError) as failed:
            raise UsageError(str(self.lines), f"cannot be read ({failed})", "choose another folder") from None
        whole, _, _ = text.rpartition("\n")
        for number, line in enumerate(whole.split("\n") if whole else (), start=1):
            try:
                record = CellRecord.model_validate_json(line)
            except ValidationError:
                problem = "is not the record of a cell"
                raise UsageError(f"{self.lines}:{number}", problem, "delete that line; its cell is run again") from None
            found[record.cell.key] = record
        return found

    def planned(self) -> list[Cell]:
        """The cells of the last run."""
        try:
            return _CELLS.validate_json(self.plan.read_bytes())
        except FileNotFoundError:
            raise UsageError(str(self.path), "holds no sweep", "run `sweep --config FILE --out` it first") from None
        except (OSError, ValidationError):
            raise UsageError(str(self.plan), "cannot be read", "run the sweep again; finished cells are kept") from None


class SweepWriter:
    """Writes to a folder, which belongs to it until it is left.

    Raises `UsageError` when the folder cannot be written, or another process writes to it.
    """

    def __init__(self, folder: SweepFolder) -> None:
        self._folder = folder
        self._descriptor = -1

    def __enter__(self) -> SweepWriter:
        folder = self._folder
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(folder.lines, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as failed:
            raise UsageError(str(folder.path), f"cannot be written ({failed.strerror})", "choose another") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            problem = "is written to by another sweep"
            raise UsageError(str(folder.path), problem, "wait for it, or choose another folder") from None
        self._cut_incomplete_line()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def write_plan(self, cells: Sequence[Cell]) -> None:
        """Notes which cells this run is about."""
        temporary = self._folder.plan.with_name("plan.json.part")
        temporary.write_bytes(_CELLS.dump_json(list(cells), indent=1))
        temporary.replace(self._folder.plan)

    def append(self, record: CellRecord) -> None:
        """Adds a finished cell; it is on disk when this returns."""
        line = json.dumps(record.model_dump(mode="json"), separators=(",", ":")) + "\n"
        data = line.encode()
        while data:
            data = data[os.write(self._descriptor, data) :]
        os.fsync(self._descriptor)

    def _cut_incomplete_line(self) -> None:
        size = os.fstat(self._descriptor).st_size
        whole = os.pread(self._descriptor, size, 0).rfind(b"\n") + 1
        if whole < size:
            os.ftruncate(self._descriptor, whole)
