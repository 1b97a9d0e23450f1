"""The SGLang command line of every backend in a fleet file. Pure: nothing is started.

Flags come from the profile (common to all arms, then the arm's own) and from the backend (address, limits, GPUs); where
two name the same flag, the later one wins, so that a backend's limit replaces the one the profile was measured with.

Servers that share a GPU each get a `--mem-fraction-static` that counts the servers started before them, as SGLang
measures what it may take against what is still free, and a `--nccl-port` of their own. They must start one by one.
Servers that share a machine get `--sleep-on-idle`: one that is idle else keeps a processor busy, and the others wait.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from selector.files.fleet import Backend, LoadedFleet

SHARED_GPU_MEM_FRACTION = 0.85
"""Share of a GPU's memory that all of its servers take together; three servers ran so on one H200."""
FIRST_PORT = 30_000
FIRST_NCCL_PORT = 29_500


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCommand:
    """How to start one backend."""

    backend: str
    arm: str
    machine: str | None
    """Where to run it, from GPU ids of the form `machine:index`; `None` when they do not tell."""
    env: Mapping[str, str]
    words: tuple[str, ...]
    api_key_env: str | None
    notes: tuple[str, ...]
    """What the reader has to know or do, in words."""

    @property
    def shell(self) -> str:
        """One line for a POSIX shell."""
        parts = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        parts.append(shlex.join(self.words))
        if self.api_key_env:
            parts.append(f'--api-key "${self.api_key_env}"')
        return " ".join(parts)


def launch_commands(
    loaded: LoadedFleet, *, model_path: str | None = None, draft_paths: Mapping[str, str] | None = None
) -> tuple[LaunchCommand, ...]:
    """One command per backend, in the fleet's order.

    `model_path` and `draft_paths` (by arm) replace the model ids of the profile; what neither names stays a
    placeholder in angle brackets, with a note.
    """
    backends = loaded.fleet.backends
    taken = {_port(backend, index) for index, backend in enumerate(backends)}
    nccl_ports = iter(port for port in range(FIRST_NCCL_PORT, 65_536) if port not in taken)
    return tuple(
        _command(loaded, index, model_path, draft_paths or {}, _sharing(backends, index), nccl_ports)
        for index in range(len(backends))
    )


def _command(
    loaded: LoadedFleet,
    index: int,
    model_path: str | None,
    draft_paths: Mapping[str, str],
    sharing: Sequence[int],
    nccl_ports: Iterable[int],
) -> LaunchCommand:
    backend, spec = loaded.fleet.backends[index], loaded.specs[index]
    profile = loaded.profiles[backend.profile]
    arm = profile.arms[backend.arm]
    notes: list[str] = []
    target = model_path or profile.target.model
    if target is None:
        target = f"<model {profile.target.name}>"
        notes.append("the profile names no model: give --model-path")
    draft = draft_paths.get(backend.arm) or arm.launch.draft_model
    arm_words = " ".join((*arm.launch.flags, *arm.launch.env.values()))
    if draft is None and "{draft}" in arm_words:
        draft = f"<draft model of {backend.arm}>"
        notes.append(f"the profile names no draft model: give --draft-path {backend.arm}=PATH")
    paths = {"{target}": target, "{draft}": draft or ""}
    flags = [
        *("--model-path", target, "--served-model-name", loaded.fleet.target),
        *("--host", _host(backend), "--port", str(_port(backend, index))),
        *(("--tp-size", str(profile.gpu.count)) if profile.gpu.count > 1 else ()),
        *profile.common_flags,
        *(_filled(flag, paths) for flag in (*arm.launch.flags, *backend.launch_flags)),
        *("--max-running-requests", str(backend.max_running_requests)),
        *("--max-total-tokens", str(backend.max_kv_tokens)),
        *("--context-length", str(spec.max_context_tokens)),
    ]
    if len(sharing) > 1:
        place = sharing.index(index)
        fraction = SHARED_GPU_MEM_FRACTION * (place + 1) / len(sharing)
        flags += ["--mem-fraction-static", f"{fraction:.2f}", "--nccl-port", str(next(iter(nccl_ports)))]
        others = ", ".join(loaded.fleet.backends[other].name for other in sharing if other != index)
        notes.append(f"shares a GPU with {others}: start them one after another, in this order")
    machine, env = _placement(backend, notes)
    if any(other is not backend and machine in _machines(other) for other in loaded.fleet.backends):
        flags.append("--sleep-on-idle")
    env |= {name: _filled(value, paths) for name, value in arm.launch.env.items()}
    if backend.url is None:
        notes.append("the fleet file gives no url: the port is a proposal, `serve` needs it as url")
    elif backend.url.startswith("https://"):
        notes.append("the url is https and SGLang speaks plain HTTP: something in front must end TLS")
    return LaunchCommand(
        backend=backend.name,
        arm=backend.arm,
        machine=machine,
        env=env,
        words=("python3", "-m", "sglang.launch_server", *_merged(flags)),
        api_key_env=backend.api_key_env,
        notes=tuple(notes),
    )


def _placement(backend: Backend, notes: list[str]) -> tuple[str | None, dict[str, str]]:
    """The machine, and the environment that shows a server its GPUs alone."""
    machines = _machines(backend)
    if "" in machines:
        notes.append("a GPU id is not machine:index: set CUDA_VISIBLE_DEVICES yourself")
        return None, {}
    if len(machines) > 1:
        notes.append(f"spans {', '.join(sorted(machines))}: add SGLang's flags for several nodes yourself")
        return None, {}
    return machines.pop(), {"CUDA_VISIBLE_DEVICES": ",".join(gpu.rpartition(":")[2] for gpu in backend.gpus)}


def _machines(backend: Backend) -> set[str]:
    """Names before the index of its GPU ids; the empty one where an id has none."""
    return {gpu.rpartition(":")[0] for gpu in backend.gpus}


def _sharing(backends: Sequence[Backend], index: int) -> list[int]:
    """Numbers of the backends on any GPU of backend `index`, itself included, in order."""
    own = set(backends[index].gpus)
    return [number for number, backend in enumerate(backends) if own & set(backend.gpus)]


def _host(backend: Backend) -> str:
    return (urlsplit(backend.url).hostname if backend.url else None) or "127.0.0.1"


def _port(backend: Backend, index: int) -> int:
    if backend.url is None:
        return FIRST_PORT + index
    parts = urlsplit(backend.url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _filled(word: str, paths: Mapping[str, str]) -> str:
    for placeholder, path in paths.items():
        word = word.replace(placeholder, path)
    return word


def _merged(words: Sequence[str]) -> list[str]:
    """Each flag once, where it first stood, with the values given last."""
    merged: dict[str, list[str]] = {}
    values: list[str] = []
    for word in words:
        if word.startswith("--"):
            name, has_value, value = word.partition("=")
            values = merged[name] = [value] if has_value else []
        else:
            values.append(word)
    return [word for name, given in merged.items() for word in (name, *given)]
