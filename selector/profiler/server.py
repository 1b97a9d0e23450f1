"""Starts and stops SGLang servers: a pinned command line, a process group of their own, a log that is kept."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from selector.errors import UpstreamError
from selector.profiler.client import SglangClient, open_session
from selector.profiler.clock import Clock
from selector.profiler.config import SweepArm, SweepConfig

_POLL_S = 0.5
_STOP_GRACE_S = 5.0
"""Nothing of a measured server is worth waiting for once its last answer is in."""

_TAIL_LINES = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that answers, and how it came to be."""

    client: SglangClient
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    launch_s: float | None = None
    group: int | None = None
    """Process group of the server; `None` for one that was not started here."""

    def owns(self, pid: int) -> bool:
        """Whether a process belongs to the server's group."""
        try:
            return self.group is not None and os.getpgid(pid) == self.group
        except ProcessLookupError:
            return False


class Launcher(Protocol):
    """Makes an arm answer."""

    def launch(self, arm: SweepArm) -> AbstractAsyncContextManager[RunningServer]:
        """A context in which a server of the arm runs. Raises `UpstreamError` when it does not come up or dies."""


def command_line(config: SweepConfig, arm: SweepArm, models: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    """argv and additional environment of an arm's server; `models` is the folder that holds target and drafts."""
    server = config.server
    draft = str(models / arm.draft) if arm.draft else ""
    argv = (
        server.python,
        "-m",
        "sglang.launch_server",
        "--model-path",
        str(models / config.target.model),
        "--host",
        "127.0.0.1",
        "--port",
        str(server.port),
        "--context-length",
        str(server.context_length),
        *server.flags,
        *server.measuring_flags,
        *(flag.replace("{draft}", draft) for flag in arm.flags),
    )
    env = {**_shown_gpus(config.gpu.indices), **server.env, **arm.env}
    if arm.imposed_accept_length is not None:
        env["SGLANG_SIMULATE_ACC_LEN"] = str(arm.imposed_accept_length)
    return argv, env


def _shown_gpus(indices: Sequence[int]) -> dict[str, str]:
    """Shows a server the GPUs that are metered, and no others; CUDA counts as NVML does only in PCI order."""
    if not indices:
        return {}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in indices)}


class ProcessLauncher:
    """Starts each arm's server as a process, one at a time; logs go to `<logs>/<arm>.log`, one after another."""

    def __init__(self, config: SweepConfig, models: Path, logs: Path, clock: Clock) -> None:
        self._config = config
        self._models = models
        self._logs = logs
        self._clock = clock

    @asynccontextmanager
    async def launch(self, arm: SweepArm) -> AsyncIterator[RunningServer]:
        """Runs the arm's server for the length of the context.

        One that runs already (`url` of arm or file) is used and left running. Raises `UpstreamError` with the
        end of its log when it dies or is not ready in time.
        """
        url = self._config.running(arm)
        if url is not None:
            async with RunningLauncher(url, self._clock).launch(arm) as running:
                yield running
            return
        argv, env = command_line(self._config, arm, self._models)
        self._logs.mkdir(parents=True, exist_ok=True)
        log = self._logs / f"{arm.name}.log"
        began_s = self._clock.now()
        process = start_process(argv, env, log)
        try:
            async with open_session() as session:
                client = SglangClient(session, f"http://127.0.0.1:{self._config.server.port}", self._clock.now)
                await self._ready(client, process, log, began_s)
                launch_s = self._clock.now() - began_s
                yield RunningServer(client=client, argv=argv, env=env, launch_s=launch_s, group=process.pid)
        except UpstreamError as failed:
            await self._clock.sleep(_POLL_S)  # a server that just broke a connection may be dead only in a moment
            if process.poll() is None:
                raise
            raise UpstreamError(f"{failed}; the server ended with status {process.returncode}:\n{tail(log)}") from None
        finally:
            await stop_process(process, self._clock)

    async def _ready(self, client: SglangClient, process: subprocess.Popen[bytes], log: Path, began_s: float) -> None:
        limit_s = self._config.server.startup_timeout_s
        while not await client.healthy():
            if process.poll() is not None:
                raise UpstreamError("it did not start")
            if self._clock.now() - began_s > limit_s:
                raise UpstreamError(f"it was not ready in {limit_s:.0f} s, see {log}:\n{tail(log)}")
            await self._clock.sleep(_POLL_S)


class RunningLauncher:
    """Uses a server that runs already and leaves it running."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._url = url.rstrip("/")
        self._clock = clock

    @asynccontextmanager
    async def launch(self, arm: SweepArm) -> AsyncIterator[RunningServer]:
        """The server, if it answers. Raises `UpstreamError` otherwise."""
        async with open_session() as session:
            client = SglangClient(session, self._url, self._clock.now)
            if not await client.healthy():
                raise UpstreamError(f"no server for arm {arm.name} answers at {self._url}")
            yield RunningServer(client=client)


def tail(log: Path, lines: int = _TAIL_LINES) -> str:
    """The last lines of a log."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "(no log)"
    return "\n".join(text.splitlines()[-lines:])


def start_process(argv: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Starts a server in a process group of its own; its command line and output go to the end of `log`.

    Raises `UpstreamError` when it cannot be run at all.
    """
    with log.open("ab") as output:
        output.write(f"\n$ {' '.join([*(f'{k}={v}' for k, v in env.items()), *argv])}\n".encode())
        output.flush()
        try:
            return subprocess.Popen(
                argv,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # its own group, so that all its children end with it
            )
        except OSError as failed:
            raise UpstreamError(f"cannot run {argv[0]} ({failed.strerror})") from None


async def stop_process(process: subprocess.Popen[bytes], clock: Clock) -> None:
    """SIGTERM to the process group of a `start_process`, SIGKILL to what is left of it; returns when all are gone."""
    _signal(process.pid, signal.SIGTERM)
    deadline_s = clock.now() + _STOP_GRACE_S
    while process.poll() is None and clock.now() < deadline_s:
        await clock.sleep(0.2)
    # Children can outlive the first process, and then still hold GPU memory that the next server needs.
    _signal(process.pid, signal.SIGKILL)
    await asyncio.to_thread(process.wait)
    deadline_s = clock.now() + _STOP_GRACE_S
    while _members(process.pid) and clock.now() < deadline_s:
        await clock.sleep(0.02)


def _members(group: int) -> list[int]:
    """Processes of a group that still run; one that ended and waits to be reaped holds nothing and does not count."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):  # it ended while we looked
            continue
        if int(its_group) == group and state not in ("Z", "X"):
            found.append(int(stat.parent.name))
    return found


def _signal(group: int, which: signal.Signals) -> None:
    try:
        os.killpg(group, which)
    except ProcessLookupError:
        return
