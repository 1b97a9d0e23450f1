"""Everything that can be said about a fleet file before traffic tells: errors, and warnings about what will surprise.

`LoadedFleet` stops at the first error; here all that can be found are collected.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from selector.core.types import TEXT_TYPES
from selector.errors import FleetError, InputError, PolicyError
from selector.files.adaptivecheck import schedule_trouble
from selector.files.arm import RAGGED_VERIFY, VERIFY_BUDGET
from selector.files.capabilities import capability_trouble
from selector.files.fleet import Fleet, LoadedFleet, backend_spec
from selector.files.policy import LoadedPolicy, load_policy_file
from selector.files.profile import Profile
from selector.files.securitycheck import examine_security
from selector.files.validation import findings, read_toml

TYPICAL_CONTEXT_TOKENS = 1_024
"""Context per request at which targets are judged."""

_THIS_MACHINE = {"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"}

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong (`error`) or will surprise (`warning`), in the three phrases of an `InputError`."""

    level: Level
    where: str
    problem: str
    remedy: str

    @classmethod
    def of(cls, error: InputError, inside: str | None = None) -> Finding:
        """An error as a finding; `inside` names the file and table that led to it."""
        where = f"{inside}: {error.where}" if inside else error.where
        return cls(level="error", where=where, problem=error.problem, remedy=error.remedy)

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}; {self.remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What was found, and the fleet and its policies as far as they could be loaded."""

    findings: tuple[Finding, ...]
    loaded: LoadedFleet | None = None
    policy: LoadedPolicy | None = None
    fallback: LoadedPolicy | None = None


def examine(path: Path, environ: Mapping[str, str] = os.environ) -> Examination:
    """Reads a fleet file and all that it names, and reports on it. Raises nothing for a bad file."""
    where = str(path)
    try:
        table = read_toml(path, "fleet file", FleetError)
    except FleetError as bad:
        return Examination(findings=(Finding.of(bad),))
    schema = findings(Fleet, table, where, FleetError)
    if schema:
        return Examination(findings=tuple(Finding.of(error) for error in schema))
    fleet = Fleet.model_validate(table)
    found = [*_address_clashes(fleet, where)]
    profiles: dict[str, Profile] = {}
    for index in range(len(fleet.backends)):
        try:
            backend_spec(fleet, index, where, profiles)
        except FleetError as bad:
            found.append(Finding.of(bad))
    loaded = None if found else LoadedFleet(fleet, where, profiles)
    policy = _policy(fleet.policy.name, fleet.policy.params, loaded, f"{where}: policy", found)
    fallback = _policy(fleet.policy.fallback, {}, loaded, f"{where}: policy.fallback", found)
    if loaded is not None:
        found += _warnings(loaded, environ)
    code = {place: policy.path for place, policy in (("policy", policy), ("policy.fallback", fallback)) if policy}

    def told(level: Level, where: str, problem: str, remedy: str) -> None:
        found.append(Finding(level=level, where=where, problem=problem, remedy=remedy))

    examine_security(fleet, where, environ, code, told)
    return Examination(findings=tuple(found), loaded=loaded, policy=policy, fallback=fallback)


def _policy(
    name: str, params: Mapping[str, object], loaded: LoadedFleet | None, inside: str, found: list[Finding]
) -> LoadedPolicy | None:
    try:
        policy = load_policy_file(name)
        if loaded is not None:
            policy.make(params, loaded.policy_context())
    except PolicyError as bad:
        found.append(Finding.of(bad, inside))
        return None
    return policy


def _address_clashes(fleet: Fleet, where: str) -> Iterator[Finding]:
    seen: dict[tuple[str, int], str] = {}
    for index, backend in enumerate(fleet.backends):
        if backend.url is None:
            continue
        address = _address(backend.url)
        if address in seen:
            yield Finding(
                level="error",
                where=f"{where}: backends[{index}].url",
                problem=f"is {backend.url!r}, where {seen[address]} already listens",
                remedy="give every backend an address of its own",
            )
        seen.setdefault(address, f"backend {backend.name!r}")
    router = fleet.router
    for field, host, port in (
        ("port", router.host, router.port),
        ("control_port", router.control_host, router.control_port),
    ):
        if port is None or port == 0:
            continue
        own = (_host(host), port)
        if own in seen:
            yield Finding(
                level="error",
                where=f"{where}: router.{field}",
                problem=f"is {port}, where {seen[own]} already listens",
                remedy="let the router listen on another port",
            )
        seen.setdefault(own, "the router")


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return _host(parts.hostname or ""), parts.port or (443 if parts.scheme == "https" else 80)


def _host(name: str) -> str:
    """A name for all that reach this machine from itself; a listener on every address is one of them."""
    return "loopback" if name in _THIS_MACHINE else name


def _warnings(loaded: LoadedFleet, environ: Mapping[str, str]) -> Iterator[Finding]:
    for check in (
        _targets,
        _shared_gpus,
        _gpu_kinds,
        _priors,
        _assumed,
        _batch_range,
        _budgets,
        capability_trouble,
        _schedules,
        _urls,
    ):
        for where, problem, remedy in check(loaded):
            yield Finding(level="warning", where=f"{loaded.where}: {where}", problem=problem, remedy=remedy)
    for index, backend in enumerate(loaded.fleet.backends):
        if backend.api_key_env and not environ.get(backend.api_key_env):
            yield Finding(
                level="warning",
                where=f"{loaded.where}: backends[{index}].api_key_env",
                problem=f"names {backend.api_key_env}, which is not set here",
                remedy="set it where serve runs",
            )


Phrases = tuple[str, str, str]

_COST_TABLE = "--speculative-dspark-sps-table-path"


def _targets(loaded: LoadedFleet) -> Iterator[Phrases]:
    """Targets that no arm meets for a text type even when a request has a backend to itself."""
    acceptance = loaded.policy_context().acceptance
    fixed = [each for spec in loaded.specs for each in spec.depths or (spec,)]
    step_ms = {spec.arm: spec.cost.step.step(1, TYPICAL_CONTEXT_TOKENS)[0] for spec in fixed}
    for name, slo in loaded.fleet.slo.classes.items():
        if slo.tbt_target_ms is None:
            continue
        missed = []
        for text_type in TEXT_TYPES:
            best_ms, arm = min((ms / acceptance.accept_length(arm, text_type), arm) for arm, ms in step_ms.items())
            if best_ms > slo.tbt_target_ms:
                missed.append(f"{text_type} ({best_ms:.2f} ms, {arm})")
        if missed:
            yield (
                f"slo.classes.{name}.tbt_target_ms",
                f"is {slo.tbt_target_ms:g}, faster than any arm of the fleet at batch 1 and {TYPICAL_CONTEXT_TOKENS} "
                f"context tokens for {', '.join(missed)}",
                "raise the target or add a faster arm",
            )


def _shared_gpus(loaded: LoadedFleet) -> Iterator[Phrases]:
    users: dict[str, list[str]] = {}
    for backend in loaded.fleet.backends:
        for gpu in backend.gpus:
            users.setdefault(gpu, []).append(backend.name)
    for gpu, names in users.items():
        if len(names) > 1:
            yield (
                "backends",
                f"{', '.join(names)} share {gpu}: when several are busy they take turns, and each is slower than its "
                "profile, which was taken alone",
                "expect one of them to be busy at a time",
            )


def _gpu_kinds(loaded: LoadedFleet) -> Iterator[Phrases]:
    kinds: dict[str, list[str]] = {}
    for backend in loaded.fleet.backends:
        kinds.setdefault(loaded.profiles[backend.profile].gpu.name, []).append(backend.name)
    if len(kinds) > 1:
        listed = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items())
        yield (
            "backends",
            f"their profiles are of different GPUs ({listed})",
            "make sure that each backend runs on the GPU of its profile",
        )


def _priors(loaded: LoadedFleet) -> Iterator[Phrases]:
    """An arm that two profiles describe: one acceptance model serves both, and starts from the first."""
    first: dict[str, str] = {}
    for index, backend in enumerate(loaded.fleet.backends):
        name = first.setdefault(backend.arm, backend.profile)
        one, other = (loaded.profiles[profile].arms[backend.arm] for profile in (name, backend.profile))
        means = [{text: value.mean for text, value in arm.acceptance.items()} for arm in (one, other)]
        if means[0] != means[1]:
            yield (
                f"backends[{index}].profile",
                f"{backend.profile!r} and {name!r} give {backend.arm} different accept lengths",
                f"those of {name!r} are used until requests have taught better",
            )


def _assumed(loaded: LoadedFleet) -> Iterator[Phrases]:
    for where, profile, arm in loaded.arms():
        entries = arm.acceptance
        lacking = [text_type for text_type in TEXT_TYPES if text_type not in entries] if arm.verify_tokens > 1 else []
        if lacking:
            yield (
                f"{where}.acceptance",
                f"has nothing for {', '.join(lacking)}, which counts as no draft accepted",
                "measure it (profile, [acceptance]); until then serve learns it from the requests that it tries there",
            )
        assumed = [
            text_type
            for text_type in TEXT_TYPES
            if text_type in entries and profile.provenance[entries[text_type].provenance].kind == "assumed"
        ]
        if assumed:
            yield (
                f"{where}.acceptance",
                f"is assumed, not measured or published, for {', '.join(assumed)}",
                "serve learns it from requests; simulate and predict do not",
            )


def _batch_range(loaded: LoadedFleet) -> Iterator[Phrases]:
    for index, spec in enumerate(loaded.specs):
        measured = min(each.cost.step.max_batch for each in spec.depths or (spec,))
        if spec.max_running_requests > measured:
            yield (
                f"backends[{index}].max_running_requests",
                f"is {spec.max_running_requests}, and {spec.arm} was measured up to batch {measured}",
                f"beyond it costs are extrapolated: lower it to {measured} or profile larger batches",
            )


def _budgets(loaded: LoadedFleet) -> Iterator[Phrases]:
    """Servers that would take a verify budget, say so, and go on verifying whole blocks."""
    for where, _, arm in loaded.arms():
        if arm.live_setting is None or arm.live_setting.name != VERIFY_BUDGET:
            continue
        lacking = [
            words
            for words, there in (
                (f"{RAGGED_VERIFY}=compact", arm.launch.env.get(RAGGED_VERIFY) == "compact"),
                (_COST_TABLE, _COST_TABLE in arm.launch.flags),
            )
            if not there
        ]
        if lacking:
            yield (
                f"{where}.launch",
                f"has no {' and no '.join(lacking)}, without which SGLang takes a verify budget and ignores it",
                "add it, and launch the server with it",
            )


def _schedules(loaded: LoadedFleet) -> Iterator[Phrases]:
    """Adaptive servers whose schedule is far from what their costs call for."""
    for index in range(len(loaded.fleet.backends)):
        trouble = schedule_trouble(loaded, index, None)
        if trouble is not None:
            yield (f"backends[{index}]", *trouble)


def _urls(loaded: LoadedFleet) -> Iterable[Phrases]:
    missing = [backend.name for backend in loaded.fleet.backends if backend.url is None]
    if missing:
        yield ("backends", f"{', '.join(missing)} have no url", "simulate needs none, serve does")
