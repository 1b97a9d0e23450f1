"""Who may ask the router, and what of it goes on to backends: `[security]` and `[keys.NAME]` of the fleet file.

    [security]
    keys_file = "keys.toml"           # more keys, in a file of their own that can be read again while the router runs
    ca_file = "ca.pem"                # authorities that backends' and meters' certificates are checked with

    [keys.alice]                      # here or in keys_file; one table a holder
    sha256 = "9f86d081…"              # of the key; or env = "ALICE_KEY", or value = "sk-…"; several in a list
    requests_per_minute = 600
    max_concurrent = 32
    slo_class = "batch"

Without any key everybody who can reach the router may use it. A key is held as its SHA-256 digest from the moment it is
read, and no message ever shows one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, SecretStr, model_validator

from selector.errors import FleetError
from selector.files.validation import FileModel, read_toml, validated

if TYPE_CHECKING:
    from selector.files.fleet import Fleet

_DIGEST = re.compile(r"[0-9a-f]{64}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,127}")
"""Upper case alone: a key that was written here by mistake must not pass for a name, and be told."""
_KEY = re.compile(r"[\x21-\x7e]{8,512}")
_KEY_RULE = "8 to 512 printable ASCII characters without spaces"


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Secrets = Annotated[tuple[SecretStr, ...], BeforeValidator(_listed)]
HolderName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class ApiKey(FileModel):
    """The keys of one holder, any of which will do, and what the holder may do with them."""

    value: Secrets = ()
    """Keys as given."""
    sha256: Secrets = ()
    """SHA-256 digests of keys, 64 hexadecimal digits each."""
    env: Secrets = ()
    """Names of environment variables that hold a key."""
    requests_per_minute: PositiveFloat | None = None
    burst_requests: PositiveInt = 10
    """Requests that may come at once within that rate."""
    max_concurrent: PositiveInt | None = None
    """Requests under way at a time."""
    slo_class: str | None = None
    """Class of requests that name none; absent: the fleet's default."""
    slo_classes: tuple[str, ...] | None = None
    """Classes that a request may name, beside `slo_class`; absent: all."""
    may_set_target: bool = True
    """Whether a request may ask for a target of its own."""
    control: bool = False
    """Whether the key opens what the router says of itself: metrics, dashboard, `/router/…`, `/abort_request`."""

    @model_validator(mode="after")
    def _usable(self) -> ApiKey:
        # Checked here, not field by field: a message about the whole table shows no value of it.
        if not (self.value or self.sha256 or self.env):
            raise ValueError("holds no key: give value, sha256 or env")
        if not all(_KEY.fullmatch(secret.get_secret_value()) for secret in self.value):
            raise ValueError(f"value holds what cannot be a key: it must be {_KEY_RULE}")
        if not all(_DIGEST.fullmatch(secret.get_secret_value().lower()) for secret in self.sha256):
            raise ValueError("sha256 holds what is no digest: it must be 64 hexadecimal digits")
        if not all(_VARIABLE.fullmatch(secret.get_secret_value()) for secret in self.env):
            raise ValueError("env holds what is no name of a variable: it must be upper-case letters, digits and _")
        return self


Keys = dict[HolderName, ApiKey]


class Security(FileModel):
    """What the router asks of clients, passes on to backends, and checks them with."""

    keys_file: str | None = None
    """TOML file with further `[keys.NAME]` tables."""
    pass_authorization: bool | None = None
    """Whether a backend without a key of its own gets the client's; absent: unless the router itself asks for keys."""
    pass_forwarded: bool = False
    """Whether a client's `Forwarded`, `X-Forwarded-…` and `X-Real-IP` go on to backends: behind a proxy of yours."""
    ca_file: str | None = None
    """PEM file of the authorities that sign certificates of backends and meters; absent: those of the system."""


class KeysFile(FileModel):
    """The file that `keys_file` names."""

    version: int = 1
    keys: Keys = Field(min_length=1)

    @model_validator(mode="after")
    def _known(self) -> KeysFile:
        if self.version != 1:
            raise ValueError(f"version is {self.version}; this release reads version 1")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One holder of keys, as the router needs it: digests in place of keys, every default filled in."""

    name: str
    digests: frozenset[bytes]
    slo_class: str
    slo_classes: frozenset[str] | None = None
    """`None`: all."""
    requests_per_minute: float | None = None
    burst_requests: int = 1
    max_concurrent: int | None = None
    may_set_target: bool = True
    control: bool = False


def key_digest(key: bytes) -> bytes:
    """By which a key is known."""
    return sha256(key).digest()


def load_keys_file(path: Path) -> KeysFile:
    """Reads and validates a file of keys. Raises `FleetError`."""
    return validated(KeysFile, read_toml(path, "file of keys", FleetError), str(path), FleetError)


def load_holders(fleet: Fleet, where: str, environ: Mapping[str, str] = os.environ) -> tuple[Holder, ...]:
    """All who hold a key, from the fleet file (read from `where`), the file of keys, and the environment.

    Raises `FleetError` for a file that cannot be read, a variable that is not set, an unknown class, and a name or key
    that comes twice.
    """
    tables = [(where, fleet.keys)]
    if fleet.security.keys_file is not None:
        tables.append((fleet.security.keys_file, load_keys_file(Path(fleet.security.keys_file)).keys))
    holders: dict[str, Holder] = {}
    owners: dict[bytes, str] = {}
    known = frozenset(fleet.slo.classes) or frozenset({fleet.slo.default_class})
    for file, keys in tables:
        for name, key in keys.items():
            place = f"{file}: keys.{name}"
            if name in holders:
                raise FleetError(place, "is in the fleet file too", "give every holder one table")
            slo_class = key.slo_class or fleet.slo.default_class
            holder = Holder(
                name=name,
                digests=frozenset(_digests(key, place, environ)),
                slo_class=slo_class,
                slo_classes=_classes(key, known, slo_class, place),
                requests_per_minute=key.requests_per_minute,
                burst_requests=key.burst_requests,
                max_concurrent=key.max_concurrent,
                may_set_target=key.may_set_target,
                control=key.control,
            )
            for digest in holder.digests:
                if owners.setdefault(digest, name) != name:
                    raise FleetError(place, f"has a key of {owners[digest]!r}", "give every holder keys of its own")
            holders[name] = holder
    return tuple(holders.values())


def _digests(key: ApiKey, place: str, environ: Mapping[str, str]) -> Iterator[bytes]:
    for secret in key.value:
        yield key_digest(secret.get_secret_value().encode())
    for secret in key.sha256:
        yield bytes.fromhex(secret.get_secret_value())
    for secret in key.env:
        variable = secret.get_secret_value()
        value = environ.get(variable, "")
        if not value:
            raise FleetError(f"{place}.env", f"names {variable}, which is not set", "export the key")
        if not _KEY.fullmatch(value):
            raise FleetError(f"{place}.env", f"{variable} holds what cannot be a key", f"it must be {_KEY_RULE}")
        yield key_digest(value.encode())


def _classes(key: ApiKey, known: frozenset[str], slo_class: str, place: str) -> frozenset[str] | None:
    """The classes that the holder may use; `slo_class`, of requests that name none, has to be one of them."""
    for field, names in (("slo_class", (slo_class,)), ("slo_classes", key.slo_classes or ())):
        for name in names:
            if name not in known:
                remedy = f"use {', '.join(sorted(known))}"
                raise FleetError(f"{place}.{field}", f"names {name!r}, which is no class of the fleet", remedy)
    if key.slo_classes is None:
        return None
    if key.slo_class is None and slo_class not in key.slo_classes:
        problem = f"lacks {slo_class!r}, the class of requests that name none"
        raise FleetError(f"{place}.slo_classes", problem, "give another one as slo_class, or add it")
    return frozenset((*key.slo_classes, slo_class))
