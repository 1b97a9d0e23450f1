"""Processes of the relay benchmark: started on one core, waited for, and what they used."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from peers import MissingPeer

START_LIMIT_S = 90.0
STOP_LIMIT_S = 15.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024


@contextmanager
def started(
    command: Sequence[str], core: int, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[int]:
    """A process of its own session on one core; ended, with all it started, at the end. Gives its id."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["taskset", "-c", str(core), *command],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
    try:
        yield process.pid
    finally:
        for number in (15, 9):
            # The group is the process's own: it was started with a new session.
            if process.poll() is None:
                os.killpg(process.pid, number)
            try:
                process.wait(STOP_LIMIT_S)
                break
            except subprocess.TimeoutExpired:
                continue


def wait_for(url: str, what: str, pid: int, log: Path) -> None:
    """Returns when `url` answers 200. Raises `MissingPeer` when it does not in time."""
    end_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end_s:
        try:
            with urllib.request.urlopen(url, timeout=2.0) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
        if not Path(f"/proc/{pid}").exists():
            break
    tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-3:]
    raise MissingPeer(f"{what} does not serve: {' | '.join(tail)}")


def processes(pid: int) -> list[int]:
    """A process and all under it."""
    found = [pid]
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split():
        found += processes(int(child))
    return found


def cpu_s(pid: int) -> float:
    """User and system time of a process and all under it so far."""
    ticks = 0
    for one in processes(pid):
        fields = Path(f"/proc/{one}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_S


def rss_kb(pid: int) -> int:
    """Resident memory of a process and all under it."""
    return sum(
        int(Path(f"/proc/{one}/statm").read_text(encoding="utf-8").split()[1]) * PAGE_KB for one in processes(pid)
    )
