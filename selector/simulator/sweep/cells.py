"""One cell of a sweep: what determines it, and how it is run, in whatever process or machine."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

import selector
from selector.files.fleet import LoadedFleet
from selector.files.policy import policy_from_source
from selector.files.shipped import PACKAGE_DIR
from selector.files.trace import Trace, with_text_types
from selector.simulator.report import PolicyResult, TargetChoice
from selector.simulator.trial import prepare, run_trial

_DETERMINING = ("core/**/*.py", "files/**/*.py", "simulator/*.py")
"""The modules that decide what a simulation gives; those that only show results lie deeper in the simulator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySource:
    """A policy file by content, so that it runs where the file is not."""

    name: str
    """As the user named it, argument included."""
    path: Path
    source: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Everything the cells of a sweep read, by the names that cells use."""

    traces: Mapping[tuple[str, int | None], Trace]
    """By name, and by seed where the trace is drawn from a pool; `None` where it is the same for all seeds."""
    fleets: Mapping[str, LoadedFleet]
    policies: Mapping[str, PolicySource]


class Cell(BaseModel):
    """One combination."""

    model_config = ConfigDict(frozen=True)

    trace: str
    fleet: str
    tbt_target_ms: TargetChoice
    """`None` for the fleet's classes."""
    rate_scale: float
    text_mix: dict[str, float] | None
    """`None` where the trace says its text types."""
    seed: int
    policy: str
    params: dict[str, Any]
    inputs: dict[str, str]
    """SHA-256 of trace, fleet, policy file, each profile and the code that simulates, and the version."""
    key: str
    """SHA-256 of all that determines the result: the above without the names, and what `plan` adds."""


class CellRecord(BaseModel):
    """A cell that was run: either `result` or `error`."""

    model_config = ConfigDict(frozen=True)

    cell: Cell
    code_sha256: str
    """Of the modules that ran it."""
    result: PolicyResult | None = None
    error: str | None = None
    """Kind and message, in one line."""
    traceback: str | None = None


def key_of(parts: Mapping[str, object]) -> str:
    """SHA-256 of the parts in a canonical form."""
    whole = json.dumps({"format": 1, **parts}, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(whole.encode()).hexdigest()


def program_inputs() -> dict[str, str]:
    """What of the program determines every cell."""
    return {"version": selector.__version__, "code": code_sha256()}


@cache
def code_sha256() -> str:
    """SHA-256 of the modules that decide what a simulation gives."""
    digest = hashlib.sha256()
    for pattern in _DETERMINING:
        for path in sorted(PACKAGE_DIR.glob(pattern)):
            name = path.relative_to(PACKAGE_DIR).as_posix()
            digest.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def run_cell(inputs: Inputs, cell: Cell) -> CellRecord:
    """Runs a cell. Whatever it raises is recorded, not raised: the other cells go on."""
    try:
        loaded, source = inputs.fleets[cell.fleet], inputs.policies[cell.policy]
        key = (cell.trace, cell.seed)
        trace = inputs.traces[key if key in inputs.traces else (cell.trace, None)]
        trace = with_text_types(trace, cell.text_mix or {}, cell.seed)
        requests = prepare(trace, loaded, tbt_target_ms=cell.tbt_target_ms, rate_scale=cell.rate_scale)
        policy = policy_from_source(source.name, source.path, source.source)
        result = run_trial(
            loaded, requests, policy, seed=cell.seed, params=cell.params, tbt_target_ms=cell.tbt_target_ms
        ).result
    except Exception as failed:  # noqa: BLE001  a policy is the user's code: it may raise anything
        return failed_record(cell, failed)
    return CellRecord(cell=cell, code_sha256=code_sha256(), result=result)


def failed_record(cell: Cell, failed: Exception) -> CellRecord:
    """The record of a cell that raised."""
    return CellRecord(
        cell=cell,
        code_sha256=code_sha256(),
        error=" ".join(f"{type(failed).__name__}: {failed}".split()),
        traceback="".join(traceback.format_exception(failed)),
    )
