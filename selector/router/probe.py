"""Asks the servers of a fleet who they are and whether they can serve: `check --live`.

Three reads per backend, each bounded by the router's own time limits: `/ready`, `/server_info` and `/v1/loads`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import aiohttp
import orjson

from selector.files.adaptivecheck import schedule_trouble
from selector.files.fleet import Backend, LoadedFleet
from selector.files.fleetcheck import Finding, Level
from selector.files.trust import trust
from selector.router.identity import arm_mismatches, deployment_mismatches


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What one backend answered."""

    backend: str
    findings: tuple[Finding, ...]
    summary: str | None
    """State in words, when the backend answered at all."""


class _Unusable(Exception):
    """A read that did not give what it should: problem and remedy."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem, self.remedy = problem, remedy


async def probe_fleet(loaded: LoadedFleet, environ: Mapping[str, str] = os.environ) -> tuple[Probe, ...]:
    """Probes all backends at once; the answers are in the fleet's order. Raises `FleetError` for a bad `ca_file`."""
    router = loaded.fleet.router
    timeout = aiohttp.ClientTimeout(total=router.poll_timeout_s, connect=router.connect_timeout_s)
    connector = aiohttp.TCPConnector(ssl=trust(loaded.fleet, loaded.where))
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session, asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_probe(session, loaded, index, environ)) for index in range(len(loaded.fleet.backends))
        ]
    return tuple(task.result() for task in tasks)


async def _probe(session: aiohttp.ClientSession, loaded: LoadedFleet, index: int, environ: Mapping[str, str]) -> Probe:
    backend, spec = loaded.fleet.backends[index], loaded.specs[index]
    profile = loaded.profiles[backend.profile]
    place = f"{loaded.where}: backends[{index}] {backend.name}"
    found: list[Finding] = []

    def report(level: Level, problem: str, remedy: str) -> None:
        found.append(Finding(level=level, where=place, problem=problem, remedy=remedy))

    if backend.url is None:
        report("error", "has no url to ask", "add it")
        return Probe(backend=backend.name, findings=tuple(found), summary=None)
    try:
        await _get(session, backend, "/ready", environ)
        info = await _object(session, backend, "/server_info", environ)
        loads = await _object(session, backend, "/v1/loads?include=core,spec", environ)
    except _Unusable as bad:
        report("error", bad.problem, bad.remedy)
        return Probe(backend=backend.name, findings=tuple(found), summary=None)
    for mismatch in arm_mismatches(info, profile.arms[backend.arm]):
        report("error", f"does not run {backend.arm}: {mismatch}", "start it as check --launch-commands prints")
    for mismatch in deployment_mismatches(info, spec, profile):
        report("warning", str(mismatch), "predictions assume the fleet file and the profile: adapt one of them")
    trouble = schedule_trouble(loaded, index, info)
    if trouble is not None:
        report("warning", *trouble)
    ranks = loads.get("loads")
    if not isinstance(ranks, list) or not all(isinstance(rank, Mapping) for rank in ranks):
        report("error", "answers /v1/loads without a list of loads", "run an SGLang release that has it")
        return Probe(backend=backend.name, findings=tuple(found), summary=None)
    running, waiting = _total(ranks, "num_running_reqs"), _total(ranks, "num_waiting_reqs")
    release = info.get("version", "of unknown release")
    return Probe(
        backend=backend.name,
        findings=tuple(found),
        summary=f"ready, SGLang {release}, {running} running, {waiting} waiting",
    )


def _total(ranks: Iterable[Mapping[str, object]], key: str) -> int:
    """A count summed over data-parallel ranks."""
    return sum(value for rank in ranks if isinstance(value := rank.get(key), int))


async def _object(
    session: aiohttp.ClientSession, backend: Backend, path: str, environ: Mapping[str, str]
) -> Mapping[str, object]:
    """The JSON object at `path`. Raises `_Unusable`."""
    body = await _get(session, backend, path, environ)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise _Unusable(f"answers {path} with something that is no JSON object", "check what listens at its url")
    return value


async def _get(session: aiohttp.ClientSession, backend: Backend, path: str, environ: Mapping[str, str]) -> bytes:
    key = environ.get(backend.api_key_env) if backend.api_key_env else None
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        async with session.get(f"{backend.url}{path}", headers=headers, allow_redirects=False) as response:
            body = await response.read()
            status = response.status
    except TimeoutError:
        raise _Unusable(
            f"did not answer {path} in time", "see whether it is still starting, or raise the time limits"
        ) from None
    except aiohttp.ClientConnectorCertificateError as failed:
        why = failed.certificate_error
        raise _Unusable(
            f"has a certificate that is refused ({getattr(why, 'verify_message', why)})",
            "name whom to trust in security.ca_file, and the server by a name in its certificate",
        ) from None
    except aiohttp.ClientError as failed:
        raise _Unusable(
            f"cannot be reached at {backend.url} ({failed})", "start it: check --launch-commands prints how"
        ) from None
    if status in (401, 403):
        raise _Unusable(f"refuses {path} ({status})", "set api_key_env to a variable that holds its API key")
    if status != 200:
        raise _Unusable(f"answers {path} with {status}", "wait until it is up, or check what listens at its url")
    return body
