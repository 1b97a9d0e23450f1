"""What `check` says about who may ask a router, who may read its secrets, and what goes over networks in the clear."""

from __future__ import annotations

import ipaddress
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from selector.errors import FleetError
from selector.files.fleet import Fleet
from selector.files.security import ApiKey, KeysFile, load_holders, load_keys_file
from selector.files.trust import trust

_SHORTEST_CHARS = 20
Told: TypeAlias = Callable[[Literal["error", "warning"], str, str, str], None]
"""Takes level, where, problem and remedy."""
Warn: TypeAlias = Callable[[str, str, str], None]


def examine_security(
    fleet: Fleet, where: str, environ: Mapping[str, str], code: Mapping[str, Path], told: Told
) -> None:
    """Tells of everything; `code` are files that the router runs, by what they are in the fleet file."""

    def warn(place: str, problem: str, remedy: str) -> None:
        told("warning", f"{where}: {place}", problem, remedy)

    keys_file = None
    try:
        if fleet.security.keys_file is not None:
            keys_file = load_keys_file(Path(fleet.security.keys_file))
        # A variable may well be set only where serve runs.
        unset = [name for name in _variables(fleet, keys_file) if not environ.get(name)]
        holders = load_holders(fleet, where, {**environ, **{name: f"not-set-here-{name}" for name in unset}})
        trust(fleet, where)
    except FleetError as bad:
        told("error", bad.where, bad.problem, bad.remedy)
        return
    for name in unset:
        warn("keys", f"{name} is not set here", "set it where serve runs")
    _reachable(fleet, warn, keyed=bool(holders), controlled=any(holder.control for holder in holders))
    _networks(fleet, warn)
    _weak_keys(fleet, keys_file, warn)
    _files(fleet, where, keys_file, code, warn)


def _variables(fleet: Fleet, keys_file: KeysFile | None) -> Iterator[str]:
    for keys in (fleet.keys, {} if keys_file is None else keys_file.keys):
        for key in keys.values():
            yield from (secret.get_secret_value() for secret in key.env)


def _reachable(fleet: Fleet, warn: Warn, *, keyed: bool, controlled: bool) -> None:
    router = fleet.router
    if not keyed and not is_loopback(router.host):
        sees = "use the fleet" if router.control_port is not None else "use the fleet, watch it and abort requests"
        warn(
            "router.host",
            f"is {router.host!r}, and no key is asked for: whoever reaches port {router.port} may {sees}",
            "add [keys], or let nobody but a proxy of yours reach it",
        )
    if router.control_port is not None and not is_loopback(router.control_host):
        warn(
            "router.control_host",
            f"is {router.control_host!r}: whoever reaches port {router.control_port} may watch the fleet and abort "
            "requests, without a key",
            "let nobody but monitoring reach it",
        )
    if keyed and not controlled and router.control_port is None:
        warn(
            "keys",
            "none has control = true and there is no control_port: nobody can see metrics or dashboard",
            "give a key control, or the router a control_port",
        )


def _networks(fleet: Fleet, warn: Warn) -> None:
    clear = [
        backend.name
        for backend in fleet.backends
        if backend.url is not None and backend.url.startswith("http://") and not is_loopback(_host_of(backend.url))
    ]
    if clear:
        warn(
            "backends",
            f"{', '.join(clear)}: http to another machine: prompts, answers and keys can be read on the way",
            "use https, or a network that nobody else is on",
        )


def _weak_keys(fleet: Fleet, keys_file: KeysFile | None, warn: Warn) -> None:
    for keys in (fleet.keys, {} if keys_file is None else keys_file.keys):
        for name, key in keys.items():
            if any(len(secret.get_secret_value()) < _SHORTEST_CHARS for secret in key.value):
                warn(
                    f"keys.{name}.value",
                    f"has fewer than {_SHORTEST_CHARS} characters",
                    "draw it at random: openssl rand -hex 32",
                )


def _files(fleet: Fleet, where: str, keys_file: KeysFile | None, code: Mapping[str, Path], warn: Warn) -> None:
    """Of files that hold secrets, or that decide what the router does."""
    given: dict[str, tuple[Path, bool]] = {"the fleet file": (Path(where), _holds_keys(fleet.keys))}
    if keys_file is not None and fleet.security.keys_file is not None:
        given["security.keys_file"] = Path(fleet.security.keys_file), _holds_keys(keys_file.keys)
    given |= {place: (path, False) for place, path in code.items()}
    for place, (path, secret) in given.items():
        try:
            mode = path.stat().st_mode
        except OSError:
            continue  # whoever reads it tells
        if secret and mode & stat.S_IROTH:
            warn(place, f"{path} holds keys and may be read by everybody", f"chmod o= {path}, or give digests (sha256)")
        if mode & stat.S_IWOTH:
            warn(place, f"{path} may be written by everybody, who so decides what the router does", f"chmod o-w {path}")


def _holds_keys(keys: Mapping[str, ApiKey]) -> bool:
    return any(key.value for key in keys.values())


def _host_of(url: str) -> str:
    return urlsplit(url).hostname or ""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a listener on `host`, or a server at it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
