"""Appends to a decision log without holding up the loop that decides.

    write(event) ──▶ events in memory ──▶ lines, some dozens at once ──▶ a thread, every half second ──▶ the file

An event waits to become a line until others do: one after the other they cost a fraction of what each costs by itself,
between other work. Lines reach the file whole or not at all: what a full disk or a crash cut short is taken back. What
could not be written is counted, never raised: a request does not fail because its log line did.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from threading import Event, Lock, Thread

from selector.errors import TraceError
from selector.files.decision_log import StartEvent, encoded

_FIRST_BYTES = b'{"v":1,"event":"start"'
_BLOCK_BYTES = 65_536
_EVERY_REQUEST = frozenset({"decision", "end"})
"""Events that wait for others to be encoded with them: each request has them, and nothing in them ever changes."""
_ENCODED_AT_ONCE = 32
_AFTER_THE_END = frozenset({"end", "energy", "retract"})


class DecisionLogWriter:
    """One run's log. Safe to write to from one thread; the file belongs to the writer until `close`."""

    def __init__(
        self, path: Path, start: StartEvent, *, flush_every_s: float = 0.5, max_pending_bytes: int = 16 * 1024 * 1024
    ) -> None:
        """Opens or continues the file. Raises `TraceError` when it cannot be written, or is no decision log.

        Beyond `max_pending_bytes` waiting for the disk, lines are dropped.
        """
        self.path = path
        self.dropped = 0
        """Lines that did not reach the file."""
        self.last_error: str | None = None
        self._max_pending_bytes = max_pending_bytes
        self._lock = Lock()
        self._waiting: list[tuple[str, Mapping[str, object]]] = []
        """Events that are no lines yet, all of them after those pending."""
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._closing = Event()
        self._descriptor = _opened(path)
        self.append(_started(start))
        self._flush_every_s = flush_every_s
        self._thread = Thread(target=self._flush_regularly, name="decision-log", daemon=True)
        self._thread.start()

    def write(self, event: str, fields: Mapping[str, object]) -> None:
        """Takes one event; see `selector.files.decision_log.encoded`. An event that cannot be encoded is dropped.

        `fields` are kept: nobody may change them afterwards, nor what they hold if every request has such an event.
        """
        with self._lock:
            self._waiting.append((event, fields))
            if len(self._waiting) >= _ENCODED_AT_ONCE or event not in _EVERY_REQUEST:
                self._encode()

    def append(self, line: bytes) -> None:
        """Takes one line, its newline included."""
        with self._lock:
            self._encode()
            self._take(line)

    def close(self) -> None:
        """Writes what is pending and closes the file. Waits for the disk."""
        self._closing.set()
        self._thread.join()
        os.close(self._descriptor)

    def _encode(self) -> None:
        """Makes lines of the events that wait. Under the lock."""
        waiting, self._waiting = self._waiting, []
        for event, fields in waiting:
            try:
                line = encoded(event, fields)
            except TypeError as unfit:  # of a policy's making, most likely: its reason is no text
                self.dropped += 1
                self.last_error = f"{event}: {unfit}"
                continue
            self._take(line)

    def _take(self, line: bytes) -> None:
        if self._pending_bytes + len(line) > self._max_pending_bytes:
            self.dropped += 1
            return
        self._pending.append(line)
        self._pending_bytes += len(line)

    def _flush_regularly(self) -> None:
        while not self._closing.wait(self._flush_every_s):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        with self._lock:
            self._encode()
            lines, self._pending = self._pending, []
            self._pending_bytes = 0
        data = b"".join(lines)
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:] if written else data)
        except OSError as failed:
            whole = data.rfind(b"\n", 0, written) + 1
            with contextlib.suppress(OSError):  # a pipe cannot take back
                os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - (written - whole))
            with self._lock:
                self.dropped += len(lines) - data.count(b"\n", 0, whole)
            self.last_error = failed.strerror


class LogSection:
    """What one configuration of a running router writes.

    It is put together while the one before still serves, so its lines wait for `begin`. After `end` only how its
    requests turned out is written: the decisions in the file are those of the configuration that the last `start`
    names, and can be replayed.
    """

    def __init__(self, log: DecisionLogWriter, start: StartEvent | None = None) -> None:
        """Without a `start` it is the section with which `log` was opened."""
        self._log = log
        self._waiting: list[bytes] | None = None if start is None else [_started(start)]
        self._ended = False

    def write(self, event: str, fields: Mapping[str, object]) -> None:
        """Takes one event."""
        if self._ended and event not in _AFTER_THE_END:
            return
        if self._waiting is None:
            self._log.write(event, fields)
        else:
            self._waiting.append(encoded(event, fields))

    def begin(self) -> None:
        """From here on the file is this section's."""
        waiting, self._waiting = self._waiting, None
        for line in waiting or ():
            self._log.append(line)

    def end(self) -> None:
        """From here on the file is another section's."""
        self._ended = True


def _started(start: StartEvent) -> bytes:
    return encoded("start", start.model_dump(mode="json", exclude={"v", "event"}))


def _opened(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as failed:
        raise TraceError(str(path), f"cannot be written ({failed.strerror})", "choose another file") from None
    try:
        _continue_after_last_line(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _continue_after_last_line(descriptor: int, path: Path) -> None:
    """Cuts off an incomplete last line. Raises `TraceError` for a file of another kind, which it leaves alone."""
    size = os.fstat(descriptor).st_size
    if size == 0:
        return
    if os.pread(descriptor, len(_FIRST_BYTES), 0) != _FIRST_BYTES:
        raise TraceError(str(path), "exists and is no decision log", "choose another file")
    end = size
    while end > 0:
        begin = max(0, end - _BLOCK_BYTES)
        newline = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            end = begin + newline + 1
            break
        end = begin
    if end < size:
        os.ftruncate(descriptor, end)
