"""The servers of a plan's fleet: real ones, started on this host, or emulated ones in their place."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
from plan import LivePlan

from selector.core.survival import accept_length_of
from selector.errors import UpstreamError
from selector.files.depthcosts import ADAPTIVE_FLAG, STEPS_FLAG
from selector.files.fleet import LoadedFleet
from selector.files.launch import launch_commands
from selector.files.launchflags import flag_value, prefill_graphs
from selector.loadgen.live import running_process
from selector.profiler.client import SglangClient, open_session
from selector.profiler.clock import MonotonicClock
from selector.profiler.server import start_process, stop_process, tail

HOOK = Path(__file__).resolve().parent / "hook"
_NCCL_PORTS = 5_000
"""Above the port of a server: where its ranks meet."""
_PROBE_TOKENS = 256
_PROBE_TOLERANCE = 0.15
_WARM_UP_REQUESTS, _WARM_UP_TOKENS = 16, 64


@asynccontextmanager
async def emulated(
    fleet_file: Path, plan: LivePlan, loaded: LoadedFleet, time_scale: float
) -> AsyncIterator[list[str]]:
    """Emulated servers on the fleet's ports; yields where their energy is read."""
    arguments = ("emulate", "--fleet", str(fleet_file), "--time-scale", str(time_scale), "--seed", str(plan.seed))
    async with running_process(*arguments):
        yield energy_of(loaded)


def energy_of(loaded: LoadedFleet) -> list[str]:
    """Where emulated servers tell their energy."""
    return [f"{backend.url}/energy" for backend in loaded.fleet.backends]


@asynccontextmanager
async def real(
    plan: LivePlan, loaded: LoadedFleet, models: Path, logs: Path, accept: Mapping[str, Mapping[str, float]]
) -> AsyncIterator[list[str]]:
    """SGLang servers and a meter of this host's GPUs; yields where their energy is read.

    `logs` is a folder that is there. Raises `UpstreamError` with the end of its log for a server that does not come up,
    and for one that does not take the accept lengths it should.
    """
    async with started(plan, loaded, models, logs, accept), metered(loaded) as energy_urls:
        yield energy_urls


@asynccontextmanager
async def started(
    plan: LivePlan, loaded: LoadedFleet, models: Path, logs: Path, accept: Mapping[str, Mapping[str, float]]
) -> AsyncIterator[None]:
    """The SGLang servers of a fleet, one after another or all at once as the plan says. Raises as `real` does."""
    clock = MonotonicClock()
    drafts = {arm: str(models / folder) for arm, folder in plan.servers.drafts.items()}
    commands = launch_commands(loaded, model_path=str(models / plan.servers.model), draft_paths=drafts)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(open_session())
        coming: list[_Coming] = []
        stack.push_async_callback(_stop_all, coming, clock)
        for command, backend in zip(commands, loaded.fleet.backends, strict=True):
            env = {**plan.servers.env, **command.env, **_imposed(command.arm, accept.get(command.arm), plan)}
            # Two fleet files of one host do not know of one another's ports, and would name the same.
            rendezvous = ("--nccl-port", str(int(str(backend.url).rpartition(":")[2]) + _NCCL_PORTS))
            argv = (plan.servers.python, *command.words[1:], *rendezvous, *plan.servers.flags)
            log = logs / f"{command.backend}.log"
            deepest = int(flag_value(command.words, STEPS_FLAG) or 0) if ADAPTIVE_FLAG in command.words else None
            process = start_process(argv, env, log)
            server = _Coming(command.backend, command.arm, str(backend.url), process, log, clock.now(), deepest)
            coming.append(server)
            if not plan.servers.at_once:
                await _ready(server, session, plan, clock)
        for server in coming:
            if plan.servers.at_once:
                await _ready(server, session, plan, clock)
            await _warm_up(session, server.url, plan)
            await SglangClient(session, server.url, clock.now).freeze_gc()
            wanted = {name: length for name, length in accept.get(server.arm, {}).items() if name in plan.text_types}
            if server.arm not in plan.servers.unchecked:
                for number, (name, length) in enumerate(wanted.items()):
                    bounds = _bounds(length, plan.survival.get(name), server.deepest)
                    await _check_accept(session, server.url, number, name, *bounds)
        yield


@asynccontextmanager
async def metered(loaded: LoadedFleet) -> AsyncIterator[list[str]]:
    """A meter of the fleet's GPUs, which are this host's; yields where their energy is read."""
    indices = sorted({gpu.rpartition(":")[2] for backend in loaded.fleet.backends for gpu in backend.gpus})
    host = loaded.fleet.backends[0].gpus[0].rpartition(":")[0]
    arguments = ("meter", "--gpus", ",".join(indices), "--host-name", host, "--port", "0")
    async with running_process(*arguments) as lines:
        yield [lines[-1].split("url=", 1)[1].split()[0] + "/energy"]


@dataclass(frozen=True, slots=True)
class _Coming:
    """A server that was started."""

    backend: str
    arm: str
    url: str
    process: subprocess.Popen[bytes]
    log: Path
    began_s: float
    deepest: int | None
    """Of a server that changes its depth."""


async def _stop_all(servers: Sequence[_Coming], clock: MonotonicClock) -> None:
    """At once, since each may take seconds in which nothing is measured."""
    await asyncio.gather(*(stop_process(server.process, clock) for server in servers))


async def _ready(server: _Coming, session: aiohttp.ClientSession, plan: LivePlan, clock: MonotonicClock) -> None:
    client = SglangClient(session, server.url, clock.now)
    while not await client.healthy():
        if server.process.poll() is not None:
            raise UpstreamError(f"{server.backend} ended with {server.process.returncode}:\n{tail(server.log)}")
        if clock.now() - server.began_s > plan.servers.startup_timeout_s:
            raise UpstreamError(f"{server.backend} was not ready in time:\n{tail(server.log)}")
        await clock.sleep(0.5)
    print(f"{server.backend} ({server.arm}) is up after {clock.now() - server.began_s:.0f} s", flush=True)


def _imposed(arm: str, lengths: Mapping[str, float] | None, plan: LivePlan) -> dict[str, str]:
    """Environment that makes the engine take these accept lengths; empty without a drafter.

    An arm whose lengths the plan gives takes those, others the chances of each draft, if the plan gives any.
    """
    if lengths is None:
        return {}
    chances = plan.survival if arm not in plan.accept else {}
    name, values = ("SURVIVAL", chances) if chances else ("ACCEPT", lengths)
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HOOK), os.environ.get("PYTHONPATH")])),
        "SGLANG_SIMULATE_ACC_LEN": "2.0",
        f"DRAFTER_SELECTOR_{name}": json.dumps({**values, "*": min(values.values())}),
    }


def _bounds(length: float, survival: float | None, deepest: int | None) -> tuple[float, float]:
    """The least and the most that a server may be seen to take: one that changes its depth, at any from 1 on."""
    if deepest is None or survival is None:
        return length, length
    return 1.0 + survival, max(length, accept_length_of(survival, deepest + 1))


async def _generated(
    session: aiohttp.ClientSession, url: str, prompts: Sequence[int], tokens: int, **fields: object
) -> list[dict[str, Any]]:
    """The answers to prompts of so many tokens each, sent at once. Raises `UpstreamError` where they are refused."""
    body = {
        "input_ids": [list(range(2_000, 2_000 + length)) for length in prompts],
        "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0},
        **fields,
    }
    async with session.post(f"{url}/generate", json=body) as answer:
        if answer.status != HTTPStatus.OK:
            raise UpstreamError(f"{url} refuses a prompt before the first cell: {(await answer.text())[:200]}")
        answers: list[dict[str, Any]] = await answer.json()
    return answers


async def _warm_up(session: aiohttp.ClientSession, url: str, plan: LivePlan) -> None:
    """Prompts of the lengths that are to come, alone and some at once: what an engine compiles when first asked.

    Left to the first cell, it made a request wait for 0.6 s there (see README.md).
    """
    graphs = prefill_graphs(plan.servers.flags) or (_WARM_UP_TOKENS,)
    lengths = [length for length in graphs if length <= plan.max_prompt_tokens] or [plan.max_prompt_tokens]
    for prompts in (*([length] for length in lengths), [_WARM_UP_TOKENS] * _WARM_UP_REQUESTS):
        await _generated(session, url, prompts, _WARM_UP_TOKENS)


async def _check_accept(
    session: aiohttp.ClientSession, url: str, number: int, text_type: str, least: float, most: float
) -> None:
    """Asks for some tokens of the type and counts: an engine that ignores the plugin must not be measured."""
    answers = await _generated(session, url, [32], _PROBE_TOKENS, rid=[f"999{number:06d}-{text_type}"])
    passes = answers[0]["meta_info"].get("spec_verify_ct")
    seen = (_PROBE_TOKENS - 1) / passes if passes else 0.0
    if not least * (1 - _PROBE_TOLERANCE) <= seen <= most * (1 + _PROBE_TOLERANCE):
        wanted = f"{least:g}" if least == most else f"{least:g} to {most:g}"
        problem = f"takes {seen:.2f} tokens a step of {text_type}, not {wanted}"
        raise UpstreamError(f"{url} {problem}: has the plugin been loaded?")
