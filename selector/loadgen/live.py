"""One policy, live: a router process in front of running servers, a replayed trace, and the energy it took.

    start router (policy) ─▶ read energy ─▶ replay ─▶ last answer ─▶ read energy ─▶ stop router

The servers may be real or emulated: both answer `GET /energy` with one millijoule counter per GPU. Emulated ones also
say how much of it was decode, prefill and idle; a real counter cannot, and those fields are then `None`.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from selector.core.quantile import quantile
from selector.errors import UpstreamError
from selector.loadgen.replay import Answer, LagWatch, Replay, TimedRequest
from selector.simulator.arrivals import Arrivals

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 40.0
_PARTS = ("decode", "prefill", "idle")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyReading:
    """Joules so far, summed over the GPUs of a fleet."""

    total_j: float
    decode_j: float | None
    prefill_j: float | None
    idle_j: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveResult:
    """What one policy did. Times in seconds or ms of the replayed clock, except the lags."""

    policy: str
    requests: int
    """Complete answers."""
    failed: int
    first_error: str | None
    accepted_tokens: int
    energy_j: float
    decode_j: float | None
    prefill_j: float | None
    idle_j: float | None
    j_per_accepted_token: float | None
    decode_j_per_accepted_token: float | None
    tbt_attainment: float | None
    """Over requests with a target and a TBT; a failed one is a miss."""
    tbt_p50_ms: float | None
    tbt_p99_ms: float | None
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    decisions_by_arm: Mapping[str, int]
    duration_s: float
    client_lag_p99_ms: float
    """Real event-loop lag of the load generator: what it adds to the times it measures."""


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens on now, no two the same."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]


@asynccontextmanager
async def running_process(*arguments: str, cwd: Path | None = None) -> AsyncIterator[list[str]]:
    """A `drafter-selector` process; yields the lines it printed up to its readiness, ends it with SIGTERM.

    Ready means a line that starts with `ready `; more than one such line may come at once. Raises `UpstreamError`, with
    what it printed, when it ends before that or takes longer than a minute.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "selector", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, stdin=asyncio.subprocess.DEVNULL, cwd=cwd,
    )  # fmt: skip
    assert process.stdout is not None
    name = f"drafter-selector {arguments[0]}"
    lines: list[str] = []
    drain: asyncio.Task[None] | None = None
    try:
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                while not (lines and lines[-1].startswith("ready ")):
                    line = await process.stdout.readline()
                    if not line:
                        raise UpstreamError(f"{name} ended before it was ready: {' | '.join(lines[-5:])}")
                    lines.append(line.decode(errors="replace").rstrip())
        except TimeoutError:
            raise UpstreamError(f"{name} was not ready in {_START_TIMEOUT_S:g} s: {' | '.join(lines[-5:])}") from None
        drain = asyncio.create_task(_discard(process.stdout))
        yield lines
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), _STOP_TIMEOUT_S)
            except TimeoutError:
                process.kill()
                await process.wait()
        if drain is not None:
            await drain


async def _discard(stream: asyncio.StreamReader) -> None:
    """Keeps the pipe of a running process from filling up."""
    while await stream.read(65_536):
        pass


async def read_energy(session: aiohttp.ClientSession, urls: Sequence[str]) -> EnergyReading:
    """Sums the answers of `GET /energy`, each GPU once.

    Raises `UpstreamError` when one does not answer as it should, or when there is no GPU.
    """
    gpus: dict[str, Mapping[str, float]] = {}
    for url in urls:
        try:
            async with session.get(url) as response:
                for gpu in (await response.json())["gpus"]:
                    parts_j = {name: float(gpu[f"{name}_mj"]) / 1e3 for name in _PARTS if f"{name}_mj" in gpu}
                    gpus[gpu["id"]] = {"energy": float(gpu["energy_mj"]) / 1e3, **parts_j}
        except (aiohttp.ClientError, TimeoutError, OSError, KeyError, TypeError, ValueError) as bad:
            raise UpstreamError(f"{url} gives no energy reading ({type(bad).__name__}: {bad})") from bad
    if not gpus:
        raise UpstreamError(f"no GPU has an energy counter at {', '.join(urls) or 'any address'}")

    def summed(name: str) -> float | None:
        readings = [gpu.get(name) for gpu in gpus.values()]
        known = [reading for reading in readings if reading is not None]
        return sum(known) if len(known) == len(readings) else None

    return EnergyReading(
        total_j=sum(gpu["energy"] for gpu in gpus.values()),
        decode_j=summed("decode"),
        prefill_j=summed("prefill"),
        idle_j=summed("idle"),
    )


async def run_policy(
    policy: str,
    *,
    fleet_file: Path,
    energy_urls: Sequence[str],
    requests: Sequence[TimedRequest],
    time_scale: float,
    seed: int = 0,
    decision_log: Path | None = None,
    on_answer: Callable[[Answer], None] | None = None,
    arrivals: Arrivals | None = None,
) -> LiveResult:
    """Runs `requests` through a router of its own; `arrivals` as for `Replay`.

    Raises `UpstreamError` when router or meter do not answer.
    """
    arguments = ["serve", "--config", str(fleet_file), "--policy", policy, "--port", "0", "--seed", str(seed)]
    if decision_log is not None:
        arguments += ["--decision-log", str(decision_log)]
    async with running_process(*arguments) as lines, aiohttp.ClientSession() as session:
        url = lines[-1].split("url=", 1)[1].split()[0]
        replay = Replay(url, requests, time_scale=time_scale, on_answer=on_answer, arrivals=arrivals)
        before = await read_energy(session, energy_urls)
        async with LagWatch() as lag:
            answers = await replay.run()
        after = await read_energy(session, energy_urls)
    return summarise(policy, answers, before, after, lag.lags_ms)


def summarise(
    policy: str, answers: Sequence[Answer], before: EnergyReading, after: EnergyReading, lags_ms: Sequence[float]
) -> LiveResult:
    """The result of a replay between two energy readings."""
    done = [answer for answer in answers if answer.error is None]
    failed = [answer for answer in answers if answer.error is not None]
    tokens = sum(answer.tokens for answer in done)
    by_arm: dict[str, int] = {}
    for answer in answers:
        if answer.arm is not None:
            by_arm[answer.arm] = by_arm.get(answer.arm, 0) + 1
    energy_j = after.total_j - before.total_j
    decode_j = _difference(after.decode_j, before.decode_j)
    tbt = [answer.tbt_ms for answer in done if answer.tbt_ms is not None]
    ttft = [answer.ttft_ms for answer in done if answer.ttft_ms is not None]
    return LiveResult(
        policy=policy,
        requests=len(done),
        failed=len(failed),
        first_error=failed[0].error if failed else None,
        accepted_tokens=tokens,
        energy_j=energy_j,
        decode_j=decode_j,
        prefill_j=_difference(after.prefill_j, before.prefill_j),
        idle_j=_difference(after.idle_j, before.idle_j),
        j_per_accepted_token=energy_j / tokens if tokens else None,
        decode_j_per_accepted_token=decode_j / tokens if tokens and decode_j is not None else None,
        tbt_attainment=attainment(answers),
        tbt_p50_ms=quantile(tbt, 0.5),
        tbt_p99_ms=quantile(tbt, 0.99),
        ttft_p50_ms=quantile(ttft, 0.5),
        ttft_p99_ms=quantile(ttft, 0.99),
        decisions_by_arm=by_arm,
        duration_s=max((answer.finished_s for answer in answers), default=0.0),
        client_lag_p99_ms=quantile(lags_ms, 0.99) or 0.0,
    )


def attainment(answers: Iterable[Answer], target_ms: float | None = None) -> float | None:
    """Share of the answers within their targets, or within the one that is given; a failed one is a miss.

    `None` where no answer with a target has a TBT or failed.
    """
    judged = [
        answer.error is None and (answer.tbt_ms or 0.0) <= target
        for answer in answers
        if (target := target_ms or answer.request.tbt_target_ms) is not None
        and (answer.tbt_ms is not None or answer.error is not None)
    ]
    return sum(judged) / len(judged) if judged else None


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before
