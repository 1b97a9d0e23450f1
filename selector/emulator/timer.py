"""A timer that is right to tens of microseconds.

Event loops wait in whole milliseconds, which would make every emulated step up to a millisecond late. A Linux timerfd
is a file descriptor that becomes readable at an exact instant, so the loop wakes for it like for any socket.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from typing import Protocol

_TFD_TIMER_ABSTIME = 1
_NS_PER_S = 1_000_000_000


class DeadlineTimer(Protocol):
    """Calls back at one instant, which can be set anew."""

    def set(self, deadline_s: float) -> None:
        """Calls back once at `deadline_s` of `time.monotonic()`, at once if that has passed; replaces what was set."""
        ...

    def close(self) -> None:
        """Never calls back again."""
        ...


def deadline_timer(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> DeadlineTimer:
    """The most precise timer this system has."""
    libc = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
    if libc is not None and hasattr(libc, "timerfd_create"):
        return _TimerFd(loop, callback, libc)
    return _LoopTimer(loop, callback)


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


class _TimerFd:
    """See timerfd_create(2). The standard library has it from Python 3.13 on; `ctypes` works in all versions."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None], libc: ctypes.CDLL) -> None:
        self._loop = loop
        self._callback = callback
        self._libc = libc
        self._fd = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._spec = _Itimerspec()
        loop.add_reader(self._fd, self._readable)

    def set(self, deadline_s: float) -> None:
        deadline_ns = max(1, int(deadline_s * _NS_PER_S))
        self._spec.it_value.tv_sec, self._spec.it_value.tv_nsec = divmod(deadline_ns, _NS_PER_S)
        self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None)

    def _readable(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # set anew between the wake-up and this read
        self._callback()

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


class _LoopTimer:
    """The event loop's own timer, up to a millisecond late."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None

    def set(self, deadline_s: float) -> None:
        self.close()
        self._handle = self._loop.call_later(max(0.0, deadline_s - time.monotonic()), self._callback)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
