"""What the acceptance model learnt, on disk and between routers: schemas, and a file that is whole or the one before.

    {"format": "drafter-selector/acceptance", "version": 2, "target": …, "fingerprint": …, "router": …, "state": {…}}

The fingerprint is that of target, arms and profile: what was learnt against another profile is refused. Losing a state
costs only learning, so a reader that refuses one goes on without it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from selector.core.acceptancestate import AcceptanceState, CellState
from selector.errors import StateError
from selector.files.validation import FileModel, read_text

FORMAT = "drafter-selector/acceptance"
REMEDY = "delete it; what it had learnt is learnt again"

RouterId = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")]


class _Head(FileModel):
    target: str
    fingerprint: str
    """As `selector.core.acceptancestate.fingerprint` gives it."""
    router: RouterId
    """Who learnt it: a router that begins again under its own name does not count twice among others."""


class AcceptanceFile(_Head):
    """The snapshot of one router."""

    format: Literal["drafter-selector/acceptance"] = "drafter-selector/acceptance"
    version: Literal[2] = 2
    saved: str
    """UTC, ISO 8601."""
    state: AcceptanceState


class SharedContribution(_Head):
    """What one router tells the others."""

    version: Literal[2] = 2
    cells: dict[str, dict[str, CellState]]


_FILE = TypeAdapter(AcceptanceFile)
_SHARED = TypeAdapter(SharedContribution)


def write_acceptance(snapshot: AcceptanceFile, path: Path) -> None:
    """Writes so that a crash, of the machine too, leaves the old file or the new one. Raises `OSError`."""
    temporary = path.with_name(f"{path.name}.part")
    with temporary.open("wb") as file:
        file.write(_FILE.dump_json(snapshot) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_acceptance(path: Path, *, target: str, fingerprint: str) -> AcceptanceFile:
    """The snapshot at `path`. Raises `StateError` for one that is missing, damaged, or of another target or profile."""
    text = read_text(path, "acceptance snapshot", StateError)
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError as bad:
        raise StateError(str(path), f"is not JSON ({bad})", REMEDY) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise StateError(f"{path}: format", "is not that of an acceptance snapshot", "choose another file")
    if data.get("version") != 2:
        raise StateError(f"{path}: version", f"is {data.get('version')!r}", "this release reads version 2")
    try:
        snapshot = _FILE.validate_python(data)
    except ValidationError as invalid:
        raise StateError(*_told(str(path), invalid), REMEDY) from None
    _require_same(str(path), snapshot, target, fingerprint)
    return snapshot


def encoded_contribution(contribution: SharedContribution) -> bytes:
    """JSON for `decoded_contribution`."""
    return _SHARED.dump_json(contribution)


def decoded_contribution(data: bytes, where: str, *, target: str, fingerprint: str) -> SharedContribution:
    """What another router told; `where` names it in errors. Raises `StateError` for what cannot be used."""
    try:
        contribution = _SHARED.validate_json(data)
    except ValidationError as invalid:
        raise StateError(*_told(where, invalid), "update the routers to one release") from None
    _require_same(where, contribution, target, fingerprint)
    return contribution


def _told(where: str, invalid: ValidationError) -> tuple[str, str]:
    first = invalid.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return (f"{where}: {place}" if place else where), f"cannot be used ({first['msg']})"


def _require_same(where: str, head: _Head, target: str, fingerprint: str) -> None:
    if head.target != target:
        raise StateError(f"{where}: target", f"is {head.target!r}, the fleet serves {target!r}", "choose another file")
    if head.fingerprint != fingerprint:
        raise StateError(
            f"{where}: fingerprint",
            "is that of other arms or another profile",
            "give each fleet a file of its own; what was learnt against another profile cannot be used",
        )
